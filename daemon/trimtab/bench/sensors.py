"""``trimtab bench sensors``: what looking costs: a full snapshot, a million of them, 10 ms polling.

All of it runs in a process of its own, so that memory is the sensors' and nobody else's. Simulated
time goes on by a second with each snapshot, so that the slow sensors are asked as often as in a
daemon that ticks once a second, and their thread competes with the tick as it does there.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from trimtab.errors import TrimtabError
from trimtab.sensors import SensorConfig, SensorSuite

_PAUSE_S: Final = 0.002  # between two timed snapshots; back to back would find everything in cache
_POLL_S: Final = 0.01
_TICK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        timed: Snapshots that are timed one by one.
        warm: Snapshots before the memory is taken for the first time.
        ticks: Snapshots between that and the second time.
        poll_s: How long is polled.
    """

    timed: int
    warm: int
    ticks: int
    poll_s: float


FULL: Final = Size(timed=2000, warm=20_000, ticks=1_000_000, poll_s=30.0)
QUICK: Final = Size(timed=100, warm=200, ticks=2000, poll_s=1.0)


def run(quick: bool) -> dict[str, Any]:
    """Measures the sensors of this machine.

    Args:
        quick: A few thousand ticks: shows that it works, not how flat memory stays.

    Raises:
        TrimtabError: If the measuring process died.
    """
    size = QUICK if quick else FULL
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(theirs, size), name="trimtab-bench-sensors")
    process.start()
    theirs.close()
    try:
        result: dict[str, Any] = ours.recv()
    except EOFError as error:
        raise TrimtabError("the measuring process died", code="bench_failed") from error
    finally:
        process.join()
    return result | {"runs": asdict(size)}


def _measure(out: Connection, size: Size) -> None:
    """The measuring process."""
    suite = SensorSuite(SensorConfig(state_dir=Path("/tmp")))  # noqa: S108  (its disk is asked, no more)
    at_s = 0.0
    for _ in range(20):
        suite.snapshot(at_s, at_s)
        at_s += _TICK_S
    suite.settle(5.0)
    times_ms, at_s = _timed(suite, size.timed, at_s)
    cuts = quantiles(times_ms, n=100)
    polling = _polling(suite, size.poll_s, at_s)
    at_s = _ticks(suite, size.warm, at_s + size.poll_s)
    before = _rss_kb()
    _ticks(suite, size.ticks, at_s)
    after = _rss_kb()
    out.send(
        {
            "p50_ms": cuts[49],
            "p99_ms": cuts[98],
            "rss_growth_kb": after - before,
            "rss_kb": after,
            "ticks": size.ticks,
            "cpu_percent_at_10ms": polling["cpu_percent"],
            "poll_p50_us": polling["p50_us"],
            "signals": len(suite.snapshot(at_s, at_s).readings),
            "board": suite.board.name,
        }
    )
    suite.close()


def _timed(suite: SensorSuite, count: int, at_s: float) -> tuple[list[float], float]:
    """Milliseconds of each snapshot, with a pause between them."""
    times_ms = []
    for _ in range(count):
        time.sleep(_PAUSE_S)
        began = time.perf_counter()
        suite.snapshot(at_s, at_s)
        times_ms.append((time.perf_counter() - began) * 1000)
        at_s += _TICK_S
    return times_ms, at_s


def _polling(suite: SensorSuite, seconds: float, at_s: float) -> dict[str, float]:
    """Share of a core that 10 ms polling takes, a full snapshot each second included."""
    looks_us = []
    wall, cpu = time.perf_counter(), time.process_time()
    next_tick = wall
    while (now := time.perf_counter()) - wall < seconds:
        if now >= next_tick:
            suite.snapshot(at_s + now - wall, at_s + now - wall)
            next_tick += _TICK_S
        began = time.perf_counter()
        suite.memory_available(at_s + now - wall)
        looks_us.append((time.perf_counter() - began) * 1e6)
        time.sleep(_POLL_S)
    took = time.perf_counter() - wall
    return {
        "cpu_percent": (time.process_time() - cpu) / took * 100,
        "p50_us": sorted(looks_us)[len(looks_us) // 2],
    }


def _ticks(suite: SensorSuite, count: int, at_s: float) -> float:
    """Many snapshots as fast as they come; returns the time after them."""
    for _ in range(count):
        suite.snapshot(at_s, at_s)
        at_s += _TICK_S
    return at_s


def _rss_kb() -> int:
    """Resident memory of this process, measured after a collection."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
