"""Streams for which nothing is done while their worker is at work for others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest
from rig import Rig, running
from stand_ins import FakeWorker
from test_continuity import TALK
from test_streams import Scene

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec
from trimtab.domain.scheduling import Schedule
from trimtab.policy.compiled import KvPolicy, Share
from trimtab.runtime import ticks
from trimtab.serving.pool import GRANT_TOKENS
from trimtab.serving.stream import Stream
from trimtab.workers import supervisor as supervisor_module
from trimtab.workers.protocol import Detached, Finished, Full, Grow, Moved, Pause, Progress, Tokens
from trimtab.workers.supervisor import wedged_after_s

PATIENCE_S = 120.0
"""Of a variant whose speed was never measured."""

STEP_S = 10.0


@pytest.fixture
def scene(tiny: ModelSpec) -> Scene:
    return Scene(tiny, policy())


async def ask(scene: Scene) -> Stream:
    stream = await scene.ask()
    assert isinstance(stream, Stream)
    return stream


def write(scene: Scene, worker: FakeWorker, *streams: Stream) -> None:
    """A token for each."""
    for stream in streams:
        scene.streams.said(worker, Tokens(stream.id, len(stream.generated), [7], "a"))  # type: ignore[arg-type]


def read(scene: Scene, worker: FakeWorker, stream: Stream, done: int = 1) -> None:
    """A piece of its prompt."""
    scene.streams.said(worker, Progress(stream.id, done, 3))  # type: ignore[arg-type]


def pass_by(scene: Scene, worker: FakeWorker, *served: Stream, seconds: float) -> list[str]:
    """Time goes by, in which some get a token at each tick; what is said of the others."""
    told: list[str] = []
    end_s = scene.clock.now + seconds
    while scene.clock.now < end_s:
        scene.clock.now += STEP_S
        write(scene, worker, *served)
        told += [reason for _, reason in scene.streams.stalled()]
    return told


# ---------------------------------------------------------------- what is a stall


async def test_a_stream_without_a_token_is_told_though_another_one_has_them(scene: Scene) -> None:
    worker = scene.serving()
    one, other = await ask(scene), await ask(scene)
    write(scene, worker, one, other)
    before = pass_by(scene, worker, other, seconds=PATIENCE_S)
    after = pass_by(scene, worker, other, seconds=STEP_S)

    assert before == []
    assert after == [f"it has done nothing for stream {one.id} for 130 s"]


async def test_a_slow_device_is_given_as_much_time_as_a_whole_worker_is(tiny: ModelSpec) -> None:
    slow = replace(tiny.variants[0], prefill_tps=1.0)
    scene = Scene(replace(tiny, variants=(slow, *tiny.variants[1:])), policy())
    worker = scene.serving()
    one, other = await ask(scene), await ask(scene)
    write(scene, worker, one, other)

    assert wedged_after_s(slow) == 256
    assert pass_by(scene, worker, other, seconds=250) == []
    assert pass_by(scene, worker, other, seconds=STEP_S)


async def test_a_prompt_that_is_passed_over_is_told(scene: Scene) -> None:
    worker = scene.serving()
    one = await ask(scene)
    scene.clock.now += 1
    later = await ask(scene)
    told: list[str] = []
    for done in range(int(PATIENCE_S / STEP_S) + 1):
        scene.clock.now += STEP_S
        read(scene, worker, later, done)
        told += [reason for _, reason in scene.streams.stalled()]

    assert {reason.split(" for ")[1] for reason in told} == {f"stream {one.id}"}


# ---------------------------------------------------------------- what is none


async def test_a_prompt_waits_for_those_that_came_before_it(scene: Scene) -> None:
    worker = scene.serving()
    first = await ask(scene)
    scene.clock.now += 1
    second = await ask(scene)
    told: list[str] = []
    for done in range(20):
        scene.clock.now += STEP_S
        read(scene, worker, first, done)
        told += [reason for _, reason in scene.streams.stalled()]
    scene.streams.said(worker, Finished(first.id, "stop"))
    told += pass_by(scene, worker, seconds=PATIENCE_S - STEP_S)
    after = pass_by(scene, worker, seconds=2 * STEP_S)

    assert told == []
    assert f"stream {second.id} " in after[0]


async def test_a_stream_whose_turn_it_is_not_is_owed_nothing(scene: Scene) -> None:
    worker = scene.serving()
    one, other = await ask(scene), await ask(scene)
    write(scene, worker, one, other)
    scene.streams.follow(Schedule((other.id, one.id), together=1))
    paused = pass_by(scene, worker, other, seconds=3 * PATIENCE_S)
    scene.streams.follow(Schedule((other.id, one.id), together=2))
    resumed = pass_by(scene, worker, other, seconds=PATIENCE_S)

    assert worker.of(Pause) == [Pause(one.id)]
    assert paused == resumed == []
    assert pass_by(scene, worker, other, seconds=STEP_S)


async def test_a_stream_that_waits_for_room_in_the_pool_is_owed_nothing(tiny: ModelSpec) -> None:
    scene = Scene(tiny, policy(kv=KvPolicy(1, 0, 0, Share.USER)))
    scene.configure(policy())
    worker = scene.serving(decoder="kv")
    one, other = await ask(scene), await ask(scene)
    write(scene, worker, one, other)
    assert one.lease is not None
    one.lease.granted = one.lease.valid
    scene.configure(policy(kv=KvPolicy(1, 0, 0, Share.USER)))
    scene.streams.said(worker, Grow(one.id, one.lease.valid + GRANT_TOKENS))

    assert one.starved
    assert pass_by(scene, worker, other, seconds=3 * PATIENCE_S) == []


async def test_a_stream_that_is_handed_back_is_somebody_elses_to_wait_for(scene: Scene) -> None:
    worker = scene.serving()
    one = await ask(scene)
    write(scene, worker, one)
    scene.streams.release(worker)
    waiting = pass_by(scene, worker, seconds=2 * PATIENCE_S)
    scene.streams.said(worker, Detached(one.id, 1))

    assert waiting == []
    assert pass_by(scene, worker, seconds=2 * PATIENCE_S) == []


async def test_nothing_is_owed_for_the_time_in_which_the_whole_service_stood_still(
    scene: Scene,
) -> None:
    worker = scene.serving()
    one = await ask(scene)
    write(scene, worker, one)
    scene.clock.now += 10 * PATIENCE_S
    thawed_s = scene.clock.now
    at_thaw = scene.streams.stalled(thawed_s)
    scene.clock.now += PATIENCE_S - STEP_S
    later = scene.streams.stalled(thawed_s)
    scene.clock.now += 2 * STEP_S

    assert at_thaw == later == []
    assert scene.streams.stalled(thawed_s)


async def test_moves_into_other_segments_take_as_long_as_a_slow_disk_and_wait_for_each_other(
    tiny: ModelSpec,
) -> None:
    window = replace(policy().knobs.window, shift=True, keep=4)
    scene = Scene(tiny, policy(knobs=replace(policy().knobs, window=window)))
    worker = scene.serving(decoder="kv")
    one, other, third = [await ask(scene) for _ in range(3)]
    write(scene, worker, one, other, third)
    for stream in (one, other):
        scene.streams.said(worker, Full(stream.id, stream.positions))
    both = pass_by(scene, worker, third, seconds=PATIENCE_S)
    scene.streams.said(worker, Moved(one.id, one.view.dropped, 2))
    second = pass_by(scene, worker, one, third, seconds=PATIENCE_S - STEP_S)

    assert one.moving is None
    assert other.moving is not None
    assert both == second == []
    assert pass_by(scene, worker, one, third, seconds=2 * STEP_S)


# ---------------------------------------------------------------- what is done about it


async def others_talk(rig: Rig) -> None:
    while True:
        await rig.read(await rig.ask("Another talk. " + TALK, max_tokens=100))


@pytest.mark.parametrize("decoder", ["generator", "kv"])
async def test_a_stream_that_its_worker_has_forgotten_goes_on_in_the_next_one(
    tiny: ModelSpec, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 1.6)
    async with running(tiny, decoder=decoder) as rig:
        expected = await rig.read(await rig.ask(TALK))
        stream = await rig.ask(TALK)
        answer = await rig.read(stream, tokens=10)
        worker = rig.daemon.streams.active
        assert worker is not None
        worker.send(Pause(stream.id))  # nobody will ever resume it
        others = asyncio.ensure_future(others_talk(rig))
        try:
            await rig.read(stream, answer)
        finally:
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)
        reasons = [line["reason"] for event, line in rig.log.lines if event == "worker_lost"]

        assert answer.tokens == expected.tokens
        assert stream.disclosure.resumed >= 1
        assert f"nothing for stream {stream.id} " in reasons[0]


@pytest.mark.parametrize("decoder", ["generator", "kv"])
async def test_a_service_that_was_frozen_shoots_nobody_when_it_goes_on(
    tiny: ModelSpec, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 1.6)
    monkeypatch.setattr(ticks, "OVERSLEPT_S", 1.0)
    async with running(tiny, decoder=decoder) as rig:
        expected = await rig.read(await rig.ask(TALK))
        stream = await rig.ask(TALK)
        answer = await rig.read(stream, tokens=10)
        worker = rig.daemon.streams.active
        assert worker is not None
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        await asyncio.sleep(1.0)  # what it had said before is heard
        time.sleep(3.0)  # the controller stands still too
        await asyncio.sleep(0.2)  # it is the first to go on
        os.kill(worker.pid, signal.SIGCONT)
        await rig.read(stream, answer)

        assert answer.tokens == expected.tokens
        assert stream.disclosure.resumed == 0
        assert [event for event, _ in rig.log.lines if event == "worker_lost"] == []
