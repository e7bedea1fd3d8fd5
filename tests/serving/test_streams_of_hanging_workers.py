"""Workers that not even SIGKILL ends, with streams in them: these go on elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from rig import Rig, running
from test_continuity import TALK
from test_running_kv import ask, moved, on_disk, placing, stay

from trimtab.domain.actions import HandoverMode, SwitchWorker
from trimtab.domain.events import ActionEnded, Event, OutcomeKind, WorkerLost
from trimtab.domain.models import ModelSpec
from trimtab.policy.compiled import Carry, Handover, Policy
from trimtab.runtime import dispatch as dispatch_module
from trimtab.runtime.daemon import Daemon
from trimtab.serving.disk import KvDisk
from uninterruptible import Uninterruptible

NUMBER = 10**6


@pytest.fixture
async def sleep(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Uninterruptible]:
    made = Uninterruptible(monkeypatch)
    yield made
    await made.over()


def carrying() -> Policy:
    rules = placing(slow=True)
    return replace(rules, handover=Handover(Carry.KV, Carry.KV, 60.0))


def shoot(rig: Rig) -> int:
    """The serving worker is shot, and hangs; its process number."""
    worker = rig.daemon.streams.active
    assert worker is not None
    worker.shoot("no sign of life for 30 s")
    return worker.pid or 0


async def test_a_stream_goes_on_from_its_kv_while_its_worker_hangs(
    tiny: ModelSpec, sleep: Uninterruptible
) -> None:
    async with running(tiny, carrying()) as rig:
        expected = await rig.read(await rig.ask(TALK, max_tokens=100))
        rig.daemon.pool.release_all()
        stream = await ask(rig, text=TALK, max_tokens=100)
        answer = await rig.read(stream, tokens=20)
        lease, hung = stream.lease, shoot(rig)
        await rig.read(stream, answer)
        hanging = [worker.pid for worker in rig.daemon.supervisor.hanging]
        watched = rig.sensors.pids
        sleep.wake()
        await rig.until(lambda: rig.daemon.supervisor.hanging == ())
        rig.daemon.look()

        assert answer.tokens == expected.tokens
        assert stream.disclosure.resumed == 1
        assert lease is not None
        assert lease.valid > 100  # no other was made
        assert hanging == [hung]
        assert hung in watched  # what it holds is ours
        assert hung not in rig.sensors.pids


async def test_its_kv_on_a_disk_that_may_be_why_is_computed_again_in_memory(
    tiny: ModelSpec, disk: KvDisk, sleep: Uninterruptible, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Daemon, "_offload", stay)
    async with running(tiny, carrying(), disk=disk) as rig:
        expected = await rig.read(await rig.ask(TALK, max_tokens=100))
        rig.daemon.pool.release_all()
        stream, answer = await moved(rig, after=20, max_tokens=100, text=TALK)
        away, first = on_disk(stream), stream.lease
        shoot(rig)
        await rig.until(lambda: stream.lease is not first and stream.lease is not None)
        home, now = not on_disk(stream), rig.daemon.clock.monotonic_s()
        await rig.read(stream, answer)

        assert (away, home) == (True, True)
        assert answer.tokens == expected.tokens
        assert disk.forbids(0, now)  # left alone for a while
        assert disk.running.why(now)
        assert stream.disclosure.resumed == 1


async def test_one_that_was_on_its_way_to_the_disk_goes_on_from_memory_and_stays_there(
    tiny: ModelSpec, disk: KvDisk, sleep: Uninterruptible, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Daemon, "_offload", stay)
    async with running(tiny, carrying(), disk=disk) as rig:
        stream = await ask(rig, text=TALK, max_tokens=60)
        answer = await rig.read(stream, tokens=10)
        lease = stream.lease
        os.kill(rig.worker_pid, signal.SIGSTOP)  # in the middle of the move, as if by the disk
        moving = asyncio.ensure_future(rig.daemon.dispatcher.running_kv.to_disk())
        await rig.until(lambda: stream.moving is not None)
        shoot(rig)
        await rig.read(stream, answer)
        reason = await moving
        refused = await rig.daemon.dispatcher.running_kv.to_disk()

        assert lease is not None
        assert lease.valid > 60
        assert len(answer.tokens) == 60
        assert reason == ""
        assert "hangs" in refused
        assert (disk.stored_bytes, disk.writes.spent_bytes) == (0, 0)


@pytest.mark.parametrize("mode", list(HandoverMode))
async def test_a_plan_that_retires_a_worker_that_hangs_comes_to_its_end(
    tiny: ModelSpec, sleep: Uninterruptible, monkeypatch: pytest.MonkeyPatch, mode: HandoverMode
) -> None:
    monkeypatch.setattr(dispatch_module, "RELEASE_DEADLINE_S", 0.2)
    async with running(tiny, carrying()) as rig:
        stream = await ask(rig, text=TALK, max_tokens=100)
        answer = await rig.read(stream, tokens=10)
        old = rig.daemon.streams.active
        os.kill(rig.worker_pid, signal.SIGSTOP)
        controller, ended = rig.daemon.controller, list[ActionEnded]()
        post = controller.post

        def noted(event: Event) -> None:
            if isinstance(event, ActionEnded) and event.action == NUMBER:
                ended.append(event)
            post(event)

        monkeypatch.setattr(controller, "post", noted)
        point = replace(rig.daemon.dispatcher.point, variant="int4")
        rig.daemon.dispatcher.execute([SwitchWorker(NUMBER, point, mode)])
        async with asyncio.timeout(20):
            await rig.daemon.dispatcher.finished()
        hanging = rig.daemon.supervisor.hanging
        if rig.daemon.streams.active is None:
            rig.daemon.dispatcher.execute([SwitchWorker(NUMBER + 1, point, mode)])
        await rig.read(stream, answer)

        assert old in hanging
        assert len(answer.tokens) == 100
        assert stream.variant == "int4"
        if mode is HandoverMode.BREAK_BEFORE_MAKE:  # the room for the new one didn't come
            assert ended[0].kind is OutcomeKind.FAILED
            assert "keeps its memory" in ended[0].reason
            assert ended[0].variant is None
        else:
            assert ended[0].kind is OutcomeKind.DONE


async def test_what_a_worker_that_hangs_holds_is_not_taken_for_free(
    tiny: ModelSpec, sleep: Uninterruptible, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, carrying()) as rig:
        stream = await ask(rig, text=TALK, max_tokens=60)
        answer = await rig.read(stream, tokens=10)
        controller, held = rig.daemon.controller, list[int | None]()
        post, before = controller.post, controller.state.demand.worker_bytes

        def noted(event: Event) -> None:
            if isinstance(event, WorkerLost):
                held.append(controller.state.demand.worker_bytes)
            post(event)

        monkeypatch.setattr(controller, "post", noted)
        shoot(rig)
        await rig.read(stream, answer)

        assert before
        assert held == [None]
