"""A real daemon without sockets: real workers on the tiny model, memory as the test says it is.

The fake is the sensor suite alone: what memory is available has to be the test's own word, since
the tiny model is too small to move the machine's.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from policies_for_tests import policy
from trimtab.domain.decisions import Decision
from trimtab.domain.events import PinSet
from trimtab.domain.knobs import Knob
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Quality, Reading, Snapshot
from trimtab.policy.compiled import Policy
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.daemon import Daemon, Options
from trimtab.serving.disk import KvDisk
from trimtab.serving.requests import Delta, Ended, GenerationRequest, StreamHandle, Usage
from trimtab.workers.protocol import Sampling

MIB = 1024 * 1024


class FakeSensors:
    """Says that so much memory is available."""

    def __init__(self) -> None:
        self.available_bytes: float | None = 8192.0 * MIB
        self.pids: list[int] = []

    def snapshot(self, at_s: float, wall_s: float) -> Snapshot:
        return Snapshot(at_s, {"memory.available": self.memory_available(at_s)}, wall_s)

    def memory_available(self, at_s: float) -> Reading:
        if self.available_bytes is None:
            return Reading("memory.available", None, at_s, Quality.FAILED)
        return Reading("memory.available", self.available_bytes, at_s)

    def watch_processes(self, pids: list[int]) -> None:
        self.pids = pids


class Lines:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        def keep(event: str, **fields: Any) -> None:
            self.lines.append((event, fields))

        return keep


@dataclass
class Records:
    """Decisions in memory."""

    made: list[Decision] = field(default_factory=list)
    outcomes: list[Decision] = field(default_factory=list)

    def decided(self, decision: Decision, wall_s: float) -> None:
        self.made.append(decision)

    def concluded(self, decision: Decision, wall_s: float) -> None:
        self.outcomes.append(decision)


@dataclass
class Answer:
    """What came of a request."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    end: Ended | None = None

    @property
    def usage(self) -> Usage:
        assert self.end is not None
        return self.end.usage


class Rig:
    """The daemon and what tests do to it."""

    def __init__(
        self, model: ModelSpec, policy_: Policy, decoder: str, disk: KvDisk | None = None
    ) -> None:
        self.sensors = FakeSensors()
        self.records = Records()
        self.log = Lines()
        self.model = model
        options = Options(
            threads=1, decoder=decoder, tick_s=0.1, proc_root=Path("/proc"), kv_disk=disk
        )
        self.daemon = Daemon(options, policy_, self.sensors, SystemClock(), self.records, self.log)

    @property
    def variant(self) -> str | None:
        """The variant in force."""
        return self.daemon.dispatcher.point.variant

    @property
    def worker_pid(self) -> int:
        """The serving worker."""
        worker = self.daemon.streams.active
        assert worker is not None
        assert worker.pid is not None
        return worker.pid

    def kill_worker(self) -> None:
        """SIGKILL to the serving worker."""
        os.kill(self.worker_pid, signal.SIGKILL)

    def pin(self, variant: str) -> None:
        """Switch to a variant."""
        now = self.daemon.clock.monotonic_s()
        self.daemon.controller.post(PinSet(now, ((Knob.VARIANT, variant),), None, "test"))

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait for something to come true."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)

    async def serves(self, variant: str) -> None:
        """Wait until a variant serves and no plan is under way."""
        await self.until(
            lambda: self.variant == variant and not self.daemon.controller.state.waiting_for
        )

    async def ask(self, text: str = "The river", **changes: Any) -> StreamHandle:
        """Begin a greedy completion of 200 tokens."""
        request = GenerationRequest(
            "tiny", text=text, max_tokens=200, ignore_eos=True, sampling=Sampling(), user=1000
        )
        return await self.daemon.gateway.submit(replace(request, **changes))

    async def read(
        self, stream: StreamHandle, answer: Answer | None = None, tokens: int = 10**9
    ) -> Answer:
        """Follow a stream to its end, or until there are so many tokens."""
        answer = answer or Answer()
        async with asyncio.timeout(40):
            while answer.end is None and len(answer.tokens) < tokens:
                match await stream.next(1.0):
                    case Delta(text=text, tokens=new):
                        answer.text += text
                        answer.tokens += new
                    case Ended() as end:
                        answer.end = end
        return answer


def beside_worker(rig: Rig, kv_bytes: float, worker_bytes: int = 512 * MIB) -> float:
    """Memory that is available where a worker fits, and so much KV of running streams beside it.

    Args:
        rig: Whose streams they are.
        kv_bytes: How much of their KV fits before the headroom is touched.
        worker_bytes: What is free while no worker is there.
    """
    limit = rig.daemon.controller.policy.memory
    assert limit is not None
    of_worker = 0 if rig.daemon.streams.active is not None else worker_bytes
    return limit.headroom_bytes + of_worker + kv_bytes - rig.daemon.pool.ledger().leased


@asynccontextmanager
async def running(
    model: ModelSpec,
    policy_: Policy | None = None,
    decoder: str = "auto",
    disk: KvDisk | None = None,
) -> AsyncIterator[Rig]:
    """A daemon that has loaded its first variant; ends with no process left behind."""
    rig = Rig(model, policy_ or policy(), decoder, disk)
    rig.daemon.start(model)
    try:
        await rig.until(lambda: rig.daemon.streams.active is not None)
        yield rig
    finally:
        await rig.daemon.stop()


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """The disk is full: no file of this process can grow beyond that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def no_free_descriptor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """None can be doubled, so that none can be sent to a worker."""

    def dup(_: int) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", dup)
        yield
