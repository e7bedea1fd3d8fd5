"""``trimtab bench handover``: the pause that a client sees when its stream changes the variant.

A conversation of a thousand tokens runs on one variant of a real daemon, which is then pinned to
another; the pause is the time between the last piece of text of the one and the first of the other.
With both workers loaded, the KV cache carried over is compared with computing it again; a cold
target, for which the old worker has to go first, is measured too. The longest gap of all, from the
pin on, is told beside it: while a worker loads it takes from the one that decodes. What crossing
costs in accuracy is the mean KL divergence over 300 tokens, for every pair of variants.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from trimtab.bench.child_daemon import ChildDaemon, Setup
from trimtab.bench.crossing_quality import crossing_cost
from trimtab.bench.paired import in_turn, middle, spread
from trimtab.bench.subject import bench_model, models
from trimtab.bench.timed_stream import TimedAnswer, follow, until
from trimtab.domain.models import ModelSpec
from trimtab.errors import WorkerError
from trimtab.sensors.config import SensorConfig
from trimtab.sensors.suite import SensorSuite

PREFIX_TOKENS: Final = 1000
PAIRS: Final = 5
READY_S: Final = 120.0
SWITCH_S: Final = 60.0
SETTLE_S: Final = 5.0
CONTEXT_TOKENS: Final = 2048
MIB: Final = 1024 * 1024
TEXT: Final = Path(__file__).resolve().parent.parent / "catalog" / "data" / "evaluation.txt"


@dataclass(frozen=True, slots=True)
class Pause:
    """One switch, as the client saw it; all in ms.

    Attributes:
        ms: Between the last piece of the old variant and the first of the new one.
        longest_ms: The longest gap between two pieces from the pin on, other gaps included.
        load_ms: What loading the new worker took.
    """

    ms: float
    longest_ms: float
    load_ms: float


def run(quick: bool) -> dict[str, Any]:
    """Measure pauses and what crossing costs.

    Args:
        quick: A pair and short texts: shows that it works, not how fast it is.

    Raises:
        NoModelError: The model isn't there.
        WorkerError: The daemon ended, or a stream broke.
    """
    model = bench_model(quick)
    pairs, prefix = (1, 100) if quick else (PAIRS, PREFIX_TOKENS)
    warm, held = asyncio.run(_warm(model, pairs, prefix))
    cold = asyncio.run(_cold(model, pairs, prefix, held))
    kv_ms = [kv.ms for kv, _ in warm]
    replay_ms = [replay.ms for _, replay in warm]
    cold_ms = [pause.ms for pause in cold]
    cost = crossing_cost(model, TEXT.read_text(), prefix, 20 if quick else 300)
    return {
        "pause_ms_kv": middle(kv_ms, 1),
        "pause_ms_replay": middle(replay_ms, 1),
        "pause_ratio": middle([kv.ms / replay.ms for kv, replay in warm]),
        "pause_ms_cold": middle(cold_ms, 1),
        "load_ms": middle([pause.load_ms for pause in cold], 1),
        "cold_over_load_ms": middle([pause.ms - pause.load_ms for pause in cold], 1),
        "longest_gap_ms_kv": middle([kv.longest_ms for kv, _ in warm], 1),
        "kl": cost.crossed,
        "kl_apart": cost.apart,
        "spread_ms_kv": spread(kv_ms, 1),
        "spread_ms_replay": spread(replay_ms, 1),
        "spread_ms_cold": spread(cold_ms, 1),
        "model": model.model_id,
        "runs": {"pairs": pairs, "prefix_tokens": prefix},
    }


async def _warm(
    model: ModelSpec, pairs: int, prefix: int
) -> tuple[list[tuple[Pause, Pause]], dict[str, int]]:
    """Pauses with both workers loaded, by KV and by replay in turn.

    Returns:
        Pairs of pauses, and what a worker of each variant held.
    """
    best, least = model.variants[0].name, model.variants[-1].name
    with (
        tempfile.TemporaryDirectory(prefix="trimtab-bench-") as one,
        tempfile.TemporaryDirectory(prefix="trimtab-bench-") as other,
    ):
        carrying = ChildDaemon(Path(one), _setup(model, "kv", 64))
        replaying = ChildDaemon(Path(other), _setup(model, "replay", 64))
        try:
            await carrying.start(READY_S)
            await replaying.start(READY_S)

            async def kv(pair: int) -> Pause:
                return await _switch(carrying, model, [best, least], prefix, pair)

            async def replay(pair: int) -> Pause:
                return await _switch(replaying, model, [best, least], prefix, pair)

            pauses = await in_turn(kv, replay, pairs)
            held = {least: await carrying.worker_bytes()}
            await _pin(carrying, best)
            await _serves(carrying, best)
            return pauses, held | {best: await carrying.worker_bytes()}
        finally:
            await carrying.stop()
            await replaying.stop()


async def _cold(model: ModelSpec, pairs: int, prefix: int, held: dict[str, int]) -> list[Pause]:
    """Pauses where the old worker goes before the new one is loaded."""
    best, least = model.variants[0].name, model.variants[-1].name
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        await asyncio.sleep(SETTLE_S)  # what the daemons before this one held is on its way back
        daemon = ChildDaemon(Path(folder), _setup(model, "kv", _tight_mib(model, held)))
        try:
            await daemon.start(READY_S)
            return [
                await _switch(daemon, model, [best, least], prefix, pair) for pair in range(pairs)
            ]
        finally:
            await daemon.stop()


async def _switch(
    daemon: ChildDaemon, model: ModelSpec, names: Sequence[str], prefix: int, run_: int
) -> Pause:
    """A switch from the first variant to the second."""
    source, target = names
    await _pin(daemon, source)
    await _serves(daemon, source)
    seen: list[TimedAnswer] = []
    # Another beginning each time, so that no earlier conversation's KV serves.
    prompt = f"{run_}. " + TEXT.read_text()[: prefix * 4]
    stream = asyncio.create_task(  # noqa: TID251  # awaited below
        follow(daemon.inference, model.model_id, prompt, 400, seen.append)
    )
    await until(lambda: len(seen) > 20 or stream.done(), SWITCH_S)
    pinned_s = perf_counter()
    await _pin(daemon, target)
    load_s = await _serves(daemon, target)
    served_s = perf_counter()
    answer = await stream
    seen_s = answer.longest_gap_s(pinned_s, served_s + 10)
    return Pause(answer.pause_s() * 1000, seen_s * 1000, load_s * 1000)


async def _pin(daemon: ChildDaemon, variant: str) -> None:
    await daemon.order("PUT", "/pin", {"knobs": {"variant": variant}})


async def _serves(daemon: ChildDaemon, variant: str) -> float:
    """Wait until a variant serves alone; its load time in seconds."""
    until_s = perf_counter() + SWITCH_S
    while perf_counter() < until_s:
        status = await daemon.order("GET", "/status")
        workers = status["workers"]
        if [one["variant"] for one in workers] == [variant] and workers[0]["load_s"]:
            return float(workers[0]["load_s"])
        await asyncio.sleep(0.02)
    raise WorkerError(
        f"{variant} does not serve after {SWITCH_S:.0f} s: {status['state']} {status['reason']}",
        hint="This benchmark needs memory that nobody else takes or gives back meanwhile.",
    )


def _tight_mib(model: ModelSpec, held: dict[str, int]) -> int:
    """A headroom that has room for one worker with its conversation, and not for two.

    Args:
        model: What is served.
        held: What a worker of each of the two variants was seen to hold.
    """
    suite = SensorSuite(SensorConfig())
    try:
        available = suite.memory_available(0.0).value or 0.0
    finally:
        suite.close()
    conversation = CONTEXT_TOKENS * model.variants[0].kv_bytes_per_token
    return int((available - max(held.values()) - conversation - min(held.values()) / 2) / MIB)


def _setup(model: ModelSpec, carry: str, headroom_mib: int) -> Setup:
    context = min(CONTEXT_TOKENS, model.context_length)
    policy = f"""\
version: 1
name: own
description: A benchmark. The variant is pinned from outside.
protect: [memory, latency]
limits:
  memory: {{headroom: {headroom_mib}MiB}}
knobs:
  context: {{min: {context}, max: {context}}}
  speculation: [off]
handover: {{down: {carry}, up: {carry}, hold_max: 60s}}
"""
    return Setup(models(), model.model_id, policy, tick_s=0.2, threads=1)
