"""Streams that get nothing though their worker is at work for others.

A worker decodes for all its streams in each turn. It reads prompts one after the other, but for
those that take less time, which take turns with the first, and moves streams into other segments
likewise. So who decodes is owed a token within the longest turn, and who reads or is moved is owed
something within that time after those who came before.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.domain.models import VariantSpec
from trimtab.serving.stream import Stream
from trimtab.workers.supervisor import SLOWEST_DISK_BYTES_S, wedged_after_s


def stalled(
    streams: Sequence[Stream], variant: VariantSpec, at_s: float, awake_s: float
) -> list[tuple[Stream, float]]:
    """The streams for which nothing has been done for too long, and for how many seconds.

    Args:
        streams: All that one worker has; what they wait for is taken note of.
        variant: Of that worker.
        at_s: Now, in monotonic time. To be called on each tick.
        awake_s: Since when that was done without a break; what was owed before isn't counted.
    """
    patience_s = wedged_after_s(variant) + _moving_s(streams)
    found = []
    for stream in streams:
        stream.heard_s = max(stream.heard_s, awake_s, _not_before_s(stream, streams, at_s))
        silent_s = at_s - stream.heard_s
        if silent_s > patience_s:
            found.append((stream, silent_s))
    return found


def _not_before_s(stream: Stream, streams: Sequence[Stream], at_s: float) -> float:
    """Since when at the earliest the worker can have owed it anything."""
    if stream.paused or stream.detaching or stream.starved:
        return at_s
    if not stream.reading and stream.moving is None:
        return stream.heard_s
    before = (one.turn_s for one in streams if one.since_s <= stream.since_s)
    return max((turn_s for turn_s in before if turn_s is not None), default=stream.heard_s)


def _moving_s(streams: Sequence[Stream]) -> float:
    """How long the moves into other segments that are under way may take in all."""
    moving_bytes = sum(
        one.moving.segment.shape.token_bytes * one.positions
        for one in streams
        if one.moving is not None
    )
    return moving_bytes / SLOWEST_DISK_BYTES_S
