"""Counts what streams do: totals for status, and the pace of the last seconds."""

from __future__ import annotations

from collections import deque
from typing import Final

from trimtab.serving.stream import Stream

RATE_WINDOW_S: Final = 5.0


class Meter:
    """The observer of all streams. On the hot path: a few additions for each token."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self._buckets: deque[tuple[float, int]] = deque()

    def arrived(self, stream: Stream, at_s: float) -> None:
        """A request is in the queue."""
        self.requests += 1

    def started(self, stream: Stream, at_s: float) -> None:
        """A worker has it."""

    def produced(self, stream: Stream, tokens: int, at_s: float) -> None:
        """It has new tokens; counted in tenths of a second."""
        self.tokens += tokens
        slot_s = round(at_s, 1)
        buckets = self._buckets
        if buckets and buckets[-1][0] == slot_s:
            buckets[-1] = (slot_s, buckets[-1][1] + tokens)
        else:
            buckets.append((slot_s, tokens))
            while buckets[0][0] < at_s - RATE_WINDOW_S:
                buckets.popleft()

    def ended(self, stream: Stream, at_s: float) -> None:
        """It is done."""

    def tokens_per_s(self, at_s: float, window_s: float = RATE_WINDOW_S) -> float:
        """Tokens of all streams together, per second, over the last seconds."""
        total = sum(count for slot_s, count in self._buckets if slot_s > at_s - window_s)
        return total / window_s
