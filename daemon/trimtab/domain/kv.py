"""Where everything lies in a KV segment: pure arithmetic, no memory is touched.

A segment is one file or memfd that holds the KV cache of one conversation, laid out as
``(planes, kv_heads, capacity, position_bytes)``, C order, with no header:

- plane ``2·layer`` holds the layer's keys, plane ``2·layer + 1`` its values;
- within a plane, each KV head has a row of ``capacity`` positions;
- a position is one head's key or value: ``position_bytes`` (head size × bytes per number).

So a plane is what the engine binds as ``past_key_values.L.key``, of shape (1, kv_heads, capacity,
head_size), and giving back the end of a context takes one punch for each plane and head.

Positions at or beyond the conversation's valid length are garbage. Page size is an argument
everywhere, since it isn't 4096 on every board.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A range of bytes in a segment.

    Attributes:
        offset: First byte.
        length: Bytes.
    """

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class KvShape:
    """The shape of a model's KV cache, without its capacity.

    Attributes:
        layers: Layers that keep a KV cache.
        kv_heads: KV heads of a layer.
        position_bytes: Bytes of one head's key at one position.
    """

    layers: int
    kv_heads: int
    position_bytes: int

    @property
    def planes(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers

    @property
    def token_bytes(self) -> int:
        """What one token adds to the cache."""
        return self.planes * self.kv_heads * self.position_bytes

    def plane_bytes(self, capacity: int) -> int:
        """Bytes of one plane: all positions of all heads of one side of a layer."""
        return self.kv_heads * capacity * self.position_bytes

    def segment_bytes(self, capacity: int) -> int:
        """Size of a segment's file. A sparse one commits far less until it is written."""
        return self.planes * self.plane_bytes(capacity)

    def offset(self, plane: int, head: int, position: int, capacity: int) -> int:
        """Offset of one position of one head in one plane."""
        return ((plane * self.kv_heads + head) * capacity + position) * self.position_bytes

    def aligned_capacity(self, tokens: int, page_bytes: int) -> int:
        """The smallest capacity of at least ``tokens`` whose rows are whole pages.

        Rows of whole pages let a segment be woven into a batch (planes are mapped one by one) and
        let every page of a cut-off context be given back.
        """
        step = page_bytes // math.gcd(page_bytes, self.position_bytes)
        return -(-tokens // step) * step

    def tokens_within(self, size_bytes: int, page_bytes: int) -> int:
        """How many positions so much memory holds, in rows of whole pages."""
        pages = max(0, size_bytes) // (self.planes * self.kv_heads * page_bytes)
        return pages * page_bytes // self.position_bytes

    def filled(self, tokens: int, page_bytes: int) -> int:
        """So many positions, and as many more as have room in their pages."""
        pages = -(-tokens * self.position_bytes // page_bytes)
        return pages * page_bytes // self.position_bytes

    def capacity_of(self, segment_bytes: int) -> int:
        """The capacity of a segment of that size.

        Raises:
            ValueError: No whole number of positions makes that size.
        """
        capacity, rest = divmod(segment_bytes, self.token_bytes)
        if rest or capacity < 1:
            raise ValueError(
                f"a segment of {segment_bytes} bytes doesn't hold a whole number of tokens "
                f"of {self.token_bytes} bytes"
            )
        return capacity

    def rows(self, first: int, end: int, capacity: int) -> Iterator[Span]:
        """The bytes of positions ``first`` up to ``end``: one span for each plane and head."""
        length = (end - first) * self.position_bytes
        if length <= 0:
            return
        for row in range(self.planes * self.kv_heads):
            yield Span((row * capacity + first) * self.position_bytes, length)

    def punches(self, first: int, capacity: int, page_bytes: int) -> Iterator[Span]:
        """Whole pages that hold nothing but positions from ``first`` on, to be punched.

        A page that is shared with a position below ``first``, or with the next row, stays.
        """
        for span in self.rows(first, capacity, capacity):
            start = -(-span.offset // page_bytes) * page_bytes
            end = (span.offset + span.length) // page_bytes * page_bytes
            if end > start:
                yield Span(start, end - start)

    def committed_bytes(self, tokens: int, capacity: int, page_bytes: int) -> int:
        """Memory that a segment commits once ``tokens`` positions have been written.

        Counts each touched page once, rows that share a page included.
        """
        if capacity * self.position_bytes % page_bytes == 0:  # no two rows share one
            row_pages = -(-max(0, tokens) * self.position_bytes // page_bytes)
            return self.planes * self.kv_heads * row_pages * page_bytes
        pages, last = 0, -1
        for span in self.rows(0, tokens, capacity):
            first_page = max(span.offset // page_bytes, last + 1)
            last_page = (span.offset + span.length - 1) // page_bytes
            if last_page >= first_page:
                pages += last_page - first_page + 1
                last = last_page
        return pages * page_bytes
