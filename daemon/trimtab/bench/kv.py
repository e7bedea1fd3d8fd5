"""``trimtab bench kv``: what it takes to send a conversation to disk and back, and what that frees.

A real worker reads a thousand tokens into a segment of the pool. The segment goes to disk and comes
back; that is held against reading the prompt. What is given back is measured as shared memory of
the whole machine, since segments are shared memory. A context that shrinks from 8192 to 512 tokens
gives back what lies between. Decoding through a segment is compared, in turn, with decoding through
ordinary memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from trimtab.bench.paired import middle, spread
from trimtab.bench.subject import bench_model, models
from trimtab.domain.actions import SetContext
from trimtab.domain.decisions import Decision
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.errors import WorkerError
from trimtab.policy.load import load_policy
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.daemon import Daemon, Options
from trimtab.sensors.config import SensorConfig
from trimtab.sensors.suite import SensorSuite
from trimtab.serving.claims import Found, Idle
from trimtab.serving.copies import Copies
from trimtab.serving.disk import KvDisk
from trimtab.serving.requests import Ended, GenerationRequest
from trimtab.telemetry.log import get_logger

if TYPE_CHECKING:
    from trimtab.worker.kv_cache import KvCache
    from trimtab.worker.kv_decoder import KvDecoder

TEXT: Final = Path(__file__).resolve().parent.parent / "catalog" / "data" / "evaluation.txt"
PREFIX_TOKENS: Final = 1000
SHRUNK_TOKENS: Final = 512
ROUNDS: Final = 5
PROCESSES: Final = 11
READY_S: Final = 120.0
CHUNK_TOKENS: Final = 8
POLICY: Final = """\
version: 1
name: own
description: A benchmark. One variant, and nothing moves.
protect: [memory, latency]
limits:
  memory: {{headroom: 64MiB}}
knobs:
  variant: [{variant}]
  context: {{min: 256, max: 8192}}
  speculation: [off]
  kv_placement: [memory, disk]
