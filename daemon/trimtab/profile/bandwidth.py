"""How fast this machine reads memory: the bound of decoding, measured.

`memchr` for a byte that isn't there reads a buffer once, at full width, and nothing else; ctypes
lets go of the interpreter's lock, so threads read at the same time.
"""

from __future__ import annotations

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Final

BUFFER_BYTES: Final = 256 * 1024 * 1024
SMALLEST_BYTES: Final = 16 * 1024 * 1024

_libc: Final = ctypes.CDLL(None)
_libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_libc.memchr.restype = ctypes.c_void_p


def buffer_bytes(available_bytes: int) -> int:
    """As much as shows memory rather than caches, and never more than an eighth of what is free."""
    return max(SMALLEST_BYTES, min(BUFFER_BYTES, available_bytes // 8))


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of the whole buffer.

    Attributes:
        bytes_s: Bytes a second, by the time that the slowest thread was on a core.
        wait_ratio: Share of the time on the wall in which it wasn't.
    """

    bytes_s: float
    wait_ratio: float


def read_bandwidth(threads: int, repeats: int, size: int) -> tuple[Read, ...]:
    """Memory read by so many threads, once for each repeat.

    Args:
        threads: Each reads its own part of the buffer.
        repeats: Samples.
        size: Of the buffer, in bytes.
    """
    part = size // threads // mmap.PAGESIZE * mmap.PAGESIZE
    with mmap.mmap(-1, part * threads) as memory, ThreadPoolExecutor(threads) as pool:
        hold = (ctypes.c_char * len(memory)).from_buffer(memory)
        start = ctypes.addressof(hold)
        ctypes.memset(start, 1, len(memory))  # pages that were never written are all one page
        parts = [(start + number * part, part) for number in range(threads)]
        samples = []
        for _ in range(repeats):
            begun_s = perf_counter()
            on_core_s = max(pool.map(_read_part, parts))
            wall_s = perf_counter() - begun_s
            samples.append(Read(part * threads / on_core_s, max(0.0, 1 - on_core_s / wall_s)))
        del hold
    return tuple(samples)


def _read_part(part: tuple[int, int]) -> float:
    """Seconds on a core that reading took."""
    begun_s = thread_time()
    _libc.memchr(part[0], 0, part[1])
    return max(1e-9, thread_time() - begun_s)
