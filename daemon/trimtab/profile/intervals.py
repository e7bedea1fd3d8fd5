"""Means and their 95 % intervals over text, where neighbouring tokens aren't independent. Pure.

Tokens are taken together in blocks; blocks are nearly independent, so that the spread of their
means gives the error of the whole (batch means). Small numbers of blocks take Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_T: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
_T_MANY: Final = ((15, 2.13), (20, 2.09), (30, 2.04), (60, 2.00))
_NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True)
class Block:
    """Some neighbouring tokens.

    Attributes:
        tokens: How many.
        nll: Sum of their surprise, in nats.
        kl: Sum of their divergence from the best variant.
        same: How many have the best variant's likeliest token.
    """

    tokens: int
    nll: float
    kl: float
    same: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(sums: Sequence[float], counts: Sequence[int]) -> Interval:
    """The mean of a quantity for each token, given its sum and the tokens of each block.

    One block says nothing about its error: the interval is then the mean alone.
    """
    total = sum(counts)
    mean = sum(sums) / total
    if len(sums) < 2:
        return Interval(mean, mean, mean)
    average = total / len(sums)
    squares = sum((s - mean * c) ** 2 for s, c in zip(sums, counts, strict=True))
    error = math.sqrt(squares / (len(sums) - 1) / len(sums)) / average
    half = student(len(sums) - 1) * error
    return Interval(mean, mean - half, mean + half)


def student(freedom: int) -> float:
    """The factor of a two-sided 95 % interval."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return next((t for limit, t in _T_MANY if freedom <= limit), _NORMAL)


def wilson(right: int, asked: int) -> Interval:
    """The share of right answers, with Wilson's interval."""
    if asked == 0:
        return Interval(0.0, 0.0, 1.0)
    share = right / asked
    z = _NORMAL
    middle = (share + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z / (1 + z * z / asked) * math.sqrt(share * (1 - share) / asked + (z / (2 * asked)) ** 2)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))
