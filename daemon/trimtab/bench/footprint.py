"""``trimtab bench footprint``: what the controller costs while nobody asks for anything.

A daemon with a model loaded and the default policy answers one chat, so that every module that
serving needs is imported, and is then left alone. The controller's process alone is looked at: the
engine is the worker's.

What a wake-up costs depends on the machine more than on what is done then: caches are cold, and a
virtual machine's memory may have been taken by its host meanwhile. So in the same minute this
process looks at memory of its own that it hasn't touched for a while, and tells what a page costs.
"""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, Final

from trimtab.bench.child_daemon import ChildDaemon, Setup
from trimtab.bench.machine import parse_fields
from trimtab.bench.paired import middle
from trimtab.bench.subject import bench_model, models
from trimtab.errors import WorkerError

READY_S: Final = 120.0
SETTLE_S: Final = 15.0
"""The daemon is at rest ten seconds after the last thing that happened."""

IDLE_S: Final = 60.0
QUICK_IDLE_S: Final = 2.0
CONTROL_LOOKS: Final = 2
"""As often as a daemon at rest takes a full look in a minute."""

CONTROL_PAGES: Final = 2048
"""About as many as such a look touches."""

POLICY: Final = "version: 1\nname: own\ndescription: The shipped one.\nextends: balanced\n"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process has used so far.

    Attributes:
        at_s: When it was looked at.
        cpu_s: Processor time of all its threads.
        wakeups: How often its threads went to sleep and were woken.
        rss_bytes: Resident memory.
        threads: How many it has.
    """

    at_s: float
    cpu_s: float
    wakeups: int
    rss_bytes: int
    threads: int


def run(quick: bool) -> dict[str, Any]:
    """Measure the idle controller.

    Args:
        quick: Two seconds instead of a minute: shows that it works.

    Raises:
        NoModelError: There is no model.
        WorkerError: The daemon ended.
    """
    return asyncio.run(_measure(quick))


async def _measure(quick: bool) -> dict[str, Any]:
    model = bench_model(quick)
    idle_s = QUICK_IDLE_S if quick else IDLE_S
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        daemon = ChildDaemon(Path(folder), Setup(models(), model.model_id, POLICY))
        try:
            await daemon.start(READY_S)
            await _chat(daemon, model.model_id)
            await asyncio.sleep(1.0 if quick else SETTLE_S)
            before = look(daemon.pid)
            cold_us = await _cold_page_us(idle_s)
            after = look(daemon.pid)
        finally:
            await daemon.stop()
    elapsed_s, wakeups = after.at_s - before.at_s, after.wakeups - before.wakeups
    return {
        "rss_mb": round(after.rss_bytes / 2**20, 1),
        "idle_cpu_percent": round((after.cpu_s - before.cpu_s) / elapsed_s * 100, 3),
        "wakeups_per_s": round(wakeups / elapsed_s, 2),
        "ms_per_wakeup": round((after.cpu_s - before.cpu_s) * 1000 / max(1, wakeups), 2),
        "cold_page_us": cold_us,
        "threads": after.threads,
        "rss_growth_kb": (after.rss_bytes - before.rss_bytes) // 1024,
        "model": model.model_id,
        "runs": {"idle_s": round(elapsed_s, 1)},
    }


async def _cold_page_us(idle_s: float) -> float:
    """Wait; processor time that it takes to look at a page that nobody touched meanwhile, in µs."""
    pages = mmap.mmap(-1, CONTROL_PAGES * mmap.PAGESIZE)
    with pages:
        for at in range(0, len(pages), mmap.PAGESIZE):
            pages[at] = 1
        costs = []
        for _ in range(CONTROL_LOOKS):
            await asyncio.sleep(idle_s / CONTROL_LOOKS)
            costs.append(_look_at(pages) - _look_at(pages))  # the second time all is warm
    return round(middle(costs) / CONTROL_PAGES * 1e6, 2)


def _look_at(pages: mmap.mmap) -> float:
    begun_s = thread_time()
    for at in range(0, len(pages), mmap.PAGESIZE):
        pages[at]
    return thread_time() - begun_s


async def _chat(daemon: ChildDaemon, model: str) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
    }
    async with daemon.client(timeout_s=60.0) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    if answer.is_error:
        raise WorkerError(f"the daemon refused a chat: {answer.text}")


def look(pid: int, proc_root: Path = Path("/proc")) -> Cost:
    """What a process has used so far.

    Raises:
        WorkerError: It is gone.
    """
    folder = proc_root / str(pid)
    try:
        status = parse_fields((folder / "status").read_text(encoding="utf-8"))
        tasks = [
            (
                (task / "schedstat").read_text(encoding="ascii"),
                parse_fields((task / "status").read_text(encoding="utf-8")),
            )
            for task in (folder / "task").iterdir()
        ]
    except OSError as error:
        raise WorkerError(f"the controller (process {pid}) is gone: {error.strerror}") from error
    return Cost(
        at_s=perf_counter(),
        cpu_s=sum(int(schedstat.split()[0]) for schedstat, _ in tasks) / 1e9,
        wakeups=sum(int(fields["voluntary_ctxt_switches"]) for _, fields in tasks),
        rss_bytes=int(status["VmRSS"].split()[0]) * 1024,
        threads=len(tasks),
    )
