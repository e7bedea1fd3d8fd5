"""``trimtab bench overhead``: tokens through the daemon's socket against the engine's bare loop.

Both have one engine thread on the same core, and run in turn; the daemon's controller and the
client share the other core, as on a gateway whose engine leaves one core to everything else.

A core that has rested, or has just served the other one, takes tens of milliseconds longer for the
same prompt. So each timed answer follows another short one of the same side.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from trimtab.bench.bare_loop import BareLoop, BareTimes, Task
from trimtab.bench.child_daemon import ChildDaemon
from trimtab.bench.paired import in_turn, middle, spread
from trimtab.bench.raw_client import RawClient, Times
from trimtab.bench.subject import CONTEXT_TOKENS, bench_model, only, variant_of
from trimtab.domain.models import ModelSpec
from trimtab.errors import WorkerError

VARIANTS: Final = ("int4", "int8")
PROMPT_TOKENS: Final = 50
ANSWER_TOKENS: Final = 200
WARMING_TOKENS: Final = 8
PAIRS: Final = 11
READY_S: Final = 120.0


def run(quick: bool) -> dict[str, Any]:
    """Measure int4 and int8.

    Args:
        quick: One pair and few tokens: shows that it works, not how fast it is.

    Raises:
        NoModelError: The model isn't there.
        WorkerError: The daemon or the loop ended.
    """
    model = bench_model(quick)
    pairs, tokens = (1, 20) if quick else (PAIRS, ANSWER_TOKENS)
    rows = {name: asyncio.run(_measure(model, name, pairs, tokens)) for name in VARIANTS}
    added_ms = [ms for row in rows.values() for ms in row["ttft_added_ms"]]
    return {
        **{f"tps_ratio_{name}": row["tps_ratio"] for name, row in rows.items()},
        "ttft_added_ms_p50": middle(added_ms, 2),
        "model": model.model_id,
        "by_variant": rows,
        "runs": {"pairs": pairs, "prompt_tokens": PROMPT_TOKENS, "answer_tokens": tokens},
    }


async def _measure(model: ModelSpec, name: str, pairs: int, tokens: int) -> dict[str, Any]:
    variant = variant_of(model, name)
    engine, rest = split_cores(os.sched_getaffinity(0))
    context = min(CONTEXT_TOKENS, model.context_length)
    with (
        tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder,
        BareLoop(variant, context, engine) as bare,
    ):
        daemon = ChildDaemon(Path(folder), only(model, name))
        before = os.sched_getaffinity(0)
        try:
            await daemon.start(READY_S)
            await _pin(daemon, engine, rest)
            # One more than there are pairs: the first answers also pay for buffers and imports.
            prompts = bare.prompts(2 * (pairs + 1), PROMPT_TOKENS)
            timed, warming = prompts[: pairs + 1], prompts[pairs + 1 :]

            async def loop(pair: int) -> BareTimes:
                await asyncio.to_thread(bare.run, Task(warming[pair], WARMING_TOKENS))
                return await asyncio.to_thread(bare.run, Task(timed[pair], tokens))

            with RawClient(daemon.inference) as client:
                ask = partial(client.complete, model.model_id)

                async def served(pair: int) -> Times:
                    await asyncio.to_thread(ask, warming[pair], WARMING_TOKENS)
                    return await asyncio.to_thread(ask, timed[pair], tokens)

                await in_turn(lambda _: loop(pairs), lambda _: served(pairs), 1)
                measured = await in_turn(loop, served, pairs)
        finally:
            os.sched_setaffinity(0, before)
            await daemon.stop()
    return _row(measured, tokens)


def split_cores(cores: set[int]) -> tuple[frozenset[int], frozenset[int]]:
    """The engine's core and the other cores; both empty where there is only one."""
    if len(cores) < 2:
        return frozenset(), frozenset()
    first = min(cores)
    return frozenset({first}), frozenset(cores - {first})


async def _pin(daemon: ChildDaemon, engine: frozenset[int], rest: frozenset[int]) -> None:
    """The worker to the engine's core; the controller and this client to the others."""
    status = await daemon.order("GET", "/status")
    if not engine:
        return
    for pid in (os.getpid(), daemon.pid):
        _set_affinity(pid, rest)
    for worker in status["workers"]:
        _set_affinity(int(worker["pid"]), engine)


def _set_affinity(pid: int, cores: frozenset[int]) -> None:
    """All threads of a process; those made later inherit it."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def _row(measured: list[tuple[BareTimes, Times]], tokens: int) -> dict[str, Any]:
    if any(served.tokens != tokens for _, served in measured):
        raise WorkerError(f"the daemon did not answer with {tokens} tokens each time")
    ratios = [served.tps / bare.tps for bare, served in measured]
    added_ms = [round((served.ttft_s - bare.ttft_s) * 1000, 3) for bare, served in measured]
    return {
        "tps_ratio": middle(ratios),
        "tps_ratio_spread": spread(ratios),
        "tps_bare": round(median(bare.tps for bare, _ in measured), 2),
        "tps_served": round(median(served.tps for _, served in measured), 2),
        "ttft_bare_ms": round(median(bare.ttft_s for bare, _ in measured) * 1000, 2),
        "ttft_served_ms": round(median(served.ttft_s for _, served in measured) * 1000, 2),
        "ttft_added_ms": added_ms,
    }
