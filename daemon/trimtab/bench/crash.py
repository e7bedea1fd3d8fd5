"""``trimtab bench crash``: kills -9 at random moments, and what the clients notice.

Four streams at a time run greedily on the most precise variant of a real daemon, while its worker
is killed again and again. Every answer is compared with the unbroken one.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from trimtab.bench.child_daemon import ChildDaemon
from trimtab.bench.handover import READY_S, TEXT
from trimtab.bench.paired import spread
from trimtab.bench.subject import bench_model, only
from trimtab.bench.timed_stream import TimedAnswer, follow, until
from trimtab.domain.models import ModelSpec
from trimtab.errors import WorkerError

STREAMS_AT_ONCE: Final = 4
KILLS: Final = 100
ANSWER_TOKENS: Final = 200
SEED: Final = 5
LONGEST_WAIT_S: Final = 1.5
RECOVERY_S: Final = 60.0


@dataclass(slots=True)
class Run:
    """What has happened so far.

    Attributes:
        answers: By the number of their prompt.
        kills: Times of the kills.
        loads_ms: Load times of the workers that came after them.
        arrivals_s: When text came, of all streams together.
        failures: Streams that broke, in words.
    """

    answers: list[tuple[int, TimedAnswer]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    loads_ms: list[float] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run(quick: bool) -> dict[str, Any]:
    """Kill and compare.

    Args:
        quick: A few kills: shows that it works.

    Raises:
        NoModelError: The model isn't there.
        WorkerError: The daemon ended.
    """
    model = bench_model(quick)
    kills, tokens = (3, 60) if quick else (KILLS, ANSWER_TOKENS)
    done, expected = asyncio.run(_measure(model, kills, tokens))
    extra_ms = [
        gap * 1000 - _usual_gap_ms(done) for gap in (_gap_after(done, at) for at in done.kills)
    ]
    complete = [answer for _, answer in done.answers if answer.tokens == tokens]
    equal = [answer for number, answer in done.answers if answer.text == expected[number].text]
    load_ms = median(done.loads_ms)
    return {
        "kills": len(done.kills),
        "streams": len(done.answers) + len(done.failures),
        "complete": len(complete),
        "equal": len(equal),
        "extra_ms_median": round(median(extra_ms), 1),
        "load_ms": round(load_ms, 1),
        "extra_over_load_ms": round(median(extra_ms) - load_ms, 1),
        "extra_ms_spread": spread(extra_ms, 1),
        "failures": done.failures[:5],
        "model": model.model_id,
        "runs": {"answer_tokens": tokens, "at_once": STREAMS_AT_ONCE, "seed": SEED},
    }


async def _measure(model: ModelSpec, kills: int, tokens: int) -> tuple[Run, list[TimedAnswer]]:
    best = model.variants[0].name
    prompts = [TEXT.read_text()[at : at + 200] for at in range(0, 200 * STREAMS_AT_ONCE, 200)]
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        daemon = ChildDaemon(Path(folder), only(model, best))
        try:
            await daemon.start(READY_S)
            expected = [
                await follow(daemon.inference, model.model_id, prompt, tokens) for prompt in prompts
            ]
            done = Run()
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for number, prompt in enumerate(prompts):
                    group.create_task(_stream(daemon, model, (number, prompt), tokens, done, over))
                await _kill(daemon, kills, done)
                over.set()
        finally:
            await daemon.stop()
    return done, expected


async def _stream(
    daemon: ChildDaemon,
    model: ModelSpec,
    task: tuple[int, str],
    tokens: int,
    done: Run,
    over: asyncio.Event,
) -> None:
    """One client: the same question again and again until there is no more killing."""
    number, prompt = task
    while not over.is_set():
        try:
            answer = await follow(
                daemon.inference,
                model.model_id,
                prompt,
                tokens,
                lambda piece: done.arrivals_s.append(piece.arrivals_s[-1]),
            )
        except WorkerError as error:
            done.failures.append(str(error))
            if daemon.ended:
                raise
        else:
            done.answers.append((number, answer))


async def _kill(daemon: ChildDaemon, kills: int, done: Run) -> None:
    """Kill the worker at random moments, each time after tokens have flowed again."""
    draw = random.Random(SEED)
    while len(done.kills) < kills:
        await asyncio.sleep(draw.uniform(0, LONGEST_WAIT_S))
        pid, load_s = await _worker(daemon)
        if done.kills:
            done.loads_ms.append(load_s * 1000)
        done.kills.append(perf_counter())
        os.kill(pid, signal.SIGKILL)
        killed_s = done.kills[-1]
        await until(partial(_flowed_since, done, killed_s + 0.05), RECOVERY_S)
    _, load_s = await _worker(daemon)
    done.loads_ms.append(load_s * 1000)


def _flowed_since(done: Run, at_s: float) -> bool:
    return bool(done.arrivals_s) and done.arrivals_s[-1] > at_s


async def _worker(daemon: ChildDaemon) -> tuple[int, float]:
    """The serving worker's process and its load time, once it is ready."""
    async with asyncio.timeout(RECOVERY_S):
        while True:
            workers = (await daemon.order("GET", "/status"))["workers"]
            if workers and workers[0]["load_s"]:
                return int(workers[0]["pid"]), float(workers[0]["load_s"])
            await asyncio.sleep(0.02)


def _gap_after(done: Run, killed_s: float) -> float:
    """From the last text before a kill to the first that a new worker made, of any stream.

    What the dead worker had sent still arrives in the first milliseconds.
    """
    before = max((at for at in done.arrivals_s if at < killed_s + 0.05), default=killed_s)
    after = min((at for at in done.arrivals_s if at > killed_s + 0.05), default=killed_s)
    return after - before


def _usual_gap_ms(done: Run) -> float:
    """The median time between two pieces of one stream."""
    gaps = [
        (later - earlier) * 1000
        for _, answer in done.answers
        for earlier, later in zip(answer.arrivals_s, answer.arrivals_s[1:], strict=False)
    ]
    return median(gaps) if gaps else 0.0
