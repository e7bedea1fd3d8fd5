"""A process that keeps one core busy, to see what the engine does beside it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Final

from trimtab.workers.process import ChildProcess

# It dies with us (PR_SET_PDEATHSIG, 9 = SIGKILL), and has a core of its own.
_PROGRAM: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(); "
    "os.sched_setaffinity(0, {int(sys.argv[2])})\n"
    "while True: pass"
)


@contextlib.asynccontextmanager
async def stolen_core(core: int | None = None) -> AsyncIterator[None]:
    """One core is busy as long as this lasts.

    Args:
        core: Which; None: the last of those that this process may use.

    Raises:
        WorkerError: The process can't be started.
    """
    if core is None:
        core = max(os.sched_getaffinity(0))
    argv = [sys.executable, "-S", "-c", _PROGRAM, str(os.getpid()), str(core)]
    child = ChildProcess(argv, (), lambda _: None, lambda _: None)
    try:
        yield
    finally:
        await child.end(0.0)
