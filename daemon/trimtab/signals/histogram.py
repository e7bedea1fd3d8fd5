"""Quantiles over the last seconds at a constant cost per sample."""

from __future__ import annotations

import math
from typing import Final

_LEAST: Final = 1e-5
_GROWTH: Final = 1.05  # neighbouring buckets; a quantile is at most this factor too large
_BUCKETS: Final = 380  # up to 1e-5 · 1.05^379, about 1000
_LOG_GROWTH: Final = math.log(_GROWTH)


class SlidingHistogram:
    """Counts in logarithmic buckets, in slices of time that expire one by one.

    A sample costs O(1), whatever the window; a quantile costs one pass over the buckets. It covers
    values from 10 µs to about 1000 s (in seconds) with an error of at most 5 %.

    Args:
        length_s: How far it looks back.
        slices: Into how many parts that is cut; the oldest goes as a whole.
    """

    def __init__(self, length_s: float, slices: int = 12) -> None:
        self._slice_s = length_s / slices
        self._slices: list[dict[int, int]] = [{} for _ in range(slices)]
        self._slot = 0  # where the newest slice is
        self._number = 0  # how many slices of time lie before it
        self._sums = [0] * _BUCKETS
        self.count = 0

    def add(self, at_s: float, value: float) -> None:
        """Takes in a sample."""
        self.forget(at_s)
        bucket = self._bucket(value)
        newest = self._slices[self._slot]
        newest[bucket] = newest.get(bucket, 0) + 1
        self._sums[bucket] += 1
        self.count += 1

    @staticmethod
    def _bucket(value: float) -> int:
        if value <= _LEAST:
            return 0
        return min(_BUCKETS - 1, math.ceil(math.log(value / _LEAST) / _LOG_GROWTH))

    def forget(self, at_s: float) -> None:
        """Lets go of the slices that have grown too old."""
        number = int(at_s // self._slice_s)
        for _ in range(min(number - self._number, len(self._slices))):
            self._slot = (self._slot + 1) % len(self._slices)
            expired = self._slices[self._slot]
            for bucket, count in expired.items():
                self._sums[bucket] -= count
                self.count -= count
            expired.clear()
        self._number = max(number, self._number)

    def clear(self) -> None:
        """Starts afresh."""
        for part in self._slices:
            part.clear()
        self._sums = [0] * _BUCKETS
        self.count = 0

    def quantile(self, ratio: float) -> float | None:
        """The upper edge of the bucket in which the quantile lies; None while it is empty."""
        if self.count == 0:
            return None
        rank = max(1, math.ceil(min(1.0, max(0.0, ratio)) * self.count))
        seen = 0
        for bucket, count in enumerate(self._sums):
            seen += count
            if seen >= rank:
                return _LEAST * _GROWTH**bucket
        return None
