"""How far a memory prediction may be wrong: wide without data, narrower with each measurement.

A variant that was never loaded here is predicted from its manifest, made on some other machine, and
from what other variants held beside their weights. The first load shows how wrong that was, and by
how much first loads are wrong says how far to trust the next one: the standard error is that of a
guess made twice before, and of every first load since. A variant that was loaded here holds what it
held then; what it is doubted by is only how much one load differed from the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

PRIOR_RATIO: Final = 0.05
PRIOR_COUNT: Final = 2.0
CAUTION: Final = 2.0
"""Standard errors that are kept free: one load in forty would hold more."""

REPEAT_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Doubt:
    """What measurements said about predictions of a worker's memory.

    Attributes:
        first_loads: Variants that were predicted and then loaded for the first time.
        squares: Sum of their squared errors, relative to the prediction.
        repeats: By variant, how much a load differs from the one before, as a ratio.
    """

    first_loads: float = 0.0
    squares: float = 0.0
    repeats: Mapping[str, float] = field(default_factory=dict)

    def first(self, expected_bytes: float, measured_bytes: float) -> Doubt:
        """A variant was loaded for the first time."""
        error = measured_bytes / expected_bytes - 1 if expected_bytes > 0 else 0.0
        return Doubt(self.first_loads + 1, self.squares + error * error, self.repeats)

    def again(self, variant: str, before_bytes: float, measured_bytes: float) -> Doubt:
        """A variant was loaded that had been loaded before."""
        differs = abs(measured_bytes / before_bytes - 1) if before_bytes > 0 else 0.0
        known = self.repeats.get(variant, 0.0)
        spread = known + REPEAT_SHARE * (differs - known)
        return Doubt(self.first_loads, self.squares, {**self.repeats, variant: spread})

    def margin_ratio(self, variant: str, *, measured: bool) -> float:
        """What to keep free beyond a prediction, relative to it.

        Args:
            variant: Whose memory is predicted.
            measured: Whether it was loaded on this device.
        """
        if measured:
            return CAUTION * self.repeats.get(variant, 0.0)
        seen = PRIOR_COUNT * PRIOR_RATIO * PRIOR_RATIO + self.squares
        return CAUTION * sqrt(seen / (PRIOR_COUNT + self.first_loads))
