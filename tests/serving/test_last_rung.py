"""A disk that is slow, or hangs, while running conversations' KV goes there holds nobody up."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from rig import MIB, Rig, running
from test_continuity import TALK
from test_kv_disk import Gate
from test_running_kv import (
    ask,
    bring_home,
    memory_for_all_but_kv,
    moved,
    on_disk,
    place,
    placing,
)

from trimtab.domain.actions import HandoverMode, PlaceIdleKv, SwitchWorker
from trimtab.domain.decisions import Direction
from trimtab.domain.knobs import KvPlacement
from trimtab.domain.models import ModelSpec
from trimtab.policy.compiled import Carry, Handover, Policy, Window
from trimtab.serving import running_kv
from trimtab.serving.disk import KvDisk
from trimtab.serving.stream import Stream, StreamState
from trimtab.workers.worker import Worker

WINDOW = 512


def one_variant() -> Policy:
    rules = placing(slow=True)
    knobs, handover = replace(rules.knobs, variants=("fp32",)), Handover(Carry.KV, Carry.KV, 5.0)
    return replace(rules, knobs=knobs, handover=handover)


def shifting() -> Policy:
    rules = placing(slow=True)
    window = Window(True, 4)
    knobs = replace(rules.knobs, context_min=WINDOW, context_max=WINDOW, window=window)
    return replace(rules, knobs=knobs)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """In the way of all that is written back to a disk."""
    gate = Gate(running_kv.write_back)
    monkeypatch.setattr(running_kv, "write_back", gate)
    return gate


async def test_a_worker_that_dies_while_the_disk_takes_kv_is_replaced_at_once(
    tiny: ModelSpec, disk: KvDisk, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, one_variant(), disk=disk) as rig:
        stream = await ask(rig, max_tokens=150)
        answer = await rig.read(stream, tokens=20)
        with memory_for_all_but_kv(rig, monkeypatch):
            await gate.begun()
            away = on_disk(stream)
            rig.kill_worker()
            await rig.read(stream, answer)
        gate.open()

        assert away
        assert len(answer.tokens) == 150
        assert stream.disclosure.resumed == 1


async def test_memory_that_runs_short_while_the_disk_takes_kv_is_answered(
    tiny: ModelSpec, disk: KvDisk, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, one_variant(), disk=disk) as rig:
        stream = await ask(rig, max_tokens=200)
        await rig.read(stream, tokens=20)
        with memory_for_all_but_kv(rig, monkeypatch):
            await gate.begun()
        rig.sensors.available_bytes = 20.0 * MIB
        await rig.until(lambda: rig.daemon.streams.active is None)
        gate.open()

        assert rig.records.made[-1].direction is Direction.PARK


async def test_a_plan_that_wants_kv_at_home_does_not_wait_for_the_disk(
    tiny: ModelSpec, disk: KvDisk, gate: Gate
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=400))
        rig.daemon.pool.release_all()
        stream, answer = await moved(rig, after=20, max_tokens=400)
        await gate.begun()
        async with asyncio.timeout(5):
            await place(rig, KvPlacement.MEMORY)
        still = on_disk(stream)
        rig.pin("int8")
        async with asyncio.timeout(10):
            await rig.serves("int8")
        gate.open()
        await rig.until(lambda: not on_disk(stream))
        runs = not stream.done
        await rig.read(stream, answer)

        assert still
        assert runs
        assert len(answer.tokens) == len(expected.tokens)


async def test_a_plan_does_not_wait_for_a_file_that_an_earlier_one_was_to_make(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream = await ask(rig, max_tokens=150)
        answer = await rig.read(stream, tokens=20)
        making = Gate(disk.new_segment)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "new_segment", making)
            placed = asyncio.ensure_future(place(rig, KvPlacement.DISK_ALL))
            await making.begun()
            rig.pin("int8")
            async with asyncio.timeout(10):
                await rig.serves("int8")
            space = disk.stored_bytes
        making.open()
        await placed
        await rig.read(stream, answer)
        await rig.until(lambda: disk.stored_bytes == 0)

        assert space == 0
        assert len(answer.tokens) == 150


async def test_a_disk_that_makes_no_file_in_time_is_told_and_left_alone(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream = await ask(rig, max_tokens=150)
        answer = await rig.read(stream, tokens=20)
        making = Gate(disk.new_segment)
        monkeypatch.setattr(disk, "new_segment", making)
        monkeypatch.setattr(running_kv, "FILE_DEADLINE_S", 0.1)
        told = await rig.daemon.dispatcher.running_kv.to_disk()
        rests = disk.room_for(1, rig.daemon.clock.monotonic_s())
        making.open()
        await rig.read(stream, answer)
        await rig.until(lambda: disk.stored_bytes == 0)

        assert "made no room" in told
        assert rests == told
        assert len(answer.tokens) == 150


async def test_what_is_not_written_yet_counts_until_it_is(
    tiny: ModelSpec, disk: KvDisk, gate: Gate
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=150)
        await gate.begun()
        ledger = rig.daemon.pool.ledger()
        told = rig.daemon.demand(ledger).unwritten_bytes
        gate.open()
        await rig.until(lambda: rig.daemon.pool.ledger().unwritten < ledger.unwritten)
        runs = not stream.done
        await rig.read(stream, answer)

        assert ledger.unwritten == told == ledger.filed > 0
        assert runs


async def test_what_is_not_written_yet_is_no_room_to_come_home_to(
    tiny: ModelSpec, disk: KvDisk, gate: Gate
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, text=TALK * 6, max_tokens=600)
        await gate.begun()
        limit, ledger = rig.daemon.controller.policy.memory, rig.daemon.pool.ledger()
        assert limit is not None
        rig.sensors.available_bytes = limit.leave_bytes + ledger.filed + ledger.unwritten - 1.0
        dispatcher = rig.daemon.dispatcher
        dispatcher.point = replace(dispatcher.point, kv_placement=KvPlacement.MEMORY)
        await rig.until(lambda: any(event == "kv_not_moved" for event, _ in rig.log.lines))
        told = [line["reason"] for event, line in rig.log.lines if event == "kv_not_moved"]
        gate.open()
        await rig.until(lambda: not on_disk(stream))
        runs = not stream.done
        await rig.read(stream, answer)

        assert told == ["there is no room in memory for running conversations that are on disk"]
        assert runs
        assert len(answer.tokens) == 600


@pytest.mark.parametrize("mode", list(HandoverMode))
async def test_what_is_on_disk_is_written_while_another_variant_loads(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch, mode: HandoverMode
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        dispatcher, supervisor = rig.daemon.dispatcher, rig.daemon.supervisor
        stream = await ask(rig, max_tokens=300)
        answer = await rig.read(stream, tokens=20)
        load, loading, go_on = supervisor.load, asyncio.Event(), asyncio.Event()

        async def slow(worker: Worker, expected_s: float | None) -> None:
            loading.set()
            await go_on.wait()
            await load(worker, expected_s)

        monkeypatch.setattr(supervisor, "load", slow)
        point = replace(dispatcher.point, variant="int8", kv_placement=KvPlacement.DISK_ALL)
        place = PlaceIdleKv(10**6, KvPlacement.DISK_ALL)
        dispatcher.execute([place, SwitchWorker(10**6 + 1, point, mode)])
        await loading.wait()
        lease = stream.lease
        assert lease is not None
        state = stream.state
        await rig.until(lambda: lease.written > 0)
        lease.written = 0  # as if the disk hadn't taken anything of it until now
        await rig.until(lambda: lease.written > 0)
        still = dispatcher.loading, rig.daemon.pool.ledger().filed > 0
        go_on.set()
        await rig.read(stream, answer)

        breaks = mode is HandoverMode.BREAK_BEFORE_MAKE
        assert state is (StreamState.HELD if breaks else StreamState.RUNNING)
        assert still == (True, True)
        assert stream.disclosure.variants == ("fp32", "int8")
        assert len(answer.tokens) == 300


async def test_what_a_newer_plan_wants_on_disk_stays_there_once_the_disk_has_taken_it(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=300)
        await rig.until(lambda: stream.lease is not None and stream.lease.written > 0)
        gate, lease = Gate(running_kv.write_back), stream.lease
        monkeypatch.setattr(running_kv, "write_back", gate)
        await place(rig, KvPlacement.MEMORY)
        await gate.begun()
        await place(rig, KvPlacement.DISK_ALL)
        gate.open()
        await rig.read(stream, answer, len(stream.generated) + 50)
        same = stream.lease is lease
        await rig.read(stream, answer)

        assert same
        assert len(answer.tokens) == 300


async def test_what_has_no_room_in_memory_any_more_once_the_disk_has_taken_it_stays_there(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=150)
        await rig.until(lambda: stream.lease is not None and stream.lease.written > 0)
        gate, room = Gate(running_kv.write_back), [64 * MIB]
        monkeypatch.setattr(running_kv, "write_back", gate)
        moving = rig.daemon.dispatcher.running_kv.to_memory(lambda: True, lambda: room[0])
        home = asyncio.ensure_future(moving)
        await gate.begun()
        room[0] = 0
        gate.open()
        told = await home
        stayed = on_disk(stream)
        await rig.read(stream, answer)

        assert "no room in memory" in told
        assert stayed
        assert len(answer.tokens) == 150


class Watched:
    """What is written back, and how far the conversation was then."""

    def __init__(self, stream: Stream, patch: pytest.MonkeyPatch) -> None:
        self._write_back, self._stream = running_kv.write_back, stream
        self.shifts: list[int] = []
        patch.setattr(running_kv, "write_back", self)

    def __call__(self, descriptor: int) -> str:
        self.shifts.append(self._stream.shifts)
        return self._write_back(descriptor)


async def shifted(rig: Rig, times: int = 1) -> Stream:
    """A conversation on disk whose window has been shifted, and some tokens more."""
    stream, answer = await moved(rig, after=20, max_tokens=1400)
    while stream.shifts < times:
        await rig.read(stream, answer, len(answer.tokens) + 10)
    await rig.read(stream, answer, len(answer.tokens) + 10)
    return stream


async def test_what_is_read_again_after_a_shift_is_written_again_and_counts(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, shifting(), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=1400)
        watched, before = Watched(stream, monkeypatch), disk.writes.counted_bytes
        space = disk.stored_bytes
        while stream.shifts < 2:
            await rig.read(stream, answer, len(answer.tokens) + 20)
        await rig.until(lambda: 2 in watched.shifts)
        more = disk.writes.counted_bytes - before

        assert 1 in watched.shifts
        assert more > space // 2
        assert disk.stored_bytes == space


async def test_what_is_read_again_after_a_shift_goes_home_only_once_the_disk_has_taken_it(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, shifting(), disk=disk) as rig:
        stream = await shifted(rig)
        gate = Gate(running_kv.write_back)
        monkeypatch.setattr(running_kv, "write_back", gate)
        home = asyncio.ensure_future(bring_home(rig))
        await gate.begun()
        still = on_disk(stream)
        gate.open()
        told = await home

        assert still
        assert told == ""
        assert not on_disk(stream)
