"""What a sensor says, and what a tick saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Unit(StrEnum):
    """Base units of signals; conversion happens once, where text is parsed."""

    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    CELSIUS = "celsius"
    CELSIUS_PER_S = "celsius/s"
    RATIO = "ratio"
    SECONDS = "seconds"
    COUNT = "count"
    PER_S = "1/s"
    TOKENS_PER_S = "tokens/s"
    HERTZ = "hertz"
    WATTS = "watts"
    BOOL = "bool"


class Quality(StrEnum):
    """How far a reading can be trusted. Absent is not zero, and neither is failed."""

    GOOD = "good"
    SUSPECT = "suspect"  # implausible, or an outlier that hasn't been confirmed
    STALE = "stale"  # older than its source's deadline
    ABSENT = "absent"  # this machine doesn't have it
    FAILED = "failed"  # it is there and can't be read


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one signal.

    Attributes:
        signal: The signal's name, such as ``memory.available``.
        value: In the unit that the registry gives for the signal; None unless something was read.
        at_s: Monotonic time of the reading, in seconds.
        quality: Whether rules may use it.
        reason: Why the quality isn't good, or how a derived value came about (its arithmetic).
    """

    signal: str
    value: float | None
    at_s: float
    quality: Quality = Quality.GOOD
    reason: str = ""

    @property
    def usable(self) -> bool:
        """True if a rule may decide on it."""
        return self.value is not None and self.quality is Quality.GOOD


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All readings of one tick.

    Attributes:
        at_s: Monotonic time of the tick, in seconds.
        readings: By signal name.
        wall_s: Wall-clock time of the tick in seconds since the epoch, for people only.
    """

    at_s: float
    readings: Mapping[str, Reading] = field(default_factory=dict)
    wall_s: float = 0.0

    def value(self, signal: str) -> float | None:
        """The signal's value if it can be trusted, else None."""
        reading = self.readings.get(signal)
        return reading.value if reading is not None and reading.usable else None
