"""Masks that are wider than they have to be: what they hold, and that the engine doesn't mind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from worker_peer import TINY

from trimtab.worker.kv_cache import KvCache, new_segment
from trimtab.worker.kv_graph import KvGraph
from trimtab.worker.masks import STEP, Mask
from trimtab.worker.variant import read_variant

CAPACITY = 208  # no multiple of STEP
CONTEXT = 200


@given(
    runs=st.lists(
        st.lists(st.integers(1, CONTEXT), min_size=3, max_size=3), min_size=1, max_size=12
    ),
    steps=st.lists(st.integers(0, 20), min_size=12, max_size=12),
)
def test_each_row_has_ones_as_far_as_it_sees(runs: list[list[int]], steps: list[int]) -> None:
    mask = Mask(3, CONTEXT)
    for begun, count in zip(runs, steps, strict=False):
        for added in range(count + 1):
            ends = [min(end + added, CONTEXT) for end in begun]
            array = mask.of(ends, CAPACITY)
            width = array.shape[1]

            assert array.shape[0] == 3
            assert max(ends) <= width <= min(max(ends) + STEP - 1, CONTEXT)
            assert width == CONTEXT or width % STEP == 0
            assert array.tolist() == [[1] * end + [0] * (width - end) for end in ends]


def test_it_is_the_same_array_as_long_as_it_is_wide_enough() -> None:
    mask = Mask(1, 1024)
    arrays = [mask.of((end,), 1024) for end in range(1, STEP + 2)]

    assert all(array is arrays[0] for array in arrays[:STEP])
    assert arrays[STEP] is not arrays[0]


@pytest.mark.parametrize("variant", ["fp32", "int8", "int4"])
def test_zeros_behind_what_is_seen_change_no_bit(variant: str) -> None:
    facts = read_variant(Path(TINY / variant))
    graph = KvGraph(facts, 1, "model.indices.onnx", 256)
    exact, wide = _computed(graph, exactly=True), _computed(graph, exactly=False)

    for one, other in zip(exact, wide, strict=True):
        np.testing.assert_array_equal(one, other)


def _computed(graph: KvGraph, *, exactly: bool) -> list[NDArray[np.float32]]:
    """Logits of pieces of many sizes, then the keys and values of all layers."""
    capacity = graph.kv.shape.aligned_capacity(256, 4096)
    descriptor = new_segment(graph.kv.shape.segment_bytes(capacity))
    cache = KvCache(graph, descriptor, 0)
    os.close(descriptor)
    binding, mask = cache.binding_for(graph), Mask(1, 256)
    found: list[NDArray[np.float32]] = []
    for count in (50, 3, 1, 64, 1, 5, 1, 1, 33):
        first, end = cache.length, cache.length + count
        tokens = np.array([[(7 * n) % 500 + 4 for n in range(first, end)]], np.int64)
        logits = np.empty((1, count, 512), np.float32)
        seen = np.ones((1, end), np.int64) if exactly else mask.of((end,), capacity)
        binding.bind_tokens(tokens, seen)
        binding.bind_logits(logits, np.arange(count))
        binding.run()
        cache.length = end
        found.append(logits)
    found += [np.array(cache.plane(n)[:, : cache.length]) for n in range(cache.planes)]
    cache.close()
    return found
