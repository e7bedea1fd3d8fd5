"""KV segments: the cache of one conversation as a descriptor that the controller owns.

The controller never maps one: it sizes, seals, punches, copies and measures through descriptors
(ftruncate, fcntl, fallocate, sendfile, fstat). Workers map them. A segment outlives any worker, so
killing a worker gives no KV back: that takes `cut` or `close`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

from trimtab.domain.kv import KvShape
from trimtab.errors import ServingError, StateError
from trimtab.workers.segment_file import is_sealed, make_segment_file

_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2
_BLOCK_BYTES: Final = 512

_libc: Final = ctypes.CDLL(None, use_errno=True)
_fallocate: Final = _libc.fallocate64 if hasattr(_libc, "fallocate64") else _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Segment:
    """The KV cache of one conversation, in a file of `segment_file`'s kind.

    Args:
        shape: Of the model's KV cache.
        tokens: How many it must be able to hold; rounded up to whole pages per row.

    Raises:
        ServingError: The kernel gives no memory or no descriptor.

    Attributes:
        on_disk: Whether it is a file, whose pages the kernel can take.
    """

    on_disk = False

    def __init__(self, shape: KvShape, tokens: int) -> None:
        self.shape = shape
        self.capacity = self.capacity_for(shape, tokens)
        self.size_bytes = shape.segment_bytes(self.capacity)
        try:
            self._descriptor = make_segment_file(self.size_bytes)
        except OSError as error:
            raise _refused(error) from error

    @staticmethod
    def capacity_for(shape: KvShape, tokens: int) -> int:
        """Positions that a segment for so many tokens has room for, on this machine."""
        return shape.aligned_capacity(tokens, mmap.PAGESIZE)

    @classmethod
    def adopt(cls, shape: KvShape, capacity: int, descriptor: int) -> Segment:
        """A segment that an earlier controller made.

        Args:
            shape: Of the model's KV cache.
            capacity: Positions that it has room for.
            descriptor: Ours from now on, unless this fails.

        Raises:
            StateError: It isn't such a segment.
        """
        size_bytes = shape.segment_bytes(capacity)
        try:
            right = is_sealed(descriptor) and os.fstat(descriptor).st_size == size_bytes
        except OSError as error:
            raise StateError(f"it is no segment: {error.strerror}") from error
        if not right:
            raise StateError("its segment has another size, or isn't sealed")
        adopted = cls.__new__(cls)
        adopted.shape = shape
        adopted.capacity = capacity
        adopted.size_bytes = size_bytes
        adopted._descriptor = descriptor
        return adopted

    @property
    def most_tokens(self) -> int:
        """Positions that may be written."""
        return self.capacity

    @property
    def descriptor(self) -> int:
        """To be passed to a worker; it stays ours. -1 once it is closed."""
        return self._descriptor

    def committed_bytes(self) -> int:
        """Memory that it really takes now, as the kernel counts it."""
        if self._descriptor < 0:
            return 0
        return os.fstat(self._descriptor).st_blocks * _BLOCK_BYTES

    def predicted_bytes(self, tokens: int) -> int:
        """What it takes with so many positions written, in whole pages."""
        return self.shape.committed_bytes(tokens, self.capacity, mmap.PAGESIZE)

    def packed_bytes(self, tokens: int) -> int:
        """What so many positions take one after the other, without the rest of their pages."""
        return tokens * self.shape.token_bytes

    def cut(self, tokens: int) -> int:
        """Give back the memory of all positions from ``tokens`` on.

        Returns:
            Bytes given back, measured.

        Raises:
            ServingError: The kernel refuses.
        """
        before = self.committed_bytes()
        try:
            if tokens <= 0:
                punch(self._descriptor, 0, self.size_bytes)
            else:
                for span in self.shape.punches(tokens, self.capacity, mmap.PAGESIZE):
                    punch(self._descriptor, span.offset, span.length)
        except OSError as error:
            raise _refused(error) from error
        return before - self.committed_bytes()

    def reached(self, tokens: int) -> None:
        """Its first positions have been written: in memory that wears nothing."""

    def copy_into(self, other: Segment, tokens: int) -> None:
        """Copy the first positions into another segment of the same shape and capacity.

        Blocks for some ten milliseconds per thousand tokens: call it off the loop.

        Raises:
            ServingError: The kernel refuses, or there is no memory.
        """
        try:
            for span in self.shape.rows(0, tokens, self.capacity):
                self._copy_span(other, span.offset, span.length)
        except OSError as error:
            raise _refused(error) from error

    def again(self) -> Segment:
        """The same memory under a descriptor of its own, which stays when this one is closed.

        Raises:
            ServingError: There is no descriptor left.
        """
        try:
            return Segment.adopt(self.shape, self.capacity, os.dup(self._descriptor))
        except OSError as error:
            raise _refused(error) from error

    def close(self) -> None:
        """Give everything back as soon as no worker maps it any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _copy_span(self, other: Segment, offset: int, length: int) -> None:
        os.lseek(other._descriptor, offset, os.SEEK_SET)
        end = offset + length
        while offset < end:
            copied = os.sendfile(other._descriptor, self._descriptor, offset, end - offset)
            if copied == 0:
                raise OSError(5, "the segment ended early")
            offset += copied


def punch(descriptor: int, offset: int, length: int) -> None:
    """Give back what a range of a file takes; its size stays.

    Raises:
        OSError: The kernel refuses.
    """
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    if _fallocate(descriptor, mode, offset, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _refused(error: OSError) -> ServingError:
    return ServingError(
        f"there is no room for a conversation's KV cache: {error.strerror}",
        code="kv_unavailable",
        retry_after_s=5,
    )
