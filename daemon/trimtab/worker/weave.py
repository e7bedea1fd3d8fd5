"""Segments of several conversations as one array, without copying a byte.

The engine decodes a batch from arrays (batch, heads, capacity, size), one for each plane. Each
conversation's planes are mapped into an arena's rows a second time, so what the batch writes is in
the segments at once, and the batch can be another one at the next step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.worker.kv_cache import KvCache
from trimtab.worker.kv_graph import FIRST_ROW, KvGraph
from trimtab.worker.mapping import Mapping, reserve
from trimtab.worker.masks import Mask


class Weave:
    """A batch of conversations that can be decoded in one run.

    Args:
        graph: Whose caches they are.
        caches: At least two, of the same capacity, whose planes are whole pages.
        vocabulary: Number of token ids.
        context: Most tokens of a conversation.

    Raises:
        EngineError: The kernel refuses a mapping.
        MemoryError: There is no memory for its logits; nothing is left mapped.
    """

    def __init__(
        self, graph: KvGraph, caches: Sequence[KvCache], vocabulary: int, context: int
    ) -> None:
        self._caches = tuple(caches)
        shape, capacity = graph.kv.shape, caches[0].capacity
        plane_bytes = shape.plane_bytes(capacity)
        rows = len(caches)
        self._arena: Mapping = reserve(rows * shape.segment_bytes(capacity))
        try:
            for plane in range(shape.planes):
                for row, cache in enumerate(caches):
                    at = (plane * rows + row) * plane_bytes
                    self._arena.place(at, cache.descriptor, plane * plane_bytes, plane_bytes)
            self._binding = graph.bind_cache(self._arena.address, rows, capacity)
            self._tokens = np.zeros((rows, 1), np.int64)
            self._mask = Mask(rows, context)
            self._logits = np.empty((rows, 1, vocabulary), np.float32)
            self._rows = [row[0] for row in self._logits]
            self._binding.bind_logits(self._logits, FIRST_ROW)
        except BaseException:
            self._arena.close()
            raise

    @property
    def caches(self) -> tuple[KvCache, ...]:
        """The conversations, row by row."""
        return self._caches

    def step(self, tokens: Sequence[int]) -> Sequence[NDArray[np.float32]]:
        """Append one token to each conversation.

        Args:
            tokens: One for each row.

        Returns:
            Logits (vocabulary) for each row, in memory that the next step uses again.

        Raises:
            EngineError: The engine failed; no conversation has moved.
        """
        self._tokens[:, 0] = tokens
        ends = [cache.length + 1 for cache in self._caches]
        self._binding.bind_tokens(self._tokens, self._mask.of(ends, self._caches[0].capacity))
        self._binding.run()
        for cache in self._caches:
            cache.length += 1
        return self._rows

    def close(self) -> None:
        """Unmap the arena, for good; the segments keep what is in them."""
        self._arena.close()
