"""This process's memory: how much it holds, and giving back what it doesn't use."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """RSS of this process; 0 if the kernel doesn't tell."""
    try:
        fields = _STATM.read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back_free_memory() -> None:
    """Have the C library return what has been freed; where it can't (musl), nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
