"""Turning the keys of a KV cache to other positions, with numpy.

A key carries its position as a rotation of its pairs of numbers, by the position times the pair's
angle. So a key that is turned back by ``d`` positions is the key that the same vector would have
had there, up to rounding. Values carry no position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.models import RopeSpec

_FLOATS = (np.float32, np.float16)


def refusal(rope: RopeSpec | None, dtype: np.dtype[Any]) -> str:
    """Why keys of this kind can't be turned exactly, in words; empty if they can."""
    if dtype not in _FLOATS:
        return f"its KV cache is quantized ({dtype})"
    if rope is None:
        return "its positions follow no single base in all layers (scaled or partly missing rope)"
    return ""


class Rotation:
    """Turns keys back by a number of positions.

    Args:
        rope: How positions are turned into the keys.
        positions: How far back.
    """

    def __init__(self, rope: RopeSpec, positions: int) -> None:
        half = rope.rotary_dim // 2
        angles = positions * rope.theta ** (-np.arange(half) / half)
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)
        if rope.interleaved:
            self._first = slice(0, rope.rotary_dim, 2)
            self._second = slice(1, rope.rotary_dim, 2)
        else:
            self._first = slice(0, half)
            self._second = slice(half, rope.rotary_dim)

    def turn(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Keys (…, head size) as they are at the earlier positions; of the same type."""
        turned = keys.copy()
        first = keys[..., self._first].astype(np.float32, copy=False)
        second = keys[..., self._second].astype(np.float32, copy=False)
        turned[..., self._first] = first * self._cos + second * self._sin
        turned[..., self._second] = second * self._cos - first * self._sin
        return turned
