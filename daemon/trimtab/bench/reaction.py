"""``trimtab bench reaction``: memory runs short, and how long until the controller has given some.

A child process fills real memory as fast as it can until what is available falls under the limit
of the daemon's policy. The daemon holds KV of conversations that have ended; the time from the
crossing until the kernel has the memory of the first of them back is its reaction. earlyoom runs
beside it in dry run with the same limit.

The limit lies below what is available at the start, by the child's ballast and a little: nothing
else on the machine comes near its own limits. Before each squeeze the ballast is set so that memory
is a given distance above the limit, and the squeeze begins at no fixed moment of anybody's polling.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from trimtab.bench import earlyoom
from trimtab.bench.child_daemon import ChildDaemon, Setup
from trimtab.bench.crossing import Crossing, Order, held_by, memfds
from trimtab.bench.earlyoom import Earlyoom
from trimtab.bench.handover import READY_S, TEXT
from trimtab.bench.machine import available_bytes
from trimtab.bench.paired import middle, quantile
from trimtab.bench.squeeze import Squeeze
from trimtab.bench.subject import bench_model, models
from trimtab.bench.timed_stream import follow
from trimtab.domain.models import ModelSpec
from trimtab.errors import TrimtabError, WorkerError

MIB: Final = 1024 * 1024
CONVERSATIONS: Final = 2
GOLDEN: Final = 0.618034
CALM_S: Final = 0.4
WAIT_S: Final = 2.0
ANSWER_S: Final = 20.0
BEYOND_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done.

    Attributes:
        squeezes: How often memory runs short.
        ballast_bytes: What the child holds to come near the limit.
        nearest_bytes: Least distance above the limit at the beginning of a squeeze.
        farthest_bytes: The greatest.
        prompt: Characters of a conversation that ends.
        disturbed: Squeezes that may be repeated since others had crossed the limit.
    """

    squeezes: int
    ballast_bytes: int
    nearest_bytes: int
    farthest_bytes: int
    prompt: int
    disturbed: int


FULL: Final = Size(50, 1536 * MIB, 128 * MIB, 640 * MIB, 1200, 50)
QUICK: Final = Size(2, 512 * MIB, 96 * MIB, 256 * MIB, 400, 6)


@dataclass(frozen=True, slots=True)
class Squeezed:
    """One squeeze.

    Attributes:
        reaction_s: From the crossing until the first relief was done and seen.
        earlyoom_s: From the crossing until earlyoom said so; None: it didn't, or isn't there.
        fill_bytes_s: How fast memory was filled.
    """

    reaction_s: float
    earlyoom_s: float | None
    fill_bytes_s: float


def run(quick: bool) -> dict[str, Any]:
    """Squeeze and time.

    Args:
        quick: A few squeezes, without earlyoom where it isn't installed.

    Raises:
        TrimtabError: earlyoom isn't installed, or there is too little memory.
        NoModelError: There is no model.
        WorkerError: The daemon gave nothing back, or ended.
    """
    if not quick:
        earlyoom.check()
    with_earlyoom = earlyoom.installed()
    model, size = bench_model(quick), QUICK if quick else FULL
    kills = _oom_kills()
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        bench = Reaction(Path(folder), model, size)
        measured = asyncio.run(bench.run(with_earlyoom))
    return summary(measured, _oom_kills() - kills) | {
        "earlyoom": "dry run, same limit" if with_earlyoom else "not installed: not compared",
        "limit_mib": bench.limit_bytes // MIB,
        "disturbed": bench.disturbed,
        "model": model.model_id,
        "runs": len(measured),
    }


def summary(measured: Sequence[Squeezed], oom_kills: int) -> dict[str, Any]:
    """The fields of the contract; those of earlyoom are null where it didn't run."""
    ours = [one.reaction_s * 1000 for one in measured]
    theirs = [one.earlyoom_s * 1000 for one in measured if one.earlyoom_s is not None]
    p50 = middle(ours, 2)
    return {
        "p50_ms": p50,
        "p99_ms": round(quantile(ours, 0.99), 2),
        "earlyoom_p50_ms": middle(theirs, 2) if theirs else None,
        "earlyoom_p99_ms": round(quantile(theirs, 0.99), 2) if theirs else None,
        "speedup_p50": round(middle(theirs) / p50, 2) if theirs else None,
        "squeezes": len(measured),
        "oom_kills": oom_kills,
        "fill_mib_s": round(middle([one.fill_bytes_s for one in measured]) / MIB),
    }


