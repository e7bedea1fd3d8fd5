"""``trimtab bench live``: a real daemon with real requests while memory and a core are taken.

One daemon after the other serves the same requests under the same disturbances: the controller,
which may take every variant, and for each variant a daemon whose policy allows no other. In the
next round they come in the opposite order. What they share: the scheduler, the memory limit, and
the core on which controller and engine run.

The disturbances stand where the scenario set has them, over the time of a run: memory that only the
largest variant doesn't fit into, a process that takes half of the engine's core, and memory that
only the smallest variant fits into. A variant that doesn't fit is parked, as it is for a user.

A request counts its variants' quality if its first and its last token were in time, else nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any, Final

from trimtab.bench.child_daemon import ChildDaemon
from trimtab.bench.live_load import (
    ANSWER_DEADLINE_S,
    Sent,
    Slo,
    Speed,
    completion,
    prompt_of,
    send,
    slo_for,
    workload,
)
from trimtab.bench.live_run import (
    CONTROLLER,
    MIB,
    Ground,
    Outcome,
    available,
    limit_for,
    pin,
    running,
    serve,
    setup_for,
)
from trimtab.bench.subject import bench_model
from trimtab.domain.models import ModelSpec
from trimtab.errors import WorkerError

LENGTH_S: Final = 120.0
ROUNDS: Final = 2
QUICK_LENGTH_S: Final = 6.0
QUICK_REQUESTS: Final = 20
FREE_BYTES: Final = 64 * MIB
"""A memory limit that nothing here reaches."""

SETTLE_S: Final = 3.0
"""Until a worker that was loaded holds what it goes on holding, and the daemon has seen that."""

RHO: Final = 0.9
TRIAL_WORDS: Final = 60
TRIAL_TOKENS: Final = 48


def run(quick: bool) -> dict[str, Any]:
    """Measure.

    Args:
        quick: A few seconds for each of three subjects: shows that it works.

    Raises:
        NoModelError: The model isn't there.
        WorkerError: A daemon ended.
    """
    model = bench_model(quick)
    names = [variant.name for variant in model.variants]
    statics = [names[0], names[-1]] if quick else names
    return asyncio.run(_measure(model, [CONTROLLER, *statics], quick))


async def _measure(model: ModelSpec, subjects: Sequence[str], quick: bool) -> dict[str, Any]:
    ground = await prepare(model, quick)
    rounds = 1 if quick else ROUNDS
    outcomes = {name: Outcome() for name in subjects}
    for number in range(rounds):
        for name in subjects if number % 2 == 0 else reversed(subjects):
            await serve(ground, name, outcomes[name])
    return summary(ground, outcomes, rounds)


# ---------------------------------------------------------------- before


async def prepare(model: ModelSpec, quick: bool) -> Ground:
    """What this machine can do: each variant's memory, and the best one's speed.

    A quick run has few requests, and a memory limit that never binds: variants of a tiny model
    hold the same.
    """
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        names = [variant.name for variant in model.variants]
        setup = setup_for(model, names, Slo(60, 60), FREE_BYTES)
        async with running(Path(folder), setup) as daemon:
            needs = {}
            for name in reversed(names):
                await pin(daemon, name)
                await asyncio.sleep(SETTLE_S)
                needs[name] = await daemon.worker_bytes()
            speed = await _speed(daemon, model.model_id)
            await asyncio.sleep(SETTLE_S)
            base = await available(daemon) + needs[names[0]]
    if quick:
        load = workload(speed, QUICK_LENGTH_S, RHO, QUICK_REQUESTS)
        slo = slo_for(load, speed)
        return Ground(model, needs, FREE_BYTES, speed, load, slo, QUICK_LENGTH_S, FREE_BYTES)
    load, limit = workload(speed, LENGTH_S, RHO), limit_for(needs, base)
    return Ground(model, needs, limit, speed, load, slo_for(load, speed), LENGTH_S)


async def _speed(daemon: ChildDaemon, model: str) -> Speed:
    """How fast the loaded variant reads and writes for one request at a time."""
    reads, writes, lengths = [], [], []
    async with daemon.client(ANSWER_DEADLINE_S) as client:
        for number in range(4):
            body = completion(model, prompt_of(10_000 + number, TRIAL_WORDS), TRIAL_TOKENS)
            answer = await send(client, body, perf_counter())
            if not answer.complete or answer.first_s is None:
                raise WorkerError(f"a request before the measurement failed: {answer.refused}")
            if number:  # the first one pays for buffers
                reads.append(answer.prompt_tokens / answer.first_s)
                writes.append((answer.tokens - 1) / (answer.last_s - answer.first_s))
                lengths.append(answer.prompt_tokens / TRIAL_WORDS)
    return Speed(median(reads), median(writes), median(lengths))


# ---------------------------------------------------------------- after


def score(ground: Ground, sent: Sent) -> float:
    """The quality of those that served it if it was in time, else nothing."""
    if not ground.slo.met(sent):
        return 0.0
    qualities = {variant.name: variant.quality for variant in ground.model.variants}
    return mean(qualities[name] for name in sent.variants)


def summary(ground: Ground, outcomes: Mapping[str, Outcome], rounds: int) -> dict[str, Any]:
    """The fields of the contract, and what is behind them."""
    scores = {
        name: mean(score(ground, sent) for sent in outcome.sent)
        for name, outcome in outcomes.items()
    }
    statics = {name: value for name, value in scores.items() if name != CONTROLLER}
    best = max(statics, key=lambda name: statics[name])
    finest = ground.model.variants[0].name
    missed = {
        name: sum(not ground.slo.met(sent) for sent in outcome.sent)
        for name, outcome in outcomes.items()
    }
    return {
        "score_ratio_best_static": _ratio(scores[CONTROLLER], statics[best]),
        "score_ratio_best_quality": _ratio(scores[CONTROLLER], statics[finest]),
        "violations_controller": missed[CONTROLLER],
        "violations_best_quality": missed[finest],
        "best_static": best,
        "by_subject": {
            name: _row(outcome, scores[name], missed[name]) for name, outcome in outcomes.items()
        },
        "speed": {name: round(value, 2) for name, value in asdict(ground.speed).items()},
        "needs_mib": {name: round(taken / MIB, 1) for name, taken in ground.needs.items()},
        "slo": {"ttft_s": round(ground.slo.ttft_s, 3), "tpot_s": round(ground.slo.tpot_s, 4)},
        "model": ground.model.model_id,
        "runs": {
            "rounds": rounds,
            "requests": len(ground.load),
            "length_s": ground.length_s,
            "load": RHO,
        },
    }


def _ratio(one: float, other: float) -> float | None:
    return round(one / other, 4) if other else None


def _row(outcome: Outcome, value: float, missed: int) -> dict[str, Any]:
    whole = sum(outcome.served.values()) or 1
    return {
        "score": round(value, 4),
        "missed": missed,
        "refused": dict(Counter(sent.refused for sent in outcome.sent if sent.refused)),
        "short_s": round(outcome.short_s, 1),
        "switches": outcome.switches,
        "in_force": {name: round(ms / whole, 3) for name, ms in outcome.served.items()},
    }
