"""``trimtab bench reload``: policies written under load, half of them bad, and what streams notice.

The policy file of a real daemon is replaced two hundred times while clients stream. Good files are
timed from the write to being in force, bad ones to being told as such; streams must not notice.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from trimtab.bench.child_daemon import ChildDaemon, Setup
from trimtab.bench.handover import READY_S, TEXT
from trimtab.bench.paired import middle, quantile
from trimtab.bench.subject import bench_model, models
from trimtab.bench.timed_stream import follow
from trimtab.domain.models import ModelSpec
from trimtab.errors import WorkerError

RELOADS: Final = 200
CLIENTS: Final = 2
ANSWER_TOKENS: Final = 80
IN_FORCE_S: Final = 20.0
POLL_S: Final = 0.005

POLICY: Final = """\
version: 1
name: own
description: A benchmark. Version {number} of it.
protect: [memory, latency]
limits:
  memory: {{headroom: {headroom}MiB}}
knobs:
  context: {{min: 1024, max: 1024}}
  speculation: [off]
"""

BAD: Final = (
    "version: 1\nname: own\nprotect: [memory, latency, accuracy]\n# {number}\n",
    "version: 1\nname: own\nprotect: [memory\n# {number}\n",
    "version: 1\nname: own\nprotect: [memory, latency]\nknobs: {{contxt: {number}}}\n",
    "\t{number}",
)


@dataclass(slots=True)
class Clients:
    """What the streams saw."""

    streams: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)


def run(quick: bool) -> dict[str, Any]:
    """Write and time.

    Args:
        quick: A few reloads: shows that it works.

    Raises:
        NoModelError: There is no model.
        WorkerError: The daemon ended, or a policy did not come in force.
    """
    model = bench_model(quick)
    reloads = 6 if quick else RELOADS
    good_ms, bad_ms, clients = asyncio.run(_measure(model, reloads))
    return {
        "in_force_ms_p50": middle(good_ms, 1),
        "in_force_ms_p99": round(quantile(good_ms, 0.99), 1),
        "stale_ms_p50": middle(bad_ms, 1),
        "stale_ms_p99": round(quantile(bad_ms, 0.99), 1),
        "reloads": len(good_ms) + len(bad_ms),
        "bad": len(bad_ms),
        "streams": clients.streams,
        "streams_broken": len(clients.failures),
        "tokens": clients.tokens,
        "failures": clients.failures[:5],
        "model": model.model_id,
        "runs": {"reloads": reloads, "clients": CLIENTS},
    }


async def _measure(model: ModelSpec, reloads: int) -> tuple[list[float], list[float], Clients]:
    clients = Clients()
    good_ms: list[float] = []
    bad_ms: list[float] = []
    first = POLICY.format(number=0, headroom=64)
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        daemon = ChildDaemon(Path(folder), Setup(models(), model.model_id, first, threads=1))
        over = asyncio.Event()
        try:
            await daemon.start(READY_S)
            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(_stream(daemon, model, number, clients, over))
                for number in range(1, reloads + 1):
                    if number % 2:
                        good_ms.append(await _good(daemon, number))
                    else:
                        bad_ms.append(await _bad(daemon, number))
                over.set()
        finally:
            await daemon.stop()
    return good_ms, bad_ms, clients


async def _stream(
    daemon: ChildDaemon, model: ModelSpec, number: int, clients: Clients, over: asyncio.Event
) -> None:
    prompt = TEXT.read_text()[number * 200 : number * 200 + 200]
    while not over.is_set():
        clients.streams += 1
        try:
            answer = await follow(daemon.inference, model.model_id, prompt, ANSWER_TOKENS)
        except WorkerError as error:
            clients.failures.append(str(error))
            if daemon.ended:
                raise
        else:
            clients.tokens += answer.tokens
            if answer.tokens != ANSWER_TOKENS:
                clients.failures.append(f"{answer.tokens} tokens instead of {ANSWER_TOKENS}")


async def _good(daemon: ChildDaemon, number: int) -> float:
    """Write a good file; ms until it is in force."""
    description = f"Version {number} of it."
    begun_s = _write(daemon, POLICY.format(number=number, headroom=64 + number % 8))
    return await _until(daemon, begun_s, description, stale=False)


async def _bad(daemon: ChildDaemon, number: int) -> float:
    """Write a bad file; ms until it is told as such, with the good one still in force."""
    begun_s = _write(daemon, BAD[number // 2 % len(BAD)].format(number=number))
    return await _until(daemon, begun_s, f"Version {number - 1} of it.", stale=True)


def _write(daemon: ChildDaemon, text: str) -> float:
    """Replace the policy file as editors do; when."""
    path = daemon.folder / "policies" / "own.yaml"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    begun_s = perf_counter()
    temporary.replace(path)
    return begun_s


async def _until(daemon: ChildDaemon, begun_s: float, description: str, *, stale: bool) -> float:
    while perf_counter() - begun_s < IN_FORCE_S:
        policy = (await daemon.order("GET", "/status"))["policy"]
        if policy["stale"] == stale and description in policy["description"]:
            return (perf_counter() - begun_s) * 1000
        await asyncio.sleep(POLL_S)
    raise WorkerError(f"policy not {'told as bad' if stale else 'in force'} in {IN_FORCE_S} s")
