"""Two things compared in turn, so that what disturbs the machine disturbs both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from statistics import median
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def in_turn(
    first: Callable[[int], Awaitable[A]], second: Callable[[int], Awaitable[B]], pairs: int
) -> list[tuple[A, B]]:
    """Run both so many times in the order A B B A, and so on.

    Args:
        first: Runs A; told the number of the pair.
        second: Runs B.
        pairs: How many.
    """
    measured: list[tuple[A, B]] = []
    for pair in range(pairs):
        if pair % 2 == 0:
            a = await first(pair)
            b = await second(pair)
        else:
            b = await second(pair)
            a = await first(pair)
        measured.append((a, b))
    return measured


def middle(values: Sequence[float], digits: int = 4) -> float:
    """The median, rounded."""
    return round(median(values), digits)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so many are not above: the nearest rank, none between two."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float], digits: int = 4) -> list[float]:
    """Least and greatest, rounded."""
    return [round(min(values), digits), round(max(values), digits)]
