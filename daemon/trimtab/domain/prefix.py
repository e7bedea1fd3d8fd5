"""What two sequences of token ids have in common at their beginning."""

from __future__ import annotations

from array import array
from typing import TypeVar

Tokens = TypeVar("Tokens", list[int], "array[int]")


def common_prefix(one: Tokens, other: Tokens) -> int:
    """Length of the longest common prefix, by bisection over comparisons of slices."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
