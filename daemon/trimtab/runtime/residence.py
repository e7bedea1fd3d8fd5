"""The controller outlives everything else: in memory, and out of the OOM killer's way."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path
from typing import Final

OOM_SCORE: Final = -900
_MCL_CURRENT: Final = 1
_MCL_FUTURE: Final = 2
_MCL_ONFAULT: Final = 4
_MADV_COLLAPSE: Final = 25
_HUGE_BYTES: Final = 2 * 1024 * 1024


def lock_memory() -> str:
    """Keep every page that we touch in memory, so that a machine that swaps can still be steered.

    MCL_ONFAULT: without it each mapping, however sparse, would be filled at once. Only where
    nothing limits it (LimitMEMLOCK=infinity): under a limit a later allocation would fail.

    Returns:
        Why it was not done, in words; empty if it was.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if resource.RLIM_INFINITY not in (soft, hard):
        return f"locked memory is limited to {soft} bytes (LimitMEMLOCK=)"
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) != 0:
        return os.strerror(ctypes.get_errno())
    return ""


def gather_memory(proc_root: Path) -> str:
    """Have the kernel lay what we hold now into huge pages, where whole ones are held.

    A daemon at rest wakes up to thousands of pages that have not been used for seconds, each of
    which must be found again; in a virtual machine whose host takes back what is idle that is most
    of what a look at the sensors costs.

    Returns:
        Why it was not done, in words; empty if it was.
    """
    try:
        lines = (proc_root / "self" / "maps").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        return str(error)
    libc = ctypes.CDLL(None, use_errno=True)
    for begin, end in _whole_huge_pages(lines):
        pages = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
        if libc.madvise(*pages, _MADV_COLLAPSE) != 0:
            return os.strerror(ctypes.get_errno())
    return ""


def _whole_huge_pages(maps: list[str]) -> list[tuple[int, int]]:
    """Addresses of anonymous memory of ours, from the lines of a process's ``maps``."""
    found = []
    for line in maps:
        addresses, modes, _, _, inode, *name = line.split(maxsplit=5)
        if modes != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        low, high = (int(address, 16) for address in addresses.split("-"))
        begin, end = -(-low // _HUGE_BYTES) * _HUGE_BYTES, high // _HUGE_BYTES * _HUGE_BYTES
        if begin < end:
            found.append((begin, end))
    return found


def avoid_oom_killer(proc_root: Path) -> str:
    """Take ourselves out of the OOM killer's way; workers are put in it when they are started.

    Under systemd OOMScoreAdjust= has done it already.

    Returns:
        Why it was not done, in words; empty if it was.
    """
    file = proc_root / "self" / "oom_score_adj"
    try:
        if int(file.read_text()) > OOM_SCORE:
            file.write_text(str(OOM_SCORE))
    except (OSError, ValueError) as error:
        return str(error)
    return ""
