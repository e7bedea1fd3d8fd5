"""What the core asks the shell to do, as data; each outcome comes back as an event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from trimtab.domain.knobs import PARKED, KvPlacement, OperatingPoint


class HandoverMode(StrEnum):
    """In which order the new worker comes and the old one goes."""

    MAKE_BEFORE_BREAK = "make_before_break"  # both fit in memory
    BREAK_BEFORE_MAKE = "break_before_make"  # they don't: streams are held meanwhile


@dataclass(frozen=True, slots=True)
class SwitchWorker:
    """Load a variant and hand the streams over; also how a parked daemon wakes up.

    Attributes:
        id: Names the action in its outcome.
        point: The operating point that is in force afterwards, in all its knobs.
        mode: Whether the old worker goes before the new one comes.
    """

    id: int
    point: OperatingPoint
    mode: HandoverMode


@dataclass(frozen=True, slots=True)
class SetContext:
    """Admit conversations of up to this many tokens from now on."""

    id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SetSpeculation:
    """Turn drafting on or off in the loaded worker.

    A draft variant that isn't wanted any more is let go there between two tokens; one that is
    wanted is loaded beside the streams.
    """

    id: int
    speculation: str


@dataclass(frozen=True, slots=True)
class SetPace:
    """Let the engine run for this share of the time."""

    id: int
    ratio: float


@dataclass(frozen=True, slots=True)
class PlaceIdleKv:
    """Move conversations' KV to where the point says; running ones' only with ``disk_all``."""

    id: int
    placement: KvPlacement


@dataclass(frozen=True, slots=True)
class ReleaseIdleKv:
    """Give back memory of idle conversations' KV, least recently used first, at least this much."""

    id: int
    wanted_bytes: int


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Have the youngest conversations wait, and give their KV in memory back, at least this much.

    It is computed again once there is room.
    """

    id: int
    wanted_bytes: int


@dataclass(frozen=True, slots=True)
class Park:
    """Unload everything; requests wait or are refused with the reason."""

    id: int
    reason: str


Action: TypeAlias = (
    SwitchWorker
    | SetContext
    | SetSpeculation
    | SetPace
    | PlaceIdleKv
    | ReleaseIdleKv
    | GiveWay
    | Park
)

LongAction: TypeAlias = SwitchWorker | Park | SetSpeculation
"""What may be under way for long; of `SetSpeculation`, one that loads a draft."""


def carried_out(point: OperatingPoint, action: Action) -> OperatingPoint:
    """What is in force once an action has been done. What is parked has no settings to change."""
    match action:
        case SwitchWorker(point=target):
            return target
        case Park():
            return PARKED
        case _ if point.parked:
            return point
        case SetContext(tokens=tokens):
            return replace(point, context=tokens)
        case SetSpeculation(speculation=speculation):
            return replace(point, speculation=speculation)
        case SetPace(ratio=ratio):
            return replace(point, pace_ratio=ratio)
        case PlaceIdleKv(placement=placement):
            return replace(point, kv_placement=placement)
        case ReleaseIdleKv() | GiveWay():
            return point