kv: {{disk_quota: 4GiB, writes_per_day: 16GiB}}
"""


def run(quick: bool) -> dict[str, Any]:
    """Measure.

    Args:
        quick: One round and a short text: shows that it works, not how fast it is.

    Raises:
        NoModelError: The model isn't there.
        WorkerError: The worker ended, or a conversation did not come back.
    """
    model = bench_model(quick)
    rounds, prefix = (1, 300) if quick else (ROUNDS, PREFIX_TOKENS)
    variant = model.variants[-1]
    rows = asyncio.run(_measure(model, variant, rounds, prefix))
    ratios = _segment_ratios(variant, 1 if quick else PROCESSES, 16 if quick else 128)
    return {
        "restore_ratio": middle([row["restore_s"] / row["prefill_s"] for row in rows]),
        "returned_ratio": middle([row["returned"] for row in rows]),
        "shrink_returned_ratio": middle([row["shrunk"] for row in rows]),
        "segment_tps_ratio": middle(ratios),
        "segment_tps_ratio_spread": spread(ratios),
        "prefill_ms": round(median(row["prefill_s"] for row in rows) * 1000, 1),
        "offload_ms": round(median(row["offload_s"] for row in rows) * 1000, 1),
        "restore_ms": round(median(row["restore_s"] for row in rows) * 1000, 1),
        "variant": variant.name,
        "model": model.model_id,
        "runs": {"rounds": rounds, "prefix_tokens": prefix},
    }


# ---------------------------------------------------------------- disk and context


class _Ignored:
    """Decisions are of no interest here."""

    def decided(self, decision: Decision, wall_s: float) -> None:
        """Nothing."""

    def concluded(self, decision: Decision, wall_s: float) -> None:
        """Nothing."""


async def _measure(
    model: ModelSpec, variant: VariantSpec, rounds: int, prefix: int
) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-", dir=models()[0]) as folder:
        (Path(folder) / "own.yaml").write_text(POLICY.format(variant=variant.name))
        policy = load_policy("own", Path(folder), device=None).require()
        disk = KvDisk(Path(folder) / "kv", _text("/proc/self/mounts"))
        options = Options(1, "kv", 1.0, Path("/proc"), kv_disk=disk)
        suite = SensorSuite(SensorConfig())
        daemon = Daemon(options, policy, suite, SystemClock(), _Ignored(), get_logger("bench"))
        try:
            daemon.start(model)
            if await daemon.streams.wait_for_worker(READY_S) is None:
                raise WorkerError("no worker is ready")
            await _read(daemon, model, "Warm up. ", 100)
            return [await _round(daemon, model, number, prefix) for number in range(rounds)]
        finally:
            await daemon.stop()
            suite.close()


async def _round(daemon: Daemon, model: ModelSpec, number: int, prefix: int) -> dict[str, float]:
    pool = daemon.pool
    pool.release_all()
    prefill_s = await _read(daemon, model, f"{number}. ", prefix)
    idle = _the_idle(daemon)
    predicted = idle.lease.segment.predicted_bytes(idle.lease.valid)
    before = _shared_bytes()
    begun_s = perf_counter()
    if refused := await pool.offload(idle, daemon.clock.monotonic_s()):
        raise WorkerError(f"the conversation stayed in memory: {refused}")
    offload_s = perf_counter() - begun_s
    returned = before - _shared_bytes()
    begun_s = perf_counter()
    whole = Found(idle, idle.lease.valid, idle.view)
    lease = await Copies(pool, daemon.clock).lease(whole, idle.lease.user, READY_S)
    if lease is None:
        raise WorkerError("the conversation did not come back")
    restore_s = perf_counter() - begun_s
    pool.retire(lease, idle.tokens, daemon.clock.monotonic_s(), idle.view)
    return {
        "prefill_s": prefill_s,
        "offload_s": offload_s,
        "restore_s": restore_s,
        "returned": returned / predicted,
        "shrunk": await _shrink(daemon, _the_idle(daemon)),
    }


async def _shrink(daemon: Daemon, idle: Idle) -> float:
    """The context goes from 8192 to 512 tokens: given back ÷ what lies between."""
    segment, held = idle.lease.segment, idle.lease.valid
    kept = min(SHRUNK_TOKENS, held // 2)
    between = segment.predicted_bytes(held) - segment.predicted_bytes(kept)
    before = _shared_bytes()
    daemon.dispatcher.execute((SetContext(0, kept),))
    await daemon.dispatcher.finished()
    returned = before - _shared_bytes()
    daemon.dispatcher.execute((SetContext(0, 8192),))
    await daemon.dispatcher.finished()
    return returned / between


async def _read(daemon: Daemon, model: ModelSpec, beginning: str, tokens: int) -> float:
    """Have a prompt of so many tokens read; seconds until its first token."""
    worker = daemon.streams.active
    if worker is None:
        raise WorkerError("the worker is gone")
    text = beginning + TEXT.read_text()
    ids = await worker.render(text=text)
    cut = text[: int(len(text) * tokens / len(ids))]
    request = GenerationRequest(model.model_id, text=cut, max_tokens=1, ignore_eos=True)
    begun_s = perf_counter()
    stream = await daemon.gateway.submit(request)
    while not isinstance(await stream.next(60), Ended):
        pass
    return perf_counter() - begun_s


def _the_idle(daemon: Daemon) -> Idle:
    idle = daemon.pool.to_offload()
    if idle is None:
        raise WorkerError("the conversation left no KV behind: is the own-KV decoder in use?")
    return idle


def _shared_bytes() -> int:
    """Shared memory of the whole machine."""
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise WorkerError("/proc/meminfo has no Shmem")


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


# ---------------------------------------------------------------- decoding


def _segment_ratios(variant: VariantSpec, rounds: int, tokens: int) -> list[float]:
    """Tokens/s through a segment ÷ through ordinary memory, in turn, in a child process."""
    context = multiprocessing.get_context("spawn")
    ratios = []
    for _ in range(rounds):  # where a process's pages lie is chance, and lasts as long as it does
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            ratios.append(executor.submit(_decode, variant, tokens).result())
    return ratios


def _decode(variant: VariantSpec, tokens: int) -> float:
    """Runs in the child."""
    from trimtab.worker.decoder import Place
    from trimtab.worker.kv_cache import KvCache
    from trimtab.worker.kv_decoder import KvDecoder
    from trimtab.worker.mapping import Mapping
    from trimtab.worker.variant import read_variant

    class Ordinary(Mapping):
        """Anonymous memory that Python owns."""

        def __init__(self, size: int) -> None:
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            super().__init__(ctypes.addressof(ctypes.c_char.from_buffer(self._memory)), size)

        def close(self) -> None:
            """It goes with the process."""

    class OrdinaryCache(KvCache):
        """The same cache in anonymous memory."""

        def use_ordinary_memory(self) -> None:
            self._mapping.close()
            self._mapping = Ordinary(self._mapping.size)

    facts = read_variant(Path(variant.folder))
    decoder = KvDecoder(facts, 1, 1024, variant.indices_graph)
    segment = decoder.open(Place(1024))
    ordinary = decoder.open(Place(1024))
    ordinary.__class__ = OrdinaryCache
    assert isinstance(ordinary, OrdinaryCache)
    ordinary.use_ordinary_memory()
    for cache in (segment, ordinary):
        decoder.prefill(cache, list(range(10, 74)), last=True)
    _ratio(decoder, segment, ordinary, CHUNK_TOKENS * 2)  # pays for pages
    return _ratio(decoder, segment, ordinary, tokens)


def _ratio(decoder: KvDecoder, segment: KvCache, ordinary: KvCache, tokens: int) -> float:
    """A few tokens at a time, A B B A, from the same place."""
    seconds = {segment: 0.0, ordinary: 0.0}
    for part in range(tokens // CHUNK_TOKENS):
        order = (segment, ordinary) if part % 2 == 0 else (ordinary, segment)
        for cache in order:
            begun_s = perf_counter()
            for token in range(CHUNK_TOKENS):
                decoder.step([(cache, 100 + token)])
            seconds[cache] += perf_counter() - begun_s
    for cache in seconds:
        decoder.rewind(cache, 64)
    return seconds[ordinary] / seconds[segment]
