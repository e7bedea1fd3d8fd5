"""Every signal that rules and people can see, with unit, source and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.domain.readings import Unit


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """One signal.

    Attributes:
        name: Dotted, lower case, such as ``memory.available``.
        unit: The unit of its readings.
        source: Where it is read or what it is derived from.
        meaning: One sentence for a gateway's owner.
        low: Least plausible value; readings below it are suspect. None: no bound.
        high: Greatest plausible value. None: no bound.
    """

    name: str
    unit: Unit
    source: str
    meaning: str
    low: float | None = 0.0
    high: float | None = None


_SPECS: Final = (
    SignalSpec(
        "memory.available",
        Unit.BYTES,
        "min(MemAvailable, limit − working set of every cgroup up to the root)",
        "Memory that could be given to a process now without swapping.",
    ),
    SignalSpec(
        "temperature.max",
        Unit.CELSIUS,
        "/sys/class/thermal/thermal_zone*/temp",
        "The hottest of the zones that mean the processor or the board.",
        low=-40.0,
        high=150.0,
    ),
    SignalSpec(
        "memory.psi.some_avg10",
        Unit.RATIO,
        "/proc/pressure/memory",
        "Share of the last 10 s in which some task waited for memory.",
        high=1.0,
    ),
)

SIGNALS: Final[dict[str, SignalSpec]] = {spec.name: spec for spec in _SPECS}

# Families whose members depend on the machine or its owner: a zone's type, a pushed signal's name.
# name prefix -> unit of the members
DYNAMIC_PREFIXES: Final[dict[str, Unit | None]] = {
    "temperature.zone.": Unit.CELSIUS,
    "custom.": None,
}
