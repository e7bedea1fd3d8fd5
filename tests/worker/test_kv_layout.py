from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.domain.kv import KvShape

SMOLLM2 = KvShape(layers=30, kv_heads=3, position_bytes=256)
shapes = st.builds(
    KvShape,
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    position_bytes=st.sampled_from([8, 48, 64, 80, 256]),
)


def test_a_token_of_smollm2_takes_46080_bytes() -> None:
    assert SMOLLM2.token_bytes == 46_080
    assert SMOLLM2.segment_bytes(2048) == 2048 * 46_080
    assert SMOLLM2.capacity_of(2048 * 46_080) == 2048


def test_a_size_that_holds_no_whole_number_of_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of tokens"):
        SMOLLM2.capacity_of(46_081)


@given(shapes, st.integers(1, 300), st.sampled_from([4096, 16384, 65536]))
def test_an_aligned_capacity_makes_whole_pages_of_every_row(
    shape: KvShape, tokens: int, page: int
) -> None:
    capacity = shape.aligned_capacity(tokens, page)

    assert capacity >= tokens
    assert capacity * shape.position_bytes % page == 0
    assert (capacity - tokens) * shape.position_bytes < page * shape.position_bytes


@given(shapes, st.integers(1, 200), st.data())
def test_offsets_are_those_of_an_array(shape: KvShape, capacity: int, data: st.DataObject) -> None:
    plane = data.draw(st.integers(0, shape.planes - 1))
    head = data.draw(st.integers(0, shape.kv_heads - 1))
    position = data.draw(st.integers(0, capacity - 1))
    dimensions = (shape.planes, shape.kv_heads, capacity, shape.position_bytes)
    expected = int(np.ravel_multi_index((plane, head, position, 0), dimensions))

    assert shape.offset(plane, head, position, capacity) == expected


@given(shapes, st.integers(1, 400), st.data())
def test_punches_never_touch_a_position_that_is_kept(
    shape: KvShape, capacity: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, capacity))
    kept = np.zeros((shape.planes * shape.kv_heads, capacity, shape.position_bytes), bool)
    kept[:, :first] = True
    flat = kept.reshape(-1)
    spans = list(shape.punches(first, capacity, 4096))

    assert not any(flat[span.offset : span.offset + span.length].any() for span in spans)
    assert all(span.offset % 4096 == 0 and span.length % 4096 == 0 for span in spans)


def test_committed_bytes_and_punches_are_what_the_kernel_does() -> None:
    page = mmap.PAGESIZE
    shape = KvShape(layers=2, kv_heads=2, position_bytes=64)
    capacity = shape.aligned_capacity(500, page)
    descriptor = os.memfd_create("segment", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, shape.segment_bytes(capacity))
        for span in shape.rows(0, 300, capacity):
            os.pwrite(descriptor, b"k" * span.length, span.offset)
        written = os.fstat(descriptor).st_blocks * 512
    finally:
        os.close(descriptor)

    assert written == shape.committed_bytes(300, capacity, page)
    assert shape.committed_bytes(0, capacity, page) == 0


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_rows_of_whole_pages_are_counted_like_any_others(page: int) -> None:
    shape = KvShape(layers=2, kv_heads=3, position_bytes=192)
    capacity = shape.aligned_capacity(2000, page)
    for tokens in (0, 1, 21, 22, 85, 86, 1000, capacity):
        touched = {
            at // page
            for span in shape.rows(0, tokens, capacity)
            for at in (
                *range(span.offset, span.offset + span.length, page),
                span.offset + span.length - 1,
            )
        }

        assert shape.committed_bytes(tokens, capacity, page) == len(touched) * page


def test_rows_that_share_pages_are_counted_once() -> None:
    shape = KvShape(layers=1, kv_heads=2, position_bytes=64)

    assert shape.committed_bytes(16, 16, 4096) == 4096
