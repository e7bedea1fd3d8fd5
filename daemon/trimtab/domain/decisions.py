"""The record of a decision: what was seen, what was chosen, what lost and why, what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trimtab.domain.knobs import OperatingPoint


class Direction(StrEnum):
    """Which way a decision moves."""

    DOWN = "down"  # lower predicted memory, heat or time, whichever limit is violated
    UP = "up"
    START = "start"  # from parked or from nothing
    PARK = "park"
    HOLD = "hold"  # a step was wanted and held back
    RELIEF = "relief"  # memory that nobody uses was given back; the point stays
    GIVE_WAY = "give_way"  # conversations wait, and their KV was given back; the point stays
    SHED = "shed"  # requests were refused, since nothing was to be gained by keeping them


@dataclass(frozen=True, slots=True)
class Trigger:
    """What made the decision necessary.

    Attributes:
        signal: Name of the signal, or what else it was (``policy``, ``pin``, ``worker``).
        value: The signal's value, in its unit; None where it has none.
        threshold: What it was held against, in the same unit.
        for_s: How long the condition had held.
        text: In words, for people.
    """

    signal: str
    value: float | None = None
    threshold: float | None = None
    for_s: float = 0.0
    text: str = ""


class Source(StrEnum):
    """How a predicted figure was found, the surest first."""

    MEASURED = "measured"  # this variant, thread count and length, on this device
    FITTED = "fitted"  # this variant and thread count, another number of tokens
    SCALED = "scaled"  # this variant, another thread count or mode of drafting
    BYTES = "bytes"  # another variant of this model, by its size
    BUILD = "build"  # seen when the variant was built, on a processor of the same name
    ASSUMED = "assumed"  # its bytes, at the bandwidth of a small board

    def or_worse(self, other: Source) -> Source:
        """The less sure of the two: what a figure made of both rests on."""
        return max(self, other, key=_BEST_FIRST.index)


_BEST_FIRST: Final = tuple(Source)


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a prediction rests on, and how far off its speeds may be.

    Attributes:
        speed: How the speeds were found.
        speed_error_ratio: Standard error of the speeds, relative to them.
        seen_ratio: Observed ÷ known speed; the speeds have been corrected by it. 1 where nothing
            has been observed.
        memory: How the memory of the worker without KV was found.
    """

    speed: Source = Source.ASSUMED
    speed_error_ratio: float = 0.5
    seen_ratio: float = 1.0
    memory: Source = Source.ASSUMED


UNKNOWN: Final = Grounds()


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the planner expects of an operating point.

    Attributes:
        memory_bytes: What the worker holds with the KV that is committed now.
        reserved_bytes: The same with one conversation grown to the whole context.
        available_bytes: Memory that would be available after the step; None if it isn't known.
        decode_tps: Tokens per second of one conversation of usual length; None if unknown.
        ttft_s: First token of a typical prompt; None if unknown.
        quality_ratio: exp(−mean KL to the best variant), 0 to 1.
        doubt_bytes: How much more it may hold; wide for what was never loaded here.
        full_tps: Tokens per second of a conversation that fills the context; None if unknown.
        grounds: What the rest rests on.
    """

    memory_bytes: int
    reserved_bytes: int
    available_bytes: int | None
    decode_tps: float | None
    ttft_s: float | None
    quality_ratio: float
    doubt_bytes: int = 0
    full_tps: float | None = None
    grounds: Grounds = UNKNOWN


@dataclass(frozen=True, slots=True)
class Rejected:
    """An operating point that wasn't chosen, with the reason in words."""

    point: OperatingPoint
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured after a decision had been carried out and had settled.

    What isn't known is None, and so is what was last looked at before the step was done.

    Attributes:
        kind: ``done``, ``failed`` or ``superseded``.
        took_s: Time the step took.
        available_before_bytes: Memory available when it was decided.
        available_after_bytes: Memory available after the settle time.
        reason: Why it failed; if it is done, what of it couldn't be had.
        worker_bytes: What the worker held after the settle time; the prediction's `memory_bytes`
            is what was expected of it.
        celsius_before: Temperature of the hottest zone when it was decided.
        celsius_after: The same after the settle time.
        decode_tps: Tokens per second as observed since, as the prediction counts them; None where
            too little was decoded.
        settled_s: How long after the step all this was measured; less than the settle time if the
            next decision came before. None if the step wasn't done.
    """

    kind: str
    took_s: float
    available_before_bytes: int | None = None
    available_after_bytes: int | None = None
    reason: str = ""
    worker_bytes: int | None = None
    celsius_before: float | None = None
    celsius_after: float | None = None
    decode_tps: float | None = None
    settled_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision record.

    Attributes:
        id: Counts up for as long as the state directory lives.
        at_s: Monotonic time.
        direction: Which way it moves.
        trigger: What made it necessary.
        source: The operating point before.
        target: The one chosen; equal to the source when the decision is to hold.
        predicted: What the target is expected to hold and do.
        runner_up: The best point that lost, and why.
        excluded: Why the rest was out, one reason each, most common first.
        policy: Name of the policy in force.
        revision: Its content hash.
        outcome: Filled in later, by a second record with the same id.
    """

    id: int
    at_s: float
    direction: Direction
    trigger: Trigger
    source: OperatingPoint
    target: OperatingPoint
    predicted: Prediction | None
    runner_up: Rejected | None
    excluded: tuple[Rejected, ...]
    policy: str
    revision: str
    outcome: Outcome | None = None
