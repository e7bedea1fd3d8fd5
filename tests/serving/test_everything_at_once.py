"""Whatever comes at the same time, in an order that nobody thought of: answers stay what they are.

Three variants with the same weights, so that an answer is the same to the letter whoever writes it.
Switches, kills, dips of memory, policies with other pools and conversations, cancelled requests:
drawn with a fixed seed, but how they meet is up to the machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rig import MIB, Rig, beside_worker, running
from test_continuity import TALK

from policies_for_tests import policy
from trimtab.domain.knobs import KvPlacement
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Reading
from trimtab.errors import TrimtabError
from trimtab.policy.compiled import Admission, Carry, Handover, KvPolicy, Policy, Share, Stability
from trimtab.serving.disk import KvDisk
from trimtab.serving.requests import Priority
from trimtab.serving.stream import Stream
from trimtab.workers.protocol import Sampling

SECONDS = 12.0
TOKENS = 300
ASKED: tuple[dict[str, Any], ...] = (
    {"text": TALK},
    {"text": TALK * 4, "sampling": Sampling(temperature=0.8, top_p=0.9, seed=11)},
    {"text": "Once", "sampling": Sampling(repetition_penalty=1.2, frequency_penalty=0.2)},
    {"text": TALK * 2 + "The river", "sampling": Sampling(temperature=1.0, seed=7)},
)
POOLS = (None, 384 * 512, 700 * 512, 1200 * 512)


def one_in_three(tiny: ModelSpec) -> ModelSpec:
    """Each variant has the weights of the first."""
    first = tiny.variants[0]
    return replace(tiny, variants=tuple(replace(one, folder=first.folder) for one in tiny.variants))


def rules(drawn: Random | None = None, *, disk: bool = False) -> Policy:
    """A policy with nothing in the way; or drawn, with whatever may be in the way."""
    base = policy()
    placement = tuple(KvPlacement) if disk else (KvPlacement.MEMORY,)
    knobs = replace(base.knobs, kv_placement=placement)
    pool, conversations = None, 5
    if drawn is not None:
        pace, pool = drawn.choice((0.15, 0.3, 1.0)), drawn.choice(POOLS)
        names = tuple(drawn.sample(("fp32", "int8", "int4"), drawn.randint(1, 3)))
        knobs = replace(knobs, pace_min_ratio=pace, pace_max_ratio=pace, variants=names)
        conversations = drawn.choice((1, 2, 5))
    return policy(
        knobs=knobs,
        revision="" if drawn is None else f"{drawn.getrandbits(48):012x}",
        handover=Handover(Carry.KV, Carry.KV, 60.0),
        stability=Stability(0.2, 0.1, 100_000),
        admission=Admission(64, 60.0, conversations, base.admission.priorities),
        kv=KvPolicy(pool, 64 * MIB, 10**12, Share.USER),
    )


@dataclass
class Chaos:
    """What is done to a daemon, and what came of its answers."""

    rig: Rig
    drawn: Random
    disk: bool
    expected: list[list[int]]
    wrong: list[str] = field(default_factory=list)
    ended: int = 0

    async def ask(self) -> None:
        """One request to its end; what it answers is held against what it should."""
        number = self.drawn.randrange(len(ASKED))
        asked = {**ASKED[number], "user": self.drawn.randrange(3), "max_tokens": TOKENS}
        stream = await self.rig.ask(**asked, priority=self.drawn.choice(tuple(Priority)))
        assert isinstance(stream, Stream)
        try:
            async with asyncio.timeout(60):
                answer = await self.rig.read(stream)
        except (TimeoutError, TrimtabError) as error:
            self.wrong.append(f"{number}: {error!r} after {len(stream.generated)}: {vars(stream)}")
            return
        self.ended += 1
        whole = self.expected[number][: stream.max_tokens]  # a small pool may clip an answer
        if answer.tokens != whole:
            self.wrong.append(f"{number}: {answer.tokens} of {whole}: {vars(stream)}")

    async def leave(self) -> None:
        """Some requests whose clients go away."""
        streams = [await self.rig.ask(**ASKED[self.drawn.randrange(len(ASKED))]) for _ in range(3)]
        await asyncio.sleep(self.drawn.random() * 0.2)
        for stream in streams:
            stream.cancel()

    async def switch(self) -> None:
        self.rig.pin(self.drawn.choice(("fp32", "int8", "int4")))

    async def kill(self) -> None:
        worker = self.rig.daemon.streams.active
        if worker is not None and worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)

    async def reload(self) -> None:
        self.rig.daemon.put_in_force(rules(self.drawn, disk=self.disk))

    async def squeeze(self) -> None:
        """For a while there is memory for little KV besides the worker."""
        room = self.drawn.choice((0, 100, 500)) * 512

        def available(at_s: float) -> Reading:
            left = beside_worker(self.rig, room - self.rig.daemon.pool.idle_bytes())
            return Reading("memory.available", float(left), at_s)

        before = self.rig.sensors.memory_available
        self.rig.sensors.memory_available = available  # type: ignore[method-assign]
        await asyncio.sleep(self.drawn.random() * 2)
        self.rig.sensors.memory_available = before  # type: ignore[method-assign]


@pytest.mark.parametrize(("seed", "on_disk"), [(1, False), (2, True)])
async def test_answers_are_whole_and_nothing_is_left_behind(
    tiny: ModelSpec, disk: KvDisk, seed: int, on_disk: bool
) -> None:
    model, drawn = one_in_three(tiny), Random(seed)
    async with running(model, rules()) as rig:
        expected = [
            (await rig.read(await rig.ask(**one, max_tokens=TOKENS))).tokens for one in ASKED
        ]
    disk.configure(64 * MIB, 10**12)
    async with running(model, rules(), disk=disk) as rig:
        before = len(list(Path("/proc/self/fd").iterdir()))
        chaos = Chaos(rig, drawn, on_disk, expected)
        doings: tuple[Callable[[], Any], ...] = (
            *(chaos.leave, chaos.switch, chaos.switch, chaos.kill),
            *(chaos.reload, chaos.reload, chaos.squeeze),
        )
        asking: set[asyncio.Task[None]] = set()
        until_s = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < until_s:
            asking = {task for task in asking if not task.done() or task.exception()}
            while len(asking) < 4:
                asking.add(asyncio.create_task(chaos.ask()))
            await drawn.choice(doings)()
            await asyncio.sleep(drawn.random() * 0.2)
        rig.daemon.put_in_force(rules(disk=on_disk))
        await asyncio.gather(*asking)
        await rig.until(lambda: not rig.daemon.streams.all())
        leased = rig.daemon.pool.ledger().leased
        rig.daemon.pool.release_all()
        await rig.until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 2)
        failed = [fields for event, fields in rig.log.lines if event == "part_failed"]

        assert chaos.wrong == []
        assert chaos.ended >= 4
        assert leased == 0
        assert failed == []
