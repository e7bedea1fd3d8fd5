"""Speeds of the variants as they are now: what was measured before, corrected by what is seen.

One common factor for what slows everything down (heat, contention), and one for each variant for
what a profile got wrong. Observations count by the engine time behind them.

Where the engine decodes for several requests in one step, such a step takes longer than one for a
single request, but less than a step for each. By how much is learned too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, log
from typing import Final

COMMON_S: Final = 3.0
OWN_S: Final = 120.0
FURTHER_S: Final = 10.0
FADE_S: Final = 3600.0
"""Engine time with others after which what was seen of a variant counts for a third."""
SEEN_MOST_S: Final = 600.0
"""More than this counts for nothing once others work."""
SPREAD: Final = 0.05
"""What an observed speed differs from moment to moment, relative: no error gets smaller."""
ALIKE: Final = 0.30
"""How far variants are off from each other, where what they have in common has been corrected."""
STEP: Final = 0.05
LEAST: Final = 0.05
MOST: Final = 4.0


@dataclass(frozen=True, slots=True)
class Speeds:
    """Observed ÷ expected speed.

    Attributes:
        common: Of all variants.
        own: Of each variant, beyond the common factor.
        further: What each further request adds to a step, in steps for one alone; 1 where they are
            served one after the other.
        seen_s: Engine time over which each variant was observed, as far as it still counts.
    """

    common: float = 1.0
    own: Mapping[str, float] = field(default_factory=dict)
    further: float = 1.0
    seen_s: Mapping[str, float] = field(default_factory=dict)

    def factor(self, variant: str) -> float:
        """By what to multiply a variant's known speed."""
        return self.common * self.own.get(variant, 1.0)

    def in_steps(self, variants: Iterable[str]) -> dict[str, float]:
        """The factors rounded to steps of a twentieth; none before anything was observed.

        For what is worked out anew when it changes: what is seen wavers by less.
        """
        if not self.seen_s:
            return {}
        return {name: exp(STEP * round(log(self.factor(name)) / STEP)) for name in variants}

    def error_ratio(self, variant: str, known: float) -> float:
        """What is left of a known speed's standard error, after what has been observed.

        It shrinks as the variant's own factor takes in what is seen. What has been seen of any
        variant has corrected what all have in common, such as an assumed bandwidth.
        """
        if not self.seen_s:
            return known
        left = min(known, max(ALIKE, known * exp(-sum(self.seen_s.values()) / COMMON_S)))
        return max(min(known, SPREAD), left * exp(-self.seen_s.get(variant, 0.0) / OWN_S))

    def observed(self, variant: str, expected_s: float, took_s: float) -> Speeds:
        """After work that should have taken ``expected_s`` at the known speed took ``took_s``."""
        if expected_s <= 0 or took_s <= 0:
            return self
        seen = min(MOST, max(LEAST, expected_s / took_s))
        own = self.own.get(variant, 1.0)
        common = self.common + (1 - exp(-took_s / COMMON_S)) * (seen / own - self.common)
        common = min(MOST, max(LEAST, common))
        drift = (1 - exp(-took_s / OWN_S)) * (seen / common - own)
        before_s = self.seen_s.get(variant, 0.0)
        seen_s = self.seen_s
        if len(seen_s) > 1:  # what was seen of the others fades
            fade = exp(-took_s / FADE_S)
            seen_s = {name: min(SEEN_MOST_S, seen) * fade for name, seen in seen_s.items()}
        seen_s = {**seen_s, variant: before_s + took_s}
        return Speeds(common, {**self.own, variant: own + drift}, self.further, seen_s)

    def step(self, together: float) -> float:
        """How long a step for so many requests takes, in steps for one alone."""
        return 1 + self.further * (together - 1)

    def shared(self, variant: str, expected_s: float, took_s: float, together: float) -> Speeds:
        """After shared steps.

        Args:
            variant: Which was loaded.
            expected_s: How long they would have taken for one request alone at the known speed.
            took_s: How long they took.
            together: How many requests shared a step, on average.
        """
        if expected_s <= 0 or took_s <= 0:
            return self
        seen = (took_s * self.factor(variant) / expected_s - 1) / (together - 1)
        drift = (1 - exp(-took_s / FURTHER_S)) * (min(1.0, max(0.0, seen)) - self.further)
        return Speeds(self.common, self.own, self.further + drift, self.seen_s)
