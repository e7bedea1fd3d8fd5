"""This process's memory: how much it holds, and giving back what it doesn't use."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")


def resident_bytes(kv_bytes: int = 0) -> int:
    """What this process holds; 0 if the kernel doesn't tell.

    Pages of KV segments are mapped twice while they are woven into a batch, and the kernel counts
    each mapping. They are left out, and what the segments really take is added.

    Args:
        kv_bytes: Bytes that the open segments take.
    """
    try:
        status = _STATUS.read_text(encoding="ascii")
    except OSError:
        return 0
    return private_bytes(status) + kv_bytes


def private_bytes(status: str) -> int:
    """Anonymous and file-backed resident memory, from the text of ``/proc/PID/status``."""
    kilobytes = 0
    for line in status.splitlines():
        field, _, value = line.partition(":")
        if field in ("RssAnon", "RssFile"):
            kilobytes += int(value.split()[0])
    return kilobytes * 1024


def give_back_free_memory() -> None:
    """Have the C library return what has been freed; where it can't (musl), nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
