"""Memory that is mapped where we say: segments, and the arenas that they are woven into.

Python's own mmap can't place one mapping inside another, which is what lets the segments of several
conversations lie in one array without a copy.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

from trimtab.errors import EngineError

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_PROT_NONE: Final = 0
_FAILED: Final = ctypes.c_void_p(-1).value

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Mapping:
    """A range of addresses that is ours.

    Made by `map_file` or `reserve`; it stays until `close`.

    Attributes:
        address: Its first byte; 0 once it is closed.
        size: Its length in bytes.
    """

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size

    def place(self, at: int, descriptor: int, offset: int, size: int) -> None:
        """Map a part of a file into this range, in the place of what was there.

        Args:
            at: First byte within the range, a multiple of the page size.
            descriptor: The file.
            offset: First byte within the file, a multiple of the page size.
            size: Bytes.

        Raises:
            EngineError: The kernel refuses.
        """
        if not 0 <= at <= self.size - size:
            raise EngineError(f"{size} bytes at {at} are outside a mapping of {self.size} bytes")
        _map(self.address + at, size, mmap.MAP_SHARED | _MAP_FIXED, descriptor, offset)

    def close(self) -> None:
        """Unmap it; whatever still points into it is void."""
        if self.address:
            _libc.munmap(self.address, self.size)
            self.address = 0


def map_file(descriptor: int, size: int) -> Mapping:
    """Map the beginning of a file, shared with whoever else maps it.

    Raises:
        EngineError: The file is shorter (touching it would end the process), or the kernel refuses.
    """
    if os.fstat(descriptor).st_size < size:
        raise EngineError(f"the segment is shorter than {size} bytes", code="segment_damaged")
    return Mapping(_map(None, size, mmap.MAP_SHARED, descriptor, 0), size)


def reserve(size: int) -> Mapping:
    """A range of addresses with nothing behind it yet, that must not be touched.

    Without access rights it counts for nothing where the kernel limits what is promised.

    Raises:
        EngineError: The kernel refuses.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return Mapping(_map(None, size, flags, -1, 0, _PROT_NONE), size)


def _map(
    address: int | None,
    size: int,
    flags: int,
    descriptor: int,
    offset: int,
    protection: int = mmap.PROT_READ | mmap.PROT_WRITE,
) -> int:
    found = _libc.mmap(address, size, protection, flags, descriptor, offset)
    if found is None or found == _FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise EngineError(f"{size} bytes can't be mapped: {reason}", code="out_of_memory")
    return int(found)
