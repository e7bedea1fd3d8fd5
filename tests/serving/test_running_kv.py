"""Running conversations on disk: daemon, workers, engine and files are real."""

from __future__ import annotations

import asyncio
import errno
import math
import mmap
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig import MIB, Answer, Rig, beside_worker, files_of_at_most, no_free_descriptor, running
from test_continuity import TALK

from policies_for_tests import policy
from trimtab.domain.actions import (
    HandoverMode,
    Park,
    PlaceIdleKv,
    SetContext,
    SetPace,
    SetSpeculation,
    SwitchWorker,
)
from trimtab.domain.decisions import Direction
from trimtab.domain.knobs import PARKED, KvPlacement
from trimtab.domain.kv import KvShape
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Reading
from trimtab.errors import ServingError
from trimtab.policy.compiled import Carry, Handover, KvPolicy, Policy, Share, Window
from trimtab.runtime.daemon import Daemon
from trimtab.serving.carrier import Carrier
from trimtab.serving.claims import Lease, shape_of
from trimtab.serving.disk import FileSegment, KvDisk, write_back
from trimtab.serving.pool import GRANT_TOKENS, Pool
from trimtab.serving.rest import FIRST_S
from trimtab.serving.running_kv import WRITE_BACK_TOKENS
from trimtab.serving.segments import Segment
from trimtab.serving.stream import Stream
from trimtab.workers.protocol import Pace
from trimtab.workers.worker import Worker

SHAPE = KvShape(layers=2, kv_heads=2, position_bytes=256)
TOKENS = 600


def placing(quota_bytes: int = 64 * MIB, *, slow: bool = False) -> Policy:
    knobs = replace(policy().knobs, kv_placement=tuple(KvPlacement))
    if slow:  # else the tiny model's answer is over before another worker has loaded
        knobs = replace(knobs, pace_min_ratio=0.1, pace_max_ratio=0.1)
    return policy(
        knobs=knobs,
        handover=Handover(Carry.KV, Carry.KV, 60.0),
        kv=KvPolicy(None, quota_bytes, 64 * MIB, Share.USER),
    )


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def place(rig: Rig, placement: KvPlacement) -> None:
    """Have the daemon move KV as the planner would."""
    rig.daemon.dispatcher.execute([PlaceIdleKv(10**6, placement)])
    await rig.daemon.dispatcher.finished()


async def bring_home(rig: Rig) -> str:
    """Bring what runs on disk back, whatever the point; why not all could be."""
    return await rig.daemon.dispatcher.running_kv.to_memory(lambda: True, lambda: math.inf)


async def ask(rig: Rig, **changes: object) -> Stream:
    stream = await rig.ask(**({"text": TALK, "max_tokens": TOKENS} | changes))
    assert isinstance(stream, Stream)
    return stream


async def two_talking(rig: Rig) -> list[Stream]:
    """Two conversations with some tokens each."""
    streams = [await ask(rig, text=TALK + str(number)) for number in range(2)]
    for stream in streams:
        await rig.read(stream, tokens=5)
    return streams


async def moved(rig: Rig, after: int, **changes: object) -> tuple[Stream, Answer]:
    """A conversation whose KV goes to disk after so many tokens, and those tokens."""
    stream = await ask(rig, **changes)
    answer = await rig.read(stream, tokens=after)
    await place(rig, KvPlacement.DISK_ALL)
    return stream, answer


def pages_of(model: ModelSpec, tokens: int) -> int:
    """What so many positions take in a segment, in bytes."""
    shape = shape_of(model, model.variants[0])
    capacity = Segment.capacity_for(shape, model.context_length)
    return shape.committed_bytes(tokens, capacity, mmap.PAGESIZE)


def on_disk(stream: Stream) -> bool:
    return stream.lease is not None and stream.lease.segment.on_disk


def serves(rig: Rig, stream: Stream) -> bool:
    """Whether what a stream has left can be gone on with: on disk, once its checksum is there."""
    fingerprint, user = rig.model.variants[0].fingerprint, stream.request.user
    return rig.daemon.pool.find(stream.tokens, fingerprint, user, everyone=False) is not None


async def test_a_running_conversation_goes_to_disk_and_back_without_a_seam(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=300))
        rig.daemon.pool.release_all()
        stream, answer = await moved(rig, after=20, max_tokens=300)
        away = on_disk(stream), rig.daemon.pool.ledger(), disk.stored_bytes
        await rig.read(stream, answer, 100)
        await place(rig, KvPlacement.MEMORY)
        await rig.until(lambda: not on_disk(stream))
        home, still_runs = disk.stored_bytes, not stream.done
        await rig.read(stream, answer)

        assert away[0]
        assert away[1].leased == 0
        assert away[1].filed > 0
        assert away[2] == pages_of(tiny, stream.most_positions)
        assert (home, still_runs) == (0, True)
        assert answer.tokens == expected.tokens
        assert rig.daemon.dispatcher.point.kv_placement is KvPlacement.MEMORY


