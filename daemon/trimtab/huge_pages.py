"""Memory that is held anyway, laid into huge pages.

The processor finds a page of 2 MiB as fast as one of 4 KiB, and knows the way to a few thousand of
either. A pass of a model reads all of its weights: with small pages it looks up the way to each of
them again, which takes up to a fifth of the time. Hardly more is held: only what is there but for a
few holes is laid together, one huge page after the other, so that it can be stopped at any time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HUGE_BYTES: Final = 2 * 1024 * 1024
_PAGE_BYTES: Final = 4096
_PAGES: Final = HUGE_BYTES // _PAGE_BYTES
_MOST_HOLES: Final = _PAGES // 16
"""Pages of one huge page that may be missing, and are held from then on."""

_MADV_COLLAPSE: Final = 25
_MAPS: Final = Path("/proc/self/maps")


def lay_into_huge_pages(maps: Path = _MAPS) -> Iterator[int]:
    """Lay this process's own memory together, a huge page with each step.

    Where the kernel can't (before 6.1, or without huge pages) it ends at once.

    Yields:
        The bytes of each step, as they are laid.
    """
    try:
        lines = maps.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for address in _whole_huge_pages(lines):
        pages = ctypes.c_void_p(address), ctypes.c_size_t(HUGE_BYTES)
        there = (ctypes.c_ubyte * _PAGES)()
        if libc.mincore(*pages, there) != 0 or bytes(there).count(0) > _MOST_HOLES:
            continue
        if libc.madvise(*pages, _MADV_COLLAPSE) != 0:
            return
        yield HUGE_BYTES


def _whole_huge_pages(maps: list[str]) -> Iterator[int]:
    """Addresses in anonymous memory, from the lines of a process's ``maps``."""
    for line in maps:
        addresses, modes, _, _, inode, *name = line.split(maxsplit=5)
        if modes != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        low, high = (int(address, 16) for address in addresses.split("-"))
        first = -(-low // HUGE_BYTES) * HUGE_BYTES
        yield from range(first, high - HUGE_BYTES + 1, HUGE_BYTES)
