"""One run of ``trimtab bench live``: a daemon, its requests, and what is taken from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Final

from trimtab.bench.child_daemon import ChildDaemon, Setup
from trimtab.bench.live_load import Sent, Slo, Speed, send_all
from trimtab.bench.machine import available_bytes
from trimtab.bench.overhead import split_cores
from trimtab.bench.squeeze import Squeeze
from trimtab.bench.subject import models
from trimtab.domain.models import ModelSpec
from trimtab.profile.burner import stolen_core
from trimtab.simulate.traces import Trace

MIB: Final = 1024 * 1024
CONTEXT_TOKENS: Final = 512
READY_S: Final = 120.0
LOOK_S: Final = 0.25
SECOND: Final = (0.15, 0.27)
CORE: Final = (0.35, 0.60)
LEAST: Final = (0.70, 0.85)
BAND_BYTES: Final = 8 * MIB
KV_BYTES: Final = 16 * MIB
"""What running conversations take, about."""

SPARE_BYTES: Final = 150 * MIB
"""Beyond what the largest variant needs while nothing is taken."""

BALLAST_BYTES: Final = 3072 * MIB
"""What another process holds all the time, and gives back where memory is slow to return: after the
end of a worker of 700 MiB a virtual machine's host kept 400 MiB of it for half a minute."""

SLACK_BYTES: Final = 4 * MIB
CONTROLLER: Final = "trimtab"


@dataclass(frozen=True, slots=True)
class Ground:
    """What all runs have in common.

    Attributes:
        model: What is served.
        needs: What a worker holds, by variant, as measured here.
        headroom_bytes: The memory limit.
        speed: Of the most precise variant here.
        load: The requests.
        slo: What they must reach.
        length_s: Of a run.
        most_taken_bytes: No more memory than this is taken by the other process.
    """

    model: ModelSpec
    needs: Mapping[str, int]
    headroom_bytes: int
    speed: Speed
    load: Trace
    slo: Slo
    length_s: float
    most_taken_bytes: int = 6144 * MIB

    def room_bytes(self, share: float) -> int:
        """What the others leave for the worker and what is to stay free, at this share of a run."""
        sizes = sorted(self.needs.values(), reverse=True)
        if SECOND[0] <= share < SECOND[1]:
            worker = (sizes[0] + sizes[1]) // 2
        elif LEAST[0] <= share < LEAST[1]:
            worker = (sizes[-1] + sizes[-2]) // 2
        else:
            worker = sizes[0] + SPARE_BYTES
        return self.headroom_bytes + KV_BYTES + BAND_BYTES + worker


@dataclass(slots=True)
class Outcome:
    """What came of one subject, over all rounds.

    Attributes:
        sent: Every request.
        short_s: Time in which less memory was available than the limit says.
        served: Operating points, by how long each was in force.
        switches: Changes of variant while requests came.
    """

    sent: list[Sent] = field(default_factory=list)
    short_s: float = 0.0
    served: Counter[str] = field(default_factory=Counter)
    switches: int = 0


def limit_for(needs: Mapping[str, int], base_bytes: int) -> int:
    """The memory limit that the largest variant keeps, with some to spare.

    Args:
        needs: What a worker holds, by variant.
        base_bytes: Memory that is available while a daemon has nothing loaded.
    """
    return base_bytes - max(needs.values()) - KV_BYTES - SPARE_BYTES - BAND_BYTES - BALLAST_BYTES


def setup_for(model: ModelSpec, variants: Sequence[str], slo: Slo, headroom_bytes: int) -> Setup:
    """A daemon that may take these variants, under the limit and the objective of all runs."""
    policy = f"""\
version: 1
name: own
description: The benchmark of the whole daemon. Memory and latency hold, accuracy gives.
protect: [memory, latency]
sacrifice: accuracy
slo: {{ttft_p95: {slo.ttft_s:.3f}s, tpot_p95: {slo.tpot_s:.4f}s, window: 60s}}
limits:
  memory: {{headroom: {headroom_bytes}B, leave: {headroom_bytes + BAND_BYTES}B}}
floor: {{context: 256}}
knobs:
  variant: [{", ".join(variants)}]
  context: {{min: {CONTEXT_TOKENS}, max: {CONTEXT_TOKENS}}}
  speculation: [off]
stability: {{dwell: 8s, cooldown: 2s, switches_per_hour: 200}}
admission: {{queue: 64, max_wait: 20s, conversations: 4}}
kv: {{pool: 64MiB}}
"""
    return Setup(models(), model.model_id, policy, threads=1)


