"""The price of a second of engine time, from what lately asked for it.

Over the last arrivals, λ solves (1/T) Σ max(0, max_v (q_v − λ·x_v)) = λ: what a server would earn
that takes each request it finds worth it, at the variant that suits it best, and is paid by the
second. Both sides meet once, since the left one falls as λ rises; Newton's steps reach the crossing
from below without leaving it, as the left side is convex.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WINDOW: Final = 48
STEPS: Final = 12
CLOSE: Final = 1e-5

Offer = tuple[tuple[float, float], ...]
"""What a request is worth and how long it takes, for each variant: ((quality·weight, s), …)."""


def solve(offers: Sequence[Offer], span_s: float, start: float = 0.0) -> float:
    """The price per second at which earnings per second equal it; 0 without offers.

    Args:
        offers: Of the window's requests.
        span_s: Over how long they arrived.
        start: Where to begin; any value of at least 0.
    """
    if not offers or span_s <= 0:
        return 0.0
    price = max(0.0, start)
    for _ in range(STEPS):
        earned, slope = 0.0, 0.0
        for offer in offers:
            best, best_s = 0.0, 0.0
            for value, seconds in offer:
                gain = value - price * seconds
                if gain > best:
                    best, best_s = gain, seconds
            earned += best
            slope += best_s
        gap = earned / span_s - price
        moved = gap / (1.0 + slope / span_s)
        price = max(0.0, price + moved)
        if abs(moved) < CLOSE:
            break
    return price


@dataclass(frozen=True, slots=True)
class Price:
    """The price, and what it is made of.

    Attributes:
        arrivals: (time, offer) of the last arrivals.
        asked: λ by the equation.
        earned: Earnings of the last `WINDOW` requests that ended: (time, value).
        since: Arrivals since λ was last solved.
    """

    arrivals: tuple[tuple[float, Offer], ...] = ()
    asked: float = 0.0
    earned: tuple[tuple[float, float], ...] = ()
    since: int = 0
