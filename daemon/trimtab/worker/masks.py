"""Attention masks that stay bound from one run to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

STEP: Final = 64
"""A mask grows by so many positions at a time."""


class Mask:
    """The mask of runs over the same number of conversations.

    What a conversation sees is told by its row's ones, and zeros behind them change nothing: so the
    array is a little wider than it has to be, and is the same one for up to `STEP` tokens.

    Args:
        rows: Conversations in a run.
        context: Most tokens of a conversation. The mask is no wider: the graph's tables of
            positions end there.
    """

    def __init__(self, rows: int, context: int) -> None:
        self._context = context
        self._mask: NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self._ends = [0] * rows

    def of(self, ends: Sequence[int], capacity: int) -> NDArray[np.int64]:
        """The mask of a run.

        Args:
            ends: Positions that each row sees, those of new tokens among them.
            capacity: Positions of each row's KV cache; the mask is no wider.

        Returns:
            Ones and zeros (rows, positions), in memory that the next run uses again.
        """
        last = max(ends)
        width = max(last, min(-(-last // STEP) * STEP, capacity, self._context))
        if width != self._mask.shape[1]:
            self._mask = np.zeros((len(ends), width), np.int64)
            self._ends = [0] * len(ends)
        for row, (end, before) in enumerate(zip(ends, self._ends, strict=True)):
            if end == before + 1:
                self._mask[row, before] = 1
            elif end != before:
                self._mask[row, :end] = 1
                self._mask[row, end:] = 0
            self._ends[row] = end
        return self._mask
