"""How long an answer may become, from the answers to similar requests.

A request says how long its prompt is, and how long its answer may be at most. Past requests are
compared by both: the nearest quarter by |log prompt| + |log limit| gives six equally likely lengths
(the midpoints of its sixths). Where clients set one limit for everything, the limit tells nothing
apart, and only the prompt does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Final

MEMORY: Final = 160
SHARE: Final = 0.25
FEWEST: Final = 8
QUANTILES: Final = 6
NO_LIMIT: Final = 1024
LIMIT_WEIGHT: Final = 3.0
FIRST_GUESS: Final = (0.02, 0.06, 0.15, 0.3, 0.5, 0.8)


@dataclass(frozen=True, slots=True)
class Lengths:
    """What has been seen.

    Attributes:
        seen: (log prompt, log limit, tokens of the answer), oldest first.
    """

    seen: tuple[tuple[float, float, int], ...] = ()

    def with_answer(self, prompt: int, limit: int | None, tokens: int) -> Lengths:
        """With one more complete answer."""
        entry = (log(prompt + 1), log(limit or NO_LIMIT), tokens)
        return Lengths((*self.seen[-MEMORY + 1 :], entry))

    def guess(self, prompt: int, limit: int | None) -> tuple[float, ...]:
        """Equally likely lengths, rising; never over the limit."""
        most = limit or NO_LIMIT
        if len(self.seen) < FEWEST:
            return tuple(max(1.0, share * most) for share in FIRST_GUESS)
        log_prompt, log_limit = log(prompt + 1), log(most)
        distances = [
            abs(one - log_prompt) + LIMIT_WEIGHT * abs(other - log_limit)
            for one, other, _ in self.seen
        ]
        farthest = sorted(distances)[max(QUANTILES, int(SHARE * len(distances))) - 1]
        # All that are as near as the last of the quarter belong to it.
        tokens = sorted(
            [
                entry[2]
                for distance, entry in zip(distances, self.seen, strict=True)
                if distance <= farthest
            ]
        )
        last = len(tokens) - 1
        return tuple(
            [
                float(min(most, max(1, tokens[round((part + 0.5) / QUANTILES * last)])))
                for part in range(QUANTILES)
            ]
        )
