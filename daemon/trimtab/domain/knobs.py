"""Knobs and the operating points that they make up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Knob(StrEnum):
    """The adjustable settings, cheapest to move first."""

    PACE = "pace"
    SPECULATION = "speculation"
    KV_PLACEMENT = "kv_placement"
    CONTEXT = "context"
    THREADS = "threads"
    VARIANT = "variant"


class Cost(StrEnum):
    """What a change of a knob costs the streams that are running."""

    INSTANT = "instant"  # nothing: between two tokens; what must be loaded for it comes beside them
    HANDOVER = "handover"  # a new worker, and streams handed over at a token boundary


class KvPlacement(StrEnum):
    """Where KV caches live."""

    MEMORY = "memory"
    DISK = "disk"  # those of idle conversations
    DISK_ALL = "disk_all"  # those of running ones too: the last rung


PLACEMENT_WORDS: Final[dict[KvPlacement, str]] = {
    KvPlacement.MEMORY: "KV in memory",
    KvPlacement.DISK: "idle KV on disk",
    KvPlacement.DISK_ALL: "all KV on disk",
}

COSTS: Final[dict[Knob, Cost]] = {
    Knob.PACE: Cost.INSTANT,
    Knob.SPECULATION: Cost.INSTANT,
    Knob.KV_PLACEMENT: Cost.INSTANT,
    Knob.CONTEXT: Cost.INSTANT,
    Knob.THREADS: Cost.HANDOVER,
    Knob.VARIANT: Cost.HANDOVER,
}

SPECULATION_OFF: Final = "off"
SPECULATION_NGRAM: Final = "ngram"


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One value for every knob.

    Attributes:
        variant: Name of the variant that is loaded; None when parked (nothing loaded).
        context: Tokens that a conversation may hold, prompt and answer together.
        threads: Engine threads, fixed while a worker lives.
        speculation: ``off``, ``ngram`` or ``draft:VARIANT``.
        kv_placement: Where KV goes.
        pace_ratio: Share of time that the engine may run, 0.1 to 1.
    """

    variant: str | None
    context: int
    threads: int = 1
    speculation: str = SPECULATION_OFF
    kv_placement: KvPlacement = KvPlacement.MEMORY
    pace_ratio: float = 1.0

    @property
    def parked(self) -> bool:
        """True if nothing is loaded."""
        return self.variant is None

    def value(self, knob: Knob) -> str | int | float | None:
        """The value of one knob."""
        match knob:
            case Knob.VARIANT:
                return self.variant
            case Knob.CONTEXT:
                return self.context
            case Knob.THREADS:
                return self.threads
            case Knob.SPECULATION:
                return self.speculation
            case Knob.KV_PLACEMENT:
                return self.kv_placement
            case Knob.PACE:
                return self.pace_ratio

    def changed(self, other: OperatingPoint) -> tuple[Knob, ...]:
        """The knobs in which ``other`` differs, cheapest first."""
        return tuple(knob for knob in Knob if self.value(knob) != other.value(knob))

    def describe(self) -> str:
        """A short name for people: ``int8, 4096 tokens``; only what isn't ordinary is added."""
        if self.variant is None:
            return "parked"
        parts = [self.variant, f"{self.context} tokens"]
        if self.threads != 1:
            parts.append(f"{self.threads} threads")
        if self.speculation != SPECULATION_OFF:
            parts.append(f"speculation {self.speculation}")
        if self.kv_placement is not KvPlacement.MEMORY:
            parts.append(PLACEMENT_WORDS[self.kv_placement])
        if self.pace_ratio < 1:
            parts.append(f"pace {self.pace_ratio:.0%}")
        return ", ".join(parts)


PARKED: Final = OperatingPoint(variant=None, context=0, threads=0)