class Reaction:
    """The daemon, the squeeze, and earlyoom beside them.

    Args:
        folder: The daemon's.
        model: What it serves: its smallest variant.
        size: How much is done.

    Attributes:
        limit_bytes: The policy's headroom.
        disturbed: Squeezes that were repeated, since others on the machine had crossed the limit.
    """

    def __init__(self, folder: Path, model: ModelSpec, size: Size) -> None:
        self._model = model
        self._size = size
        room = size.ballast_bytes + size.farthest_bytes
        self.limit_bytes = (available_bytes() - room - _worker_bytes(model)) // MIB * MIB
        if self.limit_bytes <= 0:
            raise TrimtabError(
                f"this benchmark needs {room // MIB} MiB of available memory beside the model",
                hint="Close what you don't need; --quick takes less.",
            )
        policy = POLICY.format(
            headroom=self.limit_bytes // MIB,
            leave=self.limit_bytes // MIB + 16,
            variant=model.variants[-1].name,
            context=min(1024, model.context_length),
        )
        self._daemon = ChildDaemon(folder, Setup(models(), model.model_id, policy, threads=1))
        self._squeeze = Squeeze()
        self._conversations = 0
        self.disturbed = 0

    async def run(self, with_earlyoom: bool) -> list[Squeezed]:
        """All squeezes."""
        other: Earlyoom | None = None
        try:
            await self._daemon.start(READY_S)
            self._squeeze.start()
            other = Earlyoom(self.limit_bytes) if with_earlyoom else None
            measured: list[Squeezed] = []
            while len(measured) < self._size.squeezes:
                one = await self._once(len(measured), other)
                if one is not None:
                    measured.append(one)
                    continue
                self.disturbed += 1
                if self.disturbed > self._size.disturbed:
                    raise WorkerError(
                        "others on this machine take and give back too much memory",
                        hint="This benchmark needs a quiet machine.",
                    )
                await asyncio.sleep(CALM_S * self.disturbed)
            return measured
        finally:
            await self._squeeze.stop()
            if other is not None:
                await other.stop()
            await self._daemon.stop()

    async def _once(self, number: int, other: Earlyoom | None) -> Squeezed | None:
        """One squeeze; None if it was disturbed."""
        await self._let_go()
        try:
            async with asyncio.timeout(ANSWER_S):
                idle_bytes = await self._conversations_end()
        except (WorkerError, TimeoutError) as error:
            if self._daemon.ended:
                raise WorkerError(f"the daemon has ended: {self._daemon.ended}") from error
            await self._squeeze.hold(0)  # others have taken so much that the daemon had to park
            return None
        share = (number + 1) * GOLDEN % 1.0
        size = self._size
        away = size.nearest_bytes + share * (size.farthest_bytes - size.nearest_bytes)
        await self._come_near(int(away))
        await asyncio.sleep(CALM_S + (number + 1) * GOLDEN**2 % 1.0)
        if held_by(memfds(self._daemon.pid)) < idle_bytes:
            await self._let_go()
            return None
        crossing = await self._squeeze.cross(
            Order(
                limit_bytes=self.limit_bytes,
                beyond_bytes=BEYOND_BYTES,
                most_bytes=self._squeeze.held_bytes + size.farthest_bytes + size.ballast_bytes,
                pid=self._daemon.pid,
                freed_bytes=max(1, idle_bytes // (2 * CONVERSATIONS)),
                within_s=WAIT_S,
            )
        )
        earlyoom_s = await self._earlyoom(crossing, other)
        await self._let_go()  # where there is no earlyoom to be waited for
        return self._judged(crossing, earlyoom_s, other)

    def _judged(
        self, crossing: Crossing, earlyoom_s: float | None, other: Earlyoom | None
    ) -> Squeezed | None:
        if crossing.crossed_s is None:
            return None
        if crossing.freed_s is None:
            raise WorkerError(
                f"the daemon has given nothing back {WAIT_S:.0f} s after the crossing, with "
                f"{crossing.idle_bytes // MIB} MiB to give {self._daemon.ended}"
            )
        if other is not None and earlyoom_s is None:
            raise WorkerError(f"earlyoom doesn't react: {other.said}")
        return Squeezed(
            crossing.freed_s - crossing.crossed_s,
            None if earlyoom_s is None else earlyoom_s - crossing.crossed_s,
            crossing.fill_bytes_s,
        )

    async def _earlyoom(self, crossing: Crossing, other: Earlyoom | None) -> float | None:
        """When earlyoom reacted; memory stays short until it has, but not for long.

        The daemon is held still meanwhile: it has given what it had, and would go on to park.
        """
        if other is None or crossing.crossed_s is None:
            return None
        until_s = perf_counter() + WAIT_S
        os.kill(self._daemon.pid, signal.SIGSTOP)
        try:
            while perf_counter() < until_s and other.alive:
                if (reacted_s := other.reacted_s(crossing.crossed_s)) is not None:
                    return reacted_s
                if available_bytes() > self.limit_bytes:  # relief has lifted it
                    await self._squeeze.hold(self._squeeze.held_bytes + BEYOND_BYTES)
                await asyncio.sleep(0.001)
            return None
        finally:
            await self._let_go()
            os.kill(self._daemon.pid, signal.SIGCONT)

    async def _conversations_end(self) -> int:
        """Have conversations that leave their KV behind; how much that is."""
        text = TEXT.read_text(encoding="utf-8")
        for _ in range(CONVERSATIONS):
            self._conversations += 1
            # Another beginning each time, so that nothing of an earlier one serves.
            prompt = f"{self._conversations}. " + text[: self._size.prompt]
            await follow(self._daemon.inference, self._model.model_id, prompt, 2)
        held = held_by(memfds(self._daemon.pid))
        if not held:
            raise WorkerError("the daemon keeps no KV of conversations that have ended")
        return held

    async def _let_go(self) -> None:
        """Lift available memory well above the limit; most of the slow ballast stays."""
        short = self.limit_bytes + 2 * self._size.farthest_bytes - available_bytes()
        await self._squeeze.hold(max(0, self._squeeze.held_bytes - max(0, short)))

    async def _come_near(self, away_bytes: int) -> None:
        """Set the ballast so that available memory is so far above the limit."""
        for _ in range(2):
            over = available_bytes() - self.limit_bytes - away_bytes
            await self._squeeze.hold(max(0, self._squeeze.held_bytes + over))


POLICY: Final = """\
version: 1
name: own
description: A benchmark. One variant, and idle conversations are all that there is to give.
protect: [memory, latency]
limits:
  memory: {{headroom: {headroom}MiB, leave: {leave}MiB}}
knobs:
  variant: [{variant}]
  context: {{min: {context}, max: {context}}}
  speculation: [off]
  kv_placement: [memory]
"""


def _worker_bytes(model: ModelSpec) -> int:
    return model.variants[-1].weights_bytes + 256 * MIB


def _oom_kills() -> int:
    """Processes that the kernel has ended for want of memory since boot."""
    for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
