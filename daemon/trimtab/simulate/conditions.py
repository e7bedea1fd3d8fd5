"""What the device gives the engine over time: memory that others leave, and speed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Span:
    """A value that holds from one time to another, in seconds.

    Attributes:
        from_s: Start.
        to_s: End.
        value: A speed factor, or a memory cap in bytes.
    """

    from_s: float
    to_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """Piecewise constant conditions.

    Attributes:
        starts_s: When each piece begins, rising, the first at 0.
        speed: Factor on prefill and decode in each piece.
        cap_bytes: Memory that the engine may hold in each piece.
    """

    starts_s: tuple[float, ...]
    speed: tuple[float, ...]
    cap_bytes: tuple[float, ...]

    def index(self, at_s: float) -> int:
        """The piece that holds at a time."""
        return max(0, bisect_right(self.starts_s, at_s) - 1)

    def next_change_s(self, at_s: float) -> float:
        """When the next piece begins; infinity if none does."""
        position = bisect_right(self.starts_s, at_s)
        return self.starts_s[position] if position < len(self.starts_s) else float("inf")


def combine(speeds: Iterable[Span], caps: Iterable[Span], cap_bytes: float) -> Conditions:
    """Overlapping spans as one sequence: speeds multiply, the least cap holds."""
    speeds, caps = tuple(speeds), tuple(caps)
    times = {0.0}
    for span in (*speeds, *caps):
        times |= {max(0.0, span.from_s), span.to_s}
    starts = sorted(times)
    speed, cap = [], []
    for at_s in starts:
        factor, least = 1.0, cap_bytes
        for span in speeds:
            if span.from_s <= at_s < span.to_s:
                factor *= span.value
        for span in caps:
            if span.from_s <= at_s < span.to_s:
                least = min(least, span.value)
        speed.append(factor)
        cap.append(least)
    return Conditions(tuple(starts), tuple(speed), tuple(cap))


def ramp(from_s: float, to_s: float, at: Callable[[float], float], step_s: float) -> list[Span]:
    """A slope as steps; each step takes the value at its end, so a falling one is never late."""
    spans = []
    start_s = from_s
    while start_s < to_s:
        end_s = min(start_s + step_s, to_s)
        spans.append(Span(start_s, end_s, at((end_s - from_s) / (to_s - from_s))))
        start_s = end_s
    return spans
