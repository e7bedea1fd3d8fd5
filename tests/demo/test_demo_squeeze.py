"""The squeezing process: real memory, and an end whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from trimtab.bench.squeeze import Squeeze
from trimtab.errors import WorkerError

MIB = 1024 * 1024


def gone(pid: int, within_s: float = 5.0) -> bool:
    """True once the process has ended (a zombie has)."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


async def test_it_really_holds_what_it_is_told_and_gives_it_back() -> None:
    squeeze = Squeeze()
    squeeze.start()
    try:
        assert squeeze.pid is not None
        process = psutil.Process(squeeze.pid)
        await squeeze.hold(0)
        before = process.memory_info().rss
        held = await squeeze.hold(64 * MIB)
        full = process.memory_info().rss
        await squeeze.hold(8 * MIB)
        less = process.memory_info().rss
    finally:
        await squeeze.stop()

    assert held == 64 * MIB
    assert full - before >= 63 * MIB
    assert less - before <= 10 * MIB
    assert gone(process.pid)


async def test_its_end_is_told_when_the_kernel_takes_it() -> None:
    squeeze = Squeeze()
    squeeze.start()
    try:
        await squeeze.hold(8 * MIB)
        assert squeeze.pid is not None
        os.kill(squeeze.pid, signal.SIGKILL)
        await asyncio.sleep(0.2)

        with pytest.raises(WorkerError, match="gone"):
            await squeeze.hold(16 * MIB)
    finally:
        await squeeze.stop()


def test_it_dies_with_the_demo_even_if_that_is_killed() -> None:
    script = """
import asyncio
from trimtab.bench.squeeze import Squeeze

async def main():
    squeeze = Squeeze()
    squeeze.start()
    await squeeze.hold(32 * 1024 * 1024)
    print(squeeze.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        alive = psutil.pid_exists(pid)
        parent.kill()

    assert alive
    assert gone(pid)
