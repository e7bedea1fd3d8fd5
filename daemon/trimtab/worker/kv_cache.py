"""One conversation's KV cache, in memory that another process can go on with."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import EngineError
from trimtab.worker.kv_graph import Binding, KvGraph
from trimtab.worker.mapping import Mapping, map_file
from trimtab.workers.segment_file import is_sealed, make_segment_file


class KvCache:
    """A segment, mapped, and bound to the graph.

    Lowering `length` is all that going back takes. Positions from it on are garbage.

    Args:
        graph: Whose cache it is.
        descriptor: The segment; the cache keeps a duplicate of it.
        valid: Tokens whose KV counts.

    Attributes:
        capacity: Positions that it has.
        length: Tokens that are in it and count.

    Raises:
        EngineError: The segment's size is none that the graph can use, or it can't be mapped.
    """

    def __init__(self, graph: KvGraph, descriptor: int, valid: int) -> None:
        shape = self._shape = graph.kv.shape
        self._dtype = graph.kv.dtype
        size = os.fstat(descriptor).st_size
        try:
            self.capacity = shape.capacity_of(size)
        except ValueError as error:
            raise EngineError(f"the segment is of another model: {error}") from error
        if valid > self.capacity:
            raise EngineError(f"the segment has {self.capacity} positions, not {valid}")
        self.length = valid
        self._descriptor = _another(descriptor)
        try:
            self._mapping: Mapping = map_file(descriptor, size)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._in_memory = _is_memory(descriptor)
        self._bindings: dict[KvGraph, Binding] = {}

    @property
    def planes(self) -> int:
        """Keys and values of all layers."""
        return self._shape.planes

    def plane(self, number: int) -> NDArray[Any]:
        """The keys (even numbers) or values of a layer: (heads, capacity, size).

        Not to be held any longer than the cache is open.
        """
        count = self._shape.plane_bytes(self.capacity)
        memory = (ctypes.c_ubyte * count).from_address(self._mapping.address + number * count)
        numbers: NDArray[Any] = np.frombuffer(memoryview(memory), self._dtype)
        return numbers.reshape(self._shape.kv_heads, self.capacity, -1)

    @property
    def descriptor(self) -> int:
        """Of the segment."""
        return self._descriptor

    @property
    def closed(self) -> bool:
        """True once nothing of it may be used."""
        return self._descriptor < 0

    @property
    def committed_bytes(self) -> int:
        """Memory that the segment takes now; 0 for a file on a disk, whose pages can be dropped."""
        return os.fstat(self._descriptor).st_blocks * 512 if self._in_memory else 0

    def binding_for(self, graph: KvGraph) -> Binding:
        """The engine's binding of this cache alone to a graph: the target's, or a draft's."""
        binding = self._bindings.get(graph)
        if binding is None:
            binding = graph.bind_cache(self._mapping.address, 1, self.capacity)
            self._bindings[graph] = binding
        return binding

    def unbind(self, graph: KvGraph) -> None:
        """Let go of a graph that won't be run any more."""
        self._bindings.pop(graph, None)

    def close(self) -> None:
        """Unmap the segment; its content stays as long as somebody holds a descriptor."""
        if not self.closed:
            self._bindings.clear()
            self._mapping.close()
            os.close(self._descriptor)
            self._descriptor = -1


def _another(descriptor: int) -> int:
    try:
        return os.dup(descriptor)
    except OSError as error:
        raise EngineError(
            f"the segment can't be held: {error.strerror}", code="out_of_descriptors"
        ) from error


def _is_memory(descriptor: int) -> bool:
    """True for a memfd or a file on a tmpfs: only these can be sealed."""
    try:
        is_sealed(descriptor)
    except OSError:
        return False
    return True


def new_segment(size: int) -> int:
    """A sealed memfd of that size, with nothing committed; returns its descriptor.

    Raises:
        EngineError: The kernel refuses.
    """
    try:
        return make_segment_file(size)
    except OSError as error:
        raise EngineError(
            f"a KV cache of {size} bytes can't be made: {error.strerror}", code="out_of_memory"
        ) from error
