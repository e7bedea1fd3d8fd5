"""What is told of a signal, and short ways to tell it for common kinds."""

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
        quirks: What to know before a rule relies on it.
    """

    name: str
    unit: Unit
    source: str
    meaning: str
    low: float | None = 0.0
    high: float | None = None
    quirks: str = ""


_TIB: Final = float(1 << 40)
_MOST_BYTES: Final = 64 * _TIB
MOST_RATE: Final = 1e12  # bytes/s and the like: beyond it a counter has wrapped or been reset


def in_bytes(name: str, source: str, meaning: str, quirks: str = "") -> SignalSpec:
    """A size."""
    return SignalSpec(name, Unit.BYTES, source, meaning, high=_MOST_BYTES, quirks=quirks)


def ratio(name: str, source: str, meaning: str, quirks: str = "") -> SignalSpec:
    """A share, 0 to 1."""
    return SignalSpec(name, Unit.RATIO, source, meaning, high=1.0, quirks=quirks)


def stalls(prefix: str, file: str, what: str, kinds: tuple[str, ...]) -> tuple[SignalSpec, ...]:
    """The signals of one pressure file."""
    who = {"some": "at least one task", "full": "every task that isn't idle"}
    spans = {"avg10": "the last 10 s", "avg60": "the last minute", "avg300": "the last 5 minutes"}
    specs = []
    for kind in kinds:
        for average, span in spans.items():
            specs.append(
                ratio(
                    f"{prefix}.{kind}_{average}",
                    file,
                    f"Share of {span} in which {who[kind]} waited for {what}.",
                )
            )
        specs.append(
            ratio(
                f"{prefix}.{kind}_now",
                f"{file}, from its total",
                f"Share of the time since the last tick in which {who[kind]} waited for {what}.",
                "Moves at once, where the averages take seconds; needs a second tick.",
            )
        )
    return tuple(specs)


def in_seconds(name: str, source: str, meaning: str, quirks: str = "") -> SignalSpec:
    """A time of up to a day."""
    return SignalSpec(name, Unit.SECONDS, source, meaning, high=86400.0, quirks=quirks)
