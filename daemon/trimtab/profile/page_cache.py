"""Dropping a variant's files from the page cache, and checking that they are gone."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def drop(folder: Path) -> float:
    """Ask the kernel to forget a folder's files.

    Returns:
        The share of their pages that is still in memory: a tmpfs, or somebody who maps them.

    Raises:
        OSError: A file can't be read.
    """
    kept = total = 0
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.stat().st_size == 0:
            continue
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # only clean pages can be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            resident, pages = _resident(descriptor, path.stat().st_size)
        finally:
            os.close(descriptor)
        kept += resident
        total += pages
    return kept / total if total else 0.0


def _resident(descriptor: int, size: int) -> tuple[int, int]:
    """Pages of a file in memory, and pages in all."""
    pages = -(-size // mmap.PAGESIZE)
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        hold = (ctypes.c_char * size).from_buffer(mapped)
        vector = ctypes.create_string_buffer(pages)
        if _libc.mincore(ctypes.addressof(hold), size, vector) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        del hold
    return sum(byte & 1 for byte in vector.raw[:pages]), pages