@contextmanager
def no_more_mappings(pid: int) -> Iterator[None]:
    """A process that can't map another segment."""
    statm = Path(f"/proc/{pid}/statm").read_text().split()
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    most = int(statm[0]) * mmap.PAGESIZE + 512 * 1024  # half a segment
    resource.prlimit(pid, resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


async def test_a_move_that_fails_leaves_the_conversation_where_it_was(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=TOKENS))
        rig.daemon.pool.release_all()
        stream = await ask(rig, max_tokens=TOKENS)
        answer = await rig.read(stream, tokens=20)
        running_kv = rig.daemon.dispatcher.running_kv
        with no_more_mappings(rig.worker_pid):
            reason = await running_kv.to_disk()
        stayed = on_disk(stream), disk.stored_bytes, stream.moving
        again = await running_kv.to_disk()
        moved = on_disk(stream)
        await rig.read(stream, answer)

        assert "can't be mapped" in reason
        assert stayed == (False, 0, None)
        assert (again, moved) == ("", True)
        assert answer.tokens == expected.tokens
        assert rig.daemon.supervisor.losses == 0


async def test_a_move_without_a_free_descriptor_can_be_made_later(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream = await ask(rig, max_tokens=300)
        answer = await rig.read(stream, tokens=20)
        running_kv = rig.daemon.dispatcher.running_kv
        with no_free_descriptor(monkeypatch):
            await running_kv.to_disk()
        stayed, why = (on_disk(stream), disk.stored_bytes, stream.moving), stream.not_moved
        again = await running_kv.to_disk()
        moved = on_disk(stream)
        await rig.read(stream, answer)

        assert stayed == (False, 0, None)
        assert "Too many open files" in why
        assert (again, moved) == ("", True)
        assert len(answer.tokens) == 300
        assert rig.daemon.supervisor.losses == 0


async def test_there_is_room_in_memory_for_what_comes_while_the_order_is_on_its_way(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=600)
        await rig.read(stream, answer, GRANT_TOKENS - len(stream.prompt) - 3)
        positions = stream.positions
        worker = stream.worker
        assert worker is not None
        worker.send(Pace(1.0))
        await bring_home(rig)
        lease = stream.lease
        assert lease is not None
        granted, home = lease.granted, not on_disk(stream)
        await rig.read(stream, answer)

        assert home
        assert positions < GRANT_TOKENS
        assert granted >= 2 * GRANT_TOKENS
        assert len(answer.tokens) == 600
        assert rig.daemon.supervisor.losses == 0


async def test_conversations_that_begin_meanwhile_follow(tiny: ModelSpec, disk: KvDisk) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        await place(rig, KvPlacement.DISK_ALL)
        stream = await ask(rig)
        await rig.until(lambda: on_disk(stream))
        answer = await rig.read(stream)

        assert len(answer.tokens) == TOKENS


async def test_one_that_ends_on_disk_waits_there_for_its_next_turn(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        await place(rig, KvPlacement.DISK_ALL)
        stream = await ask(rig, text=TALK * 3)
        first = await rig.read(stream, tokens=50)
        await rig.until(lambda: on_disk(stream))
        await rig.read(stream, first)
        await rig.until(lambda: rig.daemon.pool.ledger().stored_count == 1)
        await rig.until(lambda: serves(rig, stream))
        kept = rig.daemon.pool.ledger(), disk.stored_bytes
        again = await rig.read(await ask(rig, text=TALK * 3))
        positions = len(stream.prompt) + TOKENS - 1

        assert kept[0].idle == 0
        assert kept[1] == pages_of(tiny, positions)
        assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
        assert again.tokens == first.tokens


async def test_what_ended_on_disk_and_was_damaged_costs_a_prefill(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        await place(rig, KvPlacement.DISK_ALL)
        stream = await ask(rig, text=TALK * 3)
        first = await rig.read(stream, tokens=50)
        await rig.until(lambda: on_disk(stream))
        lease = stream.lease
        assert lease is not None
        file = os.dup(lease.segment.descriptor)
        await rig.read(stream, first)
        await rig.until(lambda: rig.daemon.pool.ledger().stored_count == 1)
        await rig.until(lambda: serves(rig, stream))
        os.pwrite(file, b"damage", 40)
        os.close(file)
        again = await rig.read(await ask(rig, text=TALK * 3))

        assert again.usage.cached_tokens == 0
        assert again.tokens == first.tokens


async def test_those_that_wait_on_disk_make_way_for_one_that_runs(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    quota_bytes = pages_of(tiny, TOKENS + 300)  # one, not two
    async with running(tiny, placing(quota_bytes), disk=disk) as rig:
        await place(rig, KvPlacement.DISK_ALL)
        for text in (TALK, "Another talk. " + TALK):
            stream = await ask(rig, text=text)
            answer = await rig.read(stream, tokens=50)
            await rig.until(lambda stream=stream: on_disk(stream))
            await rig.read(stream, answer)
            await rig.until(lambda: rig.daemon.pool.ledger().stored_count == 1)

        assert rig.daemon.pool.ledger().evicted == 1
        assert disk.stored_bytes < quota_bytes


async def test_a_worker_that_is_killed_leaves_a_conversation_on_disk_as_it_was(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=200))
        stream, answer = await moved(rig, after=20, max_tokens=200)
        await rig.read(stream, answer, 60)
        rig.kill_worker()
        await rig.read(stream, answer)

        assert stream.disclosure.resumed == 1
        assert answer.tokens == expected.tokens


async def test_a_conversation_on_disk_is_handed_over(tiny: ModelSpec, disk: KvDisk) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=300)
        rig.pin("int8")
        await rig.serves("int8")
        still = on_disk(stream)
        await rig.read(stream, answer)

        assert still
        assert stream.disclosure.variants == ("fp32", "int8")
        assert len(answer.tokens) == 300


async def test_a_window_is_shifted_on_disk_without_a_second_segment(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    rules = placing(slow=True)
    knobs = replace(rules.knobs, context_min=256, context_max=256, window=Window(True, 4))
    async with running(tiny, replace(rules, knobs=knobs), disk=disk) as rig:
        stream, answer = await moved(rig, after=50)
        size = disk.stored_bytes
        await rig.read(stream, answer)

        assert size == pages_of(tiny, 256)
        assert len(answer.tokens) == TOKENS
        assert stream.disclosure.shifts >= 3


async def test_a_full_disk_is_told_and_the_conversation_goes_on_in_memory(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=50)
        with files_of_at_most(16 * 1024):
            await place(rig, KvPlacement.DISK_ALL)
            await rig.until(lambda: any(event == "kv_not_moved" for event, _ in rig.log.lines))
        reasons = [line["reason"] for event, line in rig.log.lines if event == "kv_not_moved"]
        stayed = not on_disk(stream), disk.stored_bytes
        await rig.read(stream, answer)

        assert len(reasons) == 1
        assert "no room for a running conversation" in reasons[0]
        assert stayed == (True, 0)
        assert len(answer.tokens) == TOKENS


async def test_the_quota_holds_for_running_conversations_too(tiny: ModelSpec, disk: KvDisk) -> None:
    async with running(tiny, placing(quota_bytes=100_000), disk=disk) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=50)
        reason = await rig.daemon.dispatcher.running_kv.to_disk()
        await rig.read(stream, answer)

        assert reason == "the disk quota is used up"
        assert len(answer.tokens) == TOKENS


def test_space_for_all_that_may_come_is_taken_before_anything_is_written(disk: KvDisk) -> None:
    segment = disk.new_segment(disk.claim(1000 * SHAPE.token_bytes, 1.0), SHAPE, 4096, 1000)
    blocks = os.fstat(segment.descriptor).st_blocks * 512
    segment.close()

    # 1000 positions of 256 bytes are 62.5 pages of 4 KiB: a page that is half there isn't enough.
    assert blocks >= SHAPE.aligned_capacity(1000, mmap.PAGESIZE) * SHAPE.token_bytes
    assert segment.committed_bytes() == 0


def test_a_disk_that_is_full_leaves_nothing_behind(disk: KvDisk) -> None:
    before = open_files()
    claim = disk.claim(4096 * SHAPE.token_bytes, 1.0)
    with files_of_at_most(SHAPE.segment_bytes(4096) // 2), pytest.raises(ServingError) as told:
        disk.new_segment(claim, SHAPE, 4096, 4096)

    assert told.value.code == "kv_disk_failed"
    assert open_files() == before


async def test_a_move_that_nobody_waits_for_any_more_gives_its_space_back(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=50)
        moving = asyncio.ensure_future(rig.daemon.dispatcher.running_kv.to_disk())
        await asyncio.sleep(0)
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        await rig.read(stream, answer)

        assert len(answer.tokens) == TOKENS
        assert disk.stored_bytes == 0


async def test_space_for_a_move_that_did_not_happen_is_not_in_the_daily_budget(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=50)
        size_bytes = pages_of(tiny, stream.most_positions)
        disk.configure(64 * MIB, size_bytes)
        moving = asyncio.ensure_future(rig.daemon.dispatcher.running_kv.to_disk())
        await asyncio.sleep(0)
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        with files_of_at_most(16 * 1024):
            refused = await rig.daemon.dispatcher.running_kv.to_disk()
        left = disk.room_for(size_bytes, rig.daemon.clock.monotonic_s() + FIRST_S)
        await rig.read(stream, answer)

        assert "no room for a running conversation" in refused
        assert left == ""


async def test_space_that_a_running_conversation_did_not_use_goes_back_to_the_daily_budget(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=1500)
        space, claimed = pages_of(tiny, stream.most_positions), disk.writes.spent_bytes
        await rig.read(stream, answer, 60)
        stream.cancel()
        await rig.until(lambda: rig.daemon.pool.ledger().filed == 0)
        spent = disk.writes.spent_bytes

        assert claimed == space
        assert pages_of(tiny, len(stream.prompt)) <= spent < space // 2


async def test_so_does_what_one_that_comes_home_did_not_use(tiny: ModelSpec, disk: KvDisk) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=1500)
        space, claimed = pages_of(tiny, stream.most_positions), disk.writes.spent_bytes
        await rig.read(stream, answer, 60)
        await place(rig, KvPlacement.MEMORY)
        await rig.until(lambda: not on_disk(stream))
        spent = disk.writes.spent_bytes

        assert claimed == space
        assert pages_of(tiny, len(stream.prompt)) <= spent < space // 2


async def test_moves_that_fail_spend_nothing_of_the_daily_budget(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=20)
        disk.configure(64 * MIB, pages_of(tiny, stream.most_positions))
        with no_more_mappings(rig.worker_pid):
            reasons = [await rig.daemon.dispatcher.running_kv.to_disk() for _ in range(3)]
        spent = disk.writes.spent_bytes
        again = await rig.daemon.dispatcher.running_kv.to_disk()
        await rig.read(stream, answer)

        assert all("can't be mapped" in reason for reason in reasons)
        assert spent == 0
        assert again == ""


async def test_a_last_rung_that_is_used_again_and_again_stays_open(disk: KvDisk) -> None:
    pool = Pool(disk)
    space, used = 4096 * SHAPE.token_bytes, 300
    disk.configure(2 * space, 3 * space)
    memory = Lease(Segment(SHAPE, 4096), "same", None)
    refused = []
    for _ in range(20):
        refused.append(disk.room_for(space, 1.0))
        claim = disk.claim(space, 1.0, fills=True)
        lease = pool.lend(disk.new_segment(claim, SHAPE, 4096, 4096), memory)
        lease.valid = used
        lease.rewind(100)  # a hand-over by replay: what was written before counts all the same
        pool.drop(lease)
    memory.segment.close()
    written = SHAPE.committed_bytes(used, 4096, mmap.PAGESIZE)

    assert refused == [""] * 20
    assert disk.writes.spent_bytes == 20 * written
    assert disk.stored_bytes == 0


async def test_kv_that_is_to_be_computed_again_is_so_after_a_move_that_a_hand_over_came_before(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        first, _ = await two_talking(rig)
        make, lease, files = KvDisk.new_segment, first.lease, list[FileSegment]()
        assert lease is not None

        def made(*args: Any) -> FileSegment:
            if files:  # the first one waits in its turn, with a file that is ready
                lease.written_by("int4")  # as a hand-over does it
            files.append(make(*args))
            return files[-1]

        monkeypatch.setattr(KvDisk, "new_segment", made)
        reason = await rig.daemon.dispatcher.running_kv.to_disk()

        assert reason == ""
        assert on_disk(first)
        assert first.lease is not None
        assert first.lease.writers == ("fp32", "int4")


async def test_two_who_move_the_same_conversation_spend_the_daily_budget_once(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=50)
        size_bytes = pages_of(tiny, stream.most_positions)
        disk.configure(64 * MIB, 4 * size_bytes)
        dispatcher, now = rig.daemon.dispatcher, rig.daemon.clock.monotonic_s()
        dispatcher.point = replace(dispatcher.point, kv_placement=KvPlacement.DISK_ALL)
        both = dispatcher.running_kv.to_disk(), dispatcher.running_kv.to_disk()
        reasons = await asyncio.gather(*both)
        await rig.until(lambda: disk.room_for(3 * size_bytes, now) == "")
        left = disk.room_for(4 * size_bytes, now)
        await rig.read(stream, answer)

        assert reasons == ["", ""]
        assert left == "today's write budget is used up"


async def test_two_who_move_the_same_conversation_need_its_space_once(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=50)
        disk.configure(pages_of(tiny, stream.most_positions), 64 * MIB)
        dispatcher = rig.daemon.dispatcher
        dispatcher.point = replace(dispatcher.point, kv_placement=KvPlacement.DISK_ALL)
        both = dispatcher.running_kv.to_disk(), dispatcher.running_kv.to_disk()
        reasons = await asyncio.gather(*both)
        away = on_disk(stream)
        await rig.read(stream, answer)

        assert reasons == ["", ""]
        assert away


async def test_idle_kv_that_can_not_move_for_want_of_a_descriptor_keeps_nobody_else(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(segment: Segment) -> Segment:  # as it is told of EMFILE
        raise ServingError("Too many open files", code="kv_pool_full")

    async with running(tiny, placing(slow=True), disk=disk) as rig:
        await rig.read(await ask(rig, text="Another talk. " + TALK, max_tokens=40))
        stream = await ask(rig, max_tokens=100)
        answer = await rig.read(stream, tokens=20)
        monkeypatch.setattr(Segment, "again", none_left)
        dispatcher = rig.daemon.dispatcher
        dispatcher.point = replace(dispatcher.point, kv_placement=KvPlacement.DISK_ALL)
        await rig.until(lambda: on_disk(stream))
        await rig.until(lambda: bool(reasons(rig)))
        idle_bytes = rig.daemon.pool.ledger().idle
        await rig.read(stream, answer)

        assert idle_bytes > 0
        assert reasons(rig) == ["Too many open files"]


async def test_one_that_can_not_be_written_for_want_of_a_descriptor_keeps_no_other(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = FileSegment.another_descriptor
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        streams = await two_talking(rig)

        def none_left(segment: FileSegment) -> int | None:  # as it is told of EMFILE
            if streams[0].lease is not None and segment is streams[0].lease.segment:
                raise ServingError("Too many open files", code="kv_disk_failed")
            return another(segment)

        monkeypatch.setattr(FileSegment, "another_descriptor", none_left)
        await place(rig, KvPlacement.DISK_ALL)
        leases = [stream.lease for stream in streams]
        await rig.until(lambda: leases[1] is not None and leases[1].written > 0)
        await rig.until(lambda: bool(reasons(rig)))
        monkeypatch.undo()
        await rig.until(lambda: leases[0] is not None and leases[0].written > 0)

        assert reasons(rig) == ["Too many open files"]
        assert rig.daemon.pool.ledger().stored_count == 0


async def test_one_that_ends_while_another_is_written_back_harms_nobody(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        streams = await two_talking(rig)
        await place(rig, KvPlacement.DISK_ALL)
        leases = [stream.lease for stream in streams]
        sync, begun, go_on = os.fdatasync, threading.Event(), threading.Event()

        def slow(descriptor: int) -> None:
            begun.set()
            go_on.wait(20)
            sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", slow)
        for stream in streams:  # as if each had added enough for a write
            assert stream.lease is not None
            stream.lease.valid += WRITE_BACK_TOKENS
        await rig.until(begun.is_set)
        for stream in streams:
            stream.cancel()
        await rig.until(lambda: rig.daemon.pool.ledger().stored_count == 2)
        rig.daemon.pool.release_all()
        files = [lease.segment.another_descriptor() for lease in leases if lease is not None]
        go_on.set()
        following = await ask(rig)
        await rig.until(lambda: on_disk(following))
        # which is only once that round is over
        await rig.until(lambda: following.lease is not None and following.lease.written > 0)

        assert files == [None, None]
        assert not [event for event, _ in rig.log.lines if event == "part_failed"]


async def test_one_that_ends_while_another_gets_its_file_harms_nobody(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        streams = await two_talking(rig)
        make, begun, go_on = disk.new_segment, threading.Event(), threading.Event()

        def slow(*order: Any) -> Any:
            begun.set()
            go_on.wait(20)
            return make(*order)

        monkeypatch.setattr(disk, "new_segment", slow)
        placing_them = asyncio.ensure_future(place(rig, KvPlacement.DISK_ALL))
        await rig.until(begun.is_set)
        streams[1].cancel()
        await rig.until(lambda: streams[1].lease is None)
        go_on.set()
        await placing_them
        await rig.until(lambda: on_disk(streams[0]))

        assert not [event for event, _ in rig.log.lines if event == "part_failed"]


def test_a_segment_that_is_closed_has_nothing_to_write_back(disk: KvDisk) -> None:
    segment = disk.new_segment(disk.claim(1000 * SHAPE.token_bytes, 1.0), SHAPE, 4096, 1000)
    open_one, before = segment.another_descriptor(), open_files()
    segment.close()

    assert open_one is not None
    write_back(open_one)
    assert segment.another_descriptor() is None
    assert open_files() == before - 2


class FailingDisk:
    """An fdatasync that fails: a stand-in for a bad disk, since none can be had here.

    A device whose writes fail needs root and the device mapper. What is injected is what the kernel
    says then, and no more than once for each write that failed.

    Args:
        patch: Puts it in place of `os.fdatasync`.
        number: The error.
        times: How many calls fail; those after them succeed, as they do after a failed write.
    """

    def __init__(self, patch: pytest.MonkeyPatch, number: int = errno.EIO, times: int = 1) -> None:
        self._sync, self._number, self._left = os.fdatasync, number, times
        self.calls = 0
        patch.setattr(os, "fdatasync", self)

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        if self._left > 0:
            self._left -= 1
            raise OSError(self._number, os.strerror(self._number))
        self._sync(descriptor)


def lose_pages(stream: Stream, patch: pytest.MonkeyPatch) -> None:
    """Once the worker has let go of the stream, what is in its file now is garbage.

    As if the kernel had let go of pages that it takes for written.
    """
    assert stream.lease is not None
    file, bring = os.dup(stream.lease.segment.descriptor), Carrier.bring

    def after_loss(carrier: Carrier, other: Stream, worker: Worker, *, beyond: bool) -> None:
        if other is stream:
            os.pwrite(file, os.urandom(64 * 1024), 0)
            os.close(file)
            patch.setattr(Carrier, "bring", bring)
        bring(carrier, other, worker, beyond=beyond)

    patch.setattr(Carrier, "bring", after_loss)


def stay(daemon: Daemon) -> None:
    """In place of following the point on each tick, which has KV in memory here."""


def reasons(rig: Rig) -> list[str]:
    return [fields["reason"] for event, fields in rig.log.lines if event == "kv_not_moved"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_what_runs_on_a_disk_that_fails_is_computed_again_in_memory(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=250))
        rig.daemon.pool.release_all()
        stream, answer = await moved(rig, after=20, max_tokens=250)
        before = on_disk(stream), reasons(rig)
        lose_pages(stream, monkeypatch)
        failing = FailingDisk(monkeypatch, number)
        await rig.until(lambda: failing.calls > 0 and stream.lease is not None)
        await rig.until(lambda: not on_disk(stream) and not stream.detaching)
        at = len(stream.generated)
        rests = disk.room_for(1, rig.daemon.clock.monotonic_s())
        again = await rig.daemon.dispatcher.running_kv.to_disk()
        await rig.read(stream, answer)

        assert before == (True, [])
        assert at < 250
        assert reasons(rig) == [f"what runs on disk can't be written back: {os.strerror(number)}"]
        assert reasons(rig) == [rests] == [again]
        assert failing.calls == 1
        assert disk.stored_bytes == 0
        assert answer.tokens == expected.tokens
        assert stream.disclosure.resumed == rig.daemon.supervisor.losses == 0


async def test_a_move_to_a_disk_that_fails_is_told_and_tried_ever_more_rarely(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=150))
        rig.daemon.pool.release_all()
        stream = await ask(rig, max_tokens=150)
        answer = await rig.read(stream, tokens=20)
        monkeypatch.setattr(Daemon, "_offload", stay)
        failing, running_kv = FailingDisk(monkeypatch, times=2), rig.daemon.dispatcher.running_kv
        told = []
        for _ in range(2):
            disk.try_again()  # as a plan does
            disk.running.end()  # it has been left alone for long enough
            told += [await running_kv.to_disk(), await running_kv.write_back()]
            await rig.until(lambda: not stream.detaching and stream.worker is not None)
        home, now = not on_disk(stream), rig.daemon.clock.monotonic_s()
        disk.worked()  # as the KV of an idle conversation can be written
        disk.try_again()
        waits = await running_kv.to_disk()
        rest = [disk.running.why(now + after_s) != "" for after_s in (FIRST_S + 1, 121)]
        disk.running.end()
        await rig.until(lambda: stream.lease is not None and stream.lease.valid > 0)
        works = await running_kv.to_disk(), await running_kv.write_back()
        away = on_disk(stream)
        await rig.read(stream, answer)

        assert told == ["", "what runs on disk can't be written back: Input/output error"] * 2
        assert (home, waits, rest) == (True, told[1], [True, False])
        assert (works, away) == (("", ""), True)
        assert failing.calls >= 3
        assert answer.tokens == expected.tokens


async def test_what_the_disk_has_failed_to_take_is_not_copied_home(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=120))
        rig.daemon.pool.release_all()
        stream, answer = await moved(rig, after=20, max_tokens=120)
        await rig.until(lambda: stream.lease is not None and stream.lease.written > 0)
        at = len(stream.generated)
        await rig.until(lambda: len(stream.generated) > at + 2)
        lose_pages(stream, monkeypatch)
        failing = FailingDisk(monkeypatch)
        told = await bring_home(rig)
        await rig.read(stream, answer)

        assert failing.calls == 1
        assert "can't be written back" in told
        assert answer.tokens == expected.tokens


async def test_only_what_could_not_be_written_leaves_the_disk(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        streams = [await ask(rig, text=TALK + str(number), max_tokens=200) for number in range(2)]
        answers = [await rig.read(stream, tokens=5) for stream in streams]
        failing = FailingDisk(monkeypatch)  # the first of the two
        await place(rig, KvPlacement.DISK_ALL)
        await rig.until(lambda: failing.calls >= 2)
        await rig.until(lambda: not any(stream.detaching for stream in streams))
        where = [on_disk(stream) for stream in streams]
        for stream, answer in zip(streams, answers, strict=True):
            await rig.read(stream, answer)

        assert where == [False, True]
        assert [len(answer.tokens) for answer in answers] == [200, 200]


async def test_a_failure_to_write_that_nobody_waits_for_any_more_counts(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream = await ask(rig, max_tokens=150)
        answer = await rig.read(stream, tokens=20)
        begun, go_on = threading.Event(), threading.Event()

        def fails(descriptor: int) -> None:  # injected, as above
            begun.set()
            go_on.wait(20)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fails)
            patch.setattr(Daemon, "_offload", stay)
            await rig.daemon.dispatcher.running_kv.to_disk()
            writing = asyncio.ensure_future(rig.daemon.dispatcher.running_kv.write_back())
            await rig.until(begun.is_set)
            writing.cancel()
            await asyncio.sleep(0.01)
            go_on.set()
            await asyncio.gather(writing, return_exceptions=True)
        await rig.until(lambda: not on_disk(stream))
        await rig.read(stream, answer)

        assert writing.cancelled()
        assert disk.room_for(1, rig.daemon.clock.monotonic_s()) != ""
        assert len(answer.tokens) == 150


@pytest.mark.parametrize("ends_first", [True, False])
async def test_what_ends_on_a_disk_that_fails_serves_nobody(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch, ends_first: bool
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, _ = await moved(rig, after=20)
        await rig.until(lambda: stream.lease is not None and stream.lease.written > 0)
        sync, begun, go_on, calls = os.fdatasync, threading.Event(), threading.Event(), []

        def fails_once(descriptor: int) -> None:  # injected, as above
            begun.set()
            go_on.wait(20)
            calls.append(descriptor)
            if len(calls) == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", fails_once)
        if not ends_first:
            assert stream.lease is not None
            stream.lease.valid += WRITE_BACK_TOKENS  # as if it had added enough for a write
            await rig.until(begun.is_set)
        stream.cancel()
        await rig.until(lambda: rig.daemon.pool.ledger().stored_count == 1)
        await rig.until(begun.is_set)
        go_on.set()
        await rig.until(lambda: rig.daemon.pool.ledger().stored_count == 0)
        await rig.until(lambda: bool(reasons(rig)))

        assert not serves(rig, stream)
        assert disk.stored_bytes == 0
        assert len(calls) == 1
        assert disk.room_for(1, rig.daemon.clock.monotonic_s()) == reasons(rig)[0]


async def test_kv_on_disk_that_two_workers_died_on_is_computed_again(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=150))
        stream, answer = await moved(rig, after=10, max_tokens=150)
        streams, attach = rig.daemon.streams, rig.daemon.streams.attach

        def deadly(worker: Worker) -> None:
            """A bad block: who reads it dies. What is there is wrong now."""
            monkeypatch.undo()
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGSTOP)
            attach(worker)
            rig.kill_worker()
            assert stream.lease is not None
            os.pwrite(stream.lease.segment.descriptor, os.urandom(64 * 1024), 0)

        monkeypatch.setattr(streams, "attach", deadly)
        rig.kill_worker()
        await rig.read(stream, answer)

        assert stream.disclosure.resumed == 2
        assert answer.tokens == expected.tokens


async def test_a_conversation_for_which_there_was_no_room_comes_back_once_there_is(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=200))
        stream, answer = await moved(rig, after=20, max_tokens=200)
        rig.daemon.pool.configure(1)
        await place(rig, KvPlacement.MEMORY)
        stayed = on_disk(stream)
        rig.daemon.pool.configure(None)
        await rig.until(lambda: not on_disk(stream))
        still_runs = not stream.done
        await rig.read(stream, answer)

        assert stayed
        assert still_runs
        assert answer.tokens == expected.tokens


async def test_it_comes_back_after_a_switch_to_a_point_with_its_kv_in_memory(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=300)
        dispatcher = rig.daemon.dispatcher
        point = replace(dispatcher.point, variant="int8", kv_placement=KvPlacement.MEMORY)
        dispatcher.execute([SwitchWorker(10**6, point, HandoverMode.MAKE_BEFORE_BREAK)])
        await dispatcher.finished()
        await rig.until(lambda: not on_disk(stream))
        still_runs = not stream.done
        await rig.read(stream, answer)

        assert still_runs
        assert len(answer.tokens) == 300


async def test_it_stays_on_disk_while_coming_back_would_make_memory_short(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream, answer = await moved(rig, after=20, max_tokens=200)
        limit = rig.daemon.controller.policy.memory
        assert limit is not None
        rig.sensors.available_bytes = limit.leave_bytes + 1024.0
        rig.daemon.dispatcher.point = replace(
            rig.daemon.dispatcher.point, kv_placement=KvPlacement.MEMORY
        )
        await rig.until(lambda: any(event == "kv_not_moved" for event, _ in rig.log.lines))
        stayed = on_disk(stream)
        rig.sensors.available_bytes = 8192.0 * MIB
        await rig.until(lambda: not on_disk(stream))
        still_runs = not stream.done
        await rig.read(stream, answer)

        assert stayed
        assert still_runs
        assert len(answer.tokens) == 200


@contextmanager
def memory_for_all_but_kv(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The worker fits, and running conversations' KV beside it doesn't."""

    def available(at_s: float) -> Reading:
        return Reading("memory.available", float(beside_worker(rig, 4096)), at_s)

    with monkeypatch.context() as patch:
        patch.setattr(rig.sensors, "memory_available", available)
        yield


def told_placement(rig: Rig) -> set[KvPlacement]:
    """Where KV is, as the dispatcher, the planner and the last decision have it."""
    points = rig.daemon.dispatcher.point, rig.daemon.controller.state.point
    return {one.kv_placement for one in (*points, rig.records.made[-1].target)}


async def test_a_worker_that_is_killed_on_the_last_rung_leaves_the_point_there(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = placing(slow=True)
    only = replace(rules, knobs=replace(rules.knobs, variants=("fp32",)))
    async with running(tiny, only, disk=disk) as rig:
        expected = await rig.read(await ask(rig, max_tokens=200))
        rig.daemon.pool.release_all()
        stream = await ask(rig, max_tokens=200)
        answer = await rig.read(stream, tokens=20)
        with memory_for_all_but_kv(rig, monkeypatch):
            await rig.until(lambda: on_disk(stream))
            await rig.serves("fp32")
            before = told_placement(rig)
            for upto in (60, 100):
                await rig.read(stream, answer, upto)
                lost = rig.daemon.supervisor.losses
                rig.kill_worker()
                await rig.until(lambda lost=lost: rig.daemon.supervisor.losses > lost)
                await rig.serves("fp32")
                await rig.read(stream, answer, upto + 20)
            after, still = told_placement(rig), on_disk(stream)
            ledger = rig.daemon.pool.ledger()
            started = [one for one in rig.records.made if one.direction is Direction.START]
            told = [event for event, _ in rig.log.lines if event == "kv_not_moved"]
            await rig.read(stream, answer)

        assert before == after == {KvPlacement.DISK_ALL}
        assert "all KV on disk" in started[-1].target.describe()
        assert (still, ledger.leased, told) == (True, 0, [])
        assert ledger.filed > 0
        assert stream.disclosure.resumed == 2
        assert answer.tokens == expected.tokens


async def test_what_is_parked_has_no_settings_to_change(tiny: ModelSpec, disk: KvDisk) -> None:
    async with running(tiny, placing(), disk=disk) as rig:
        dispatcher = rig.daemon.dispatcher
        settings = [
            SetContext(10**6 + 1, 512),
            SetPace(10**6 + 2, 0.5),
            SetSpeculation(10**6 + 3, "ngram"),
            PlaceIdleKv(10**6 + 4, KvPlacement.DISK),
        ]
        dispatcher.execute([Park(10**6, "a worker that was lost before them"), *settings])
        await dispatcher.finished()

        assert dispatcher.point == PARKED


async def test_a_plan_tries_a_disk_again_that_failed_a_moment_ago(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        stream = await ask(rig, max_tokens=200)
        answer = await rig.read(stream, tokens=20)
        with files_of_at_most(16 * 1024):
            await rig.daemon.dispatcher.running_kv.to_disk()
        left_alone = await rig.daemon.dispatcher.running_kv.to_disk()
        await place(rig, KvPlacement.DISK_ALL)
        moved = on_disk(stream)
        await rig.read(stream, answer)

        assert "no room for a running conversation" in left_alone
        assert moved
        assert len(answer.tokens) == 200
