"""Speeds of the variants as they are now: what was measured before, corrected by what is seen.

One common factor for what slows everything down (heat, contention), and one for each variant for
what a profile got wrong. Observations count by the engine time behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Final

COMMON_S: Final = 3.0
OWN_S: Final = 120.0
LEAST: Final = 0.05
MOST: Final = 4.0


@dataclass(frozen=True, slots=True)
class Speeds:
    """Observed ÷ expected speed.

    Attributes:
        common: Of all variants.
        own: Of each variant, beyond the common factor.
    """

    common: float = 1.0
    own: Mapping[str, float] = field(default_factory=dict)

    def factor(self, variant: str) -> float:
        """By what to multiply a variant's known speed."""
        return self.common * self.own.get(variant, 1.0)

    def observed(self, variant: str, expected_s: float, took_s: float) -> Speeds:
        """After work that should have taken ``expected_s`` at the known speed took ``took_s``."""
        if expected_s <= 0 or took_s <= 0:
            return self
        seen = min(MOST, max(LEAST, expected_s / took_s))
        own = self.own.get(variant, 1.0)
        common = self.common + (1 - exp(-took_s / COMMON_S)) * (seen / own - self.common)
        common = min(MOST, max(LEAST, common))
        drift = (1 - exp(-took_s / OWN_S)) * (seen / common - own)
        return Speeds(common, {**self.own, variant: own + drift})
