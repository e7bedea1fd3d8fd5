"""``trimtab bench api``: how quickly the API answers while tokens flow, and whether anything grows.

Two clients stream all the time, one keeps leaving in mid-stream, and one asks for the status. The
controller's memory and descriptors at the end are held against those after the first fifth, when
everything that serving needs has been imported and the cache of idle conversations is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from trimtab.bench.child_daemon import ChildDaemon, Setup
from trimtab.bench.footprint import look
from trimtab.bench.subject import bench_model, models, only
from trimtab.domain.models import ModelSpec
from trimtab.errors import WorkerError

READY_S: Final = 120.0
SOAK_S: Final = 1800.0
QUICK_SOAK_S: Final = 60.0
STREAMS: Final = 2
TOKENS: Final = 64
LEAVE_EVERY_S: Final = 0.5
ASK_EVERY_S: Final = 0.05
SAMPLE_EVERY_S: Final = 0.5
WARM_RATIO: Final = 0.2


@dataclass(slots=True)
class Seen:
    """What the clients and the look at the controller have brought so far."""

    status_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    served: int = 0
    broken: int = 0
    left: int = 0


def run(quick: bool) -> dict[str, Any]:
    """Measure the API.

    Args:
        quick: A minute instead of half an hour.

    Raises:
        NoModelError: There is no model.
        WorkerError: The daemon ended.
    """
    model = bench_model(quick)
    return asyncio.run(measure(model, models(), QUICK_SOAK_S if quick else SOAK_S))


async def measure(model: ModelSpec, folders: Sequence[Path], soak_s: float) -> dict[str, Any]:
    """The result of one soak.

    Args:
        model: It serves the last, smallest of its variants.
        folders: Where models are.
        soak_s: How long.
    """
    setup = only(model, model.variants[-1].name)
    own = Setup(folders, model.model_id, setup.policy, threads=1)
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        daemon = ChildDaemon(Path(folder), own)
        try:
            await daemon.start(READY_S)
            seen = await _soak(daemon, soak_s)
        finally:
            await daemon.stop()
    return _result(seen, model, soak_s)


async def _soak(daemon: ChildDaemon, soak_s: float) -> Seen:
    seen = Seen()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(soak_s), asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(_streams(daemon, seen))
            group.create_task(_leaves(daemon, seen))
            group.create_task(_asks(daemon, "/trimtab/v1/status", seen.status_s))
            group.create_task(_asks(daemon, "/healthz", seen.health_s))
            group.create_task(_looks(daemon, seen))
    if daemon.ended:
        raise WorkerError(f"the daemon ended with {daemon.ended}")
    return seen


async def _streams(daemon: ChildDaemon, seen: Seen) -> None:
    while True:
        reader, writer = await asyncio.open_unix_connection(str(daemon.inference))
        try:
            writer.write(_request(daemon.setup.model, TOKENS))
            answer = await reader.read()
        finally:
            writer.close()
        whole = answer.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in answer
        seen.served += whole
        seen.broken += not whole


async def _leaves(daemon: ChildDaemon, seen: Seen) -> None:
    while True:
        reader, writer = await asyncio.open_unix_connection(str(daemon.inference))
        writer.write(_request(daemon.setup.model, 10 * TOKENS))
        await reader.readline()
        writer.transport.abort()
        seen.left += 1
        await asyncio.sleep(LEAVE_EVERY_S)


async def _asks(daemon: ChildDaemon, path: str, times_s: list[float]) -> None:
    """Ask again and again on one connection, as a screen does."""
    reader, writer = await asyncio.open_unix_connection(str(daemon.control))
    request = f"GET {path} HTTP/1.1\r\nHost: trimtab\r\n\r\n".encode()
    try:
        while True:
            begun_s = perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(_length(head))
            times_s.append(perf_counter() - begun_s)
            await asyncio.sleep(ASK_EVERY_S)
    finally:
        writer.close()


async def _looks(daemon: ChildDaemon, seen: Seen) -> None:
    while True:
        seen.rss_bytes.append(look(daemon.pid).rss_bytes)
        others, segments = _descriptors(daemon.pid)
        seen.descriptors.append(others)
        seen.segments.append(segments)
        await asyncio.sleep(SAMPLE_EVERY_S)


def _descriptors(pid: int) -> tuple[int, int]:
    """Descriptors of a process, and how many of them are KV caches of idle conversations.

    Those are a cache with a bound of its own; they come and go with memory.
    """
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(link.readlink()))
    segments = sum(target.startswith("/memfd:") for target in targets)
    return len(targets) - segments, segments


def _result(seen: Seen, model: ModelSpec, soak_s: float) -> dict[str, Any]:
    if not seen.status_s or not seen.health_s or len(seen.rss_bytes) < 5:
        raise WorkerError("the daemon didn't answer while it was measured")
    return {
        "status_p50_ms": round(median(seen.status_s) * 1000, 2),
        "status_p99_ms": round(sorted(seen.status_s)[int(len(seen.status_s) * 0.99)] * 1000, 2),
        "request_added_ms_p50": round(median(seen.health_s) * 1000, 2),
        "rss_growth_mb": round(growth(seen.rss_bytes) / 2**20, 2),
        "fd_growth": round(growth(seen.descriptors)),
        "kv_segments_max": max(seen.segments),
        "rss_mb": round(seen.rss_bytes[-1] / 2**20, 1),
        "streams": seen.served,
        "streams_broken": seen.broken,
        "clients_left": seen.left,
        "model": model.model_id,
        "runs": {"soak_s": soak_s, "asked": len(seen.status_s), "looks": len(seen.rss_bytes)},
    }


def growth(samples: Sequence[int]) -> float:
    """The median of the last fifth less that of the second: what is still growing after warm-up."""
    fifth = max(1, int(len(samples) * WARM_RATIO))
    return median(samples[-fifth:]) - median(samples[fifth : 2 * fifth])


def _request(model: str, tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": "Once upon a time",
            "max_tokens": tokens,
            "stream": True,
            "trimtab": {"ignore_eos": True},
        }
    )
    head = "POST /v1/completions HTTP/1.1\r\nHost: trimtab\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def _length(head: bytes) -> int:
    """The length of an answer's body."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise WorkerError("the daemon's answer has no length")
