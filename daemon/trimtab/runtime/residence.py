"""The controller outlives everything else: in memory, and out of the OOM killer's way."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path
from typing import Final

OOM_SCORE: Final = -1000
"""Never taken.

With any higher score it is the second choice within a group, and under a memory limit the kernel
may choose again before a killed worker's pages are back (Linux 6.1 took the controller 4 ms later).
"""
_MCL_CURRENT: Final = 1
_MCL_FUTURE: Final = 2
_MCL_ONFAULT: Final = 4


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