async def serve(ground: Ground, name: str, outcome: Outcome) -> None:
    """One daemon through all requests and disturbances.

    Args:
        ground: What all runs have in common.
        name: The variant that may be taken, or `CONTROLLER` for all.
        outcome: Is added to.
    """
    names = [variant.name for variant in ground.model.variants]
    allowed = names if name == CONTROLLER else [name]
    squeeze = Squeeze()
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        setup = setup_for(ground.model, allowed, ground.slo, ground.headroom_bytes)
        async with running(Path(folder), setup) as daemon:
            squeeze.start()
            if len(allowed) > 1:
                await _know(daemon, allowed)
            try:
                async with asyncio.TaskGroup() as group:
                    beside = [
                        group.create_task(_take_memory(daemon, ground, squeeze)),
                        group.create_task(_take_core(ground)),
                        group.create_task(_watch(daemon, ground, outcome)),
                    ]
                    outcome.sent += await send_all(
                        daemon, ground.load, ground.speed.tokens_per_word
                    )
                    for task in beside:
                        task.cancel()
            finally:
                await squeeze.stop()


@contextlib.asynccontextmanager
async def running(folder: Path, setup: Setup) -> AsyncIterator[ChildDaemon]:
    """A daemon whose processes share the engine's core; this one has the others."""
    before = os.sched_getaffinity(0)
    engine, rest = split_cores(before)
    daemon = ChildDaemon(folder, setup)
    try:
        os.sched_setaffinity(0, engine or before)  # what is started now inherits it
        try:
            await daemon.start(READY_S)
        finally:
            os.sched_setaffinity(0, rest or before)
        yield daemon
    finally:
        await daemon.stop()
        os.sched_setaffinity(0, before)


async def _know(daemon: ChildDaemon, variants: Sequence[str]) -> None:
    """Load each variant once, the best one last: what they hold is known then, as by a profile."""
    for name in reversed(variants):
        await pin(daemon, name)
    await daemon.order("DELETE", "/pin")


async def pin(daemon: ChildDaemon, variant: str) -> None:
    """Have it load a variant, and wait until that serves alone."""
    await daemon.order("PUT", "/pin", {"knobs": {"variant": variant}})
    async with asyncio.timeout(READY_S):
        while True:
            now = await daemon.order("GET", "/status")
            there = now["point"]["variant"] == variant == now["target"]["variant"]
            if there and len(now["workers"]) == 1:
                return
            await asyncio.sleep(0.1)


async def _take_memory(daemon: ChildDaemon, ground: Ground, squeeze: Squeeze) -> None:
    """Another process takes memory, and gives it back: the daemon has the room that it is to have.

    What is free of itself moves by hundreds of MiB while processes come and go, so it is looked at
    all the time. What the daemon's own workers hold counts as free: nothing that it does matters.
    """
    begun_s = perf_counter()
    while True:
        room = available_bytes() + await daemon.workers_bytes()
        over = room - ground.room_bytes((perf_counter() - begun_s) / ground.length_s)
        if abs(over) > SLACK_BYTES:
            wanted = max(0, squeeze.held_bytes + over)
            await squeeze.hold(min(wanted, ground.most_taken_bytes))
        await asyncio.sleep(LOOK_S)


async def _take_core(ground: Ground) -> None:
    """Another process has half of the engine's core for a while."""
    await asyncio.sleep(CORE[0] * ground.length_s)
    engine, _ = split_cores(_all_cores())
    async with stolen_core(min(engine, default=None)):
        await asyncio.sleep((CORE[1] - CORE[0]) * ground.length_s)


def _all_cores() -> set[int]:
    """The cores of this machine that there are for us, whatever this process is pinned to."""
    return set(range(os.cpu_count() or 1))


async def _watch(daemon: ChildDaemon, ground: Ground, outcome: Outcome) -> None:
    """What was in force, and whether the memory limit was kept."""
    last: str | None = None
    looked_s = perf_counter()
    while True:
        await asyncio.sleep(LOOK_S)
        free = await available(daemon)
        point = (await daemon.order("GET", "/status"))["point"]["variant"]
        now = perf_counter()
        outcome.served[point or "parked"] += round((now - looked_s) * 1000)
        outcome.short_s += (now - looked_s) * (free < ground.headroom_bytes)
        outcome.switches += last is not None and point is not None and point != last
        last, looked_s = point or last, now


async def available(daemon: ChildDaemon) -> int:
    """Memory that is available, as the daemon sees it."""
    signals = (await daemon.order("GET", "/signals"))["signals"]
    return next(int(one["value"]) for one in signals if one["name"] == "memory.available")
