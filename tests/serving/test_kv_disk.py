"""Idle conversations on disk: they free memory, come back whole, and are never wrong."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig import files_of_at_most, running
from test_continuity import TALK

from policies_for_tests import MIB, policy
from trimtab.domain.actions import PlaceIdleKv, ReleaseIdleKv
from trimtab.domain.events import OutcomeKind
from trimtab.domain.knobs import KvPlacement
from trimtab.domain.kv import KvShape
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Snapshot
from trimtab.errors import ServingError, StateError
from trimtab.policy.compiled import KvPolicy, Policy, Share
from trimtab.runtime import daemon as daemon_module
from trimtab.runtime import ticks as ticks_module
from trimtab.runtime.clock import SystemClock
from trimtab.serving.claims import Found, Idle, Lease
from trimtab.serving.copies import Copies
from trimtab.serving.disk import (
    KvDisk,
    Stored,
    filesystem_of,
)
from trimtab.serving.pool import Pool
from trimtab.serving.rest import FIRST_S, LONGEST_S
from trimtab.serving.segments import Segment
from trimtab.serving.write_budget import Claim

SHAPE = KvShape(layers=2, kv_heads=2, position_bytes=256)
TOKENS = list(range(1000))
SIZE = len(TOKENS) * SHAPE.token_bytes
HELD = SHAPE.committed_bytes(len(TOKENS), 4096, mmap.PAGESIZE)
GRANTED = SHAPE.committed_bytes(1024, 4096, mmap.PAGESIZE)


def conversation(pool: Pool, shape: KvShape = SHAPE, tokens: Sequence[int] = TOKENS) -> Idle:
    """An idle conversation whose positions each hold their own content."""
    lease = pool.open(shape, 4096, "f", 1, len(tokens))
    with mmap.mmap(lease.segment.descriptor, lease.segment.size_bytes) as memory:
        for row, span in enumerate(shape.rows(0, len(tokens), lease.segment.capacity)):
            memory[span.offset : span.offset + span.length] = bytes([row + 1]) * span.length
    lease.valid = len(tokens)
    pool.retire(lease, tokens, 1.0)
    idle = pool.to_offload()
    assert idle is not None
    return idle


async def brought_back(pool: Pool, idle: Idle) -> Lease | None:
    """All of a conversation for its next turn."""
    whole = Found(idle, idle.lease.valid, idle.view)
    return await Copies(pool, SystemClock()).lease(whole, idle.lease.user, 20.0)


def content(lease: Lease) -> list[int]:
    """The first byte of each row."""
    segment = lease.segment
    with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
        return [memory[span.offset] for span in segment.shape.rows(0, 1, segment.capacity)]


async def test_an_offloaded_conversation_takes_no_memory_and_comes_back_whole(
    pool: Pool, disk: KvDisk
) -> None:
    idle = conversation(pool)
    before = content(idle.lease)
    refused = await pool.offload(idle, 1.0)
    away = idle.lease.segment.committed_bytes(), pool.idle_bytes(), disk.stored_bytes
    back = await brought_back(pool, idle)

    assert refused == ""
    assert away == (0, 0, SIZE)
    assert back is not None
    assert back.valid == len(TOKENS)
    assert content(back) == before
    assert pool.ledger().stored_count == disk.stored_bytes == 0


async def test_a_damaged_file_is_found_and_forgotten(pool: Pool, disk: KvDisk) -> None:
    idle = conversation(pool)
    await pool.offload(idle, 1.0)
    assert idle.stored is not None
    os.pwrite(idle.stored.descriptor, b"?", SIZE // 2)
    back = await brought_back(pool, idle)

    assert back is None
    assert pool.find(TOKENS, "f", 1, everyone=False) is None
    assert disk.stored_bytes == 0


async def test_a_full_disk_is_told_and_the_conversation_stays_in_memory(pool: Pool) -> None:
    idle = conversation(pool)
    with files_of_at_most(SIZE // 2):
        refused = await pool.offload(idle, 1.0)

    assert "can't be written" in refused
    assert idle.stored is None
    assert idle.lease.segment.committed_bytes() > 0


async def test_quota_and_daily_budget_are_kept(pool: Pool, disk: KvDisk) -> None:
    idle = conversation(pool)
    disk.configure(SIZE - 1, 64 * MIB)
    over_quota = await pool.offload(idle, 1.0)
    disk.configure(64 * MIB, SIZE + SIZE // 2)
    await pool.offload(idle, 1.0)
    again = conversation(pool)
    over_budget = await pool.offload(again, 2.0)
    next_day = await pool.offload(again, 100_000.0)

    assert "quota" in over_quota
    assert "budget" in over_budget
    assert next_day == ""


async def test_what_a_full_disk_did_not_take_is_not_in_the_daily_budget(
    pool: Pool, disk: KvDisk
) -> None:
    disk.configure(64 * MIB, SIZE)
    idle = conversation(pool)
    with files_of_at_most(SIZE // 2):
        refused = await pool.offload(idle, 1.0)
    later = await pool.offload(idle, 1.0 + FIRST_S)

    assert "can't be written" in refused
    assert later == ""


async def test_a_write_that_fails_half_way_is_in_the_daily_budget(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.configure(64 * MIB, SIZE)
    idle = conversation(pool)

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        await pool.offload(idle, 1.0)
    later = await pool.offload(idle, 1.0 + FIRST_S)

    assert later == "today's write budget is used up"
    assert disk.stored_bytes == 0


async def test_a_disk_that_failed_is_left_alone_for_longer_and_longer(
    pool: Pool, disk: KvDisk
) -> None:
    idle = conversation(pool)
    tries, now = [], 0.0
    with files_of_at_most(SIZE // 2):
        told = {await pool.offload(idle, now)}
        while now < 20_000:
            before = disk.room_for(SIZE, now) == ""
            told.add(await pool.offload(idle, now))
            tries += [now] if before else []
            now += 1.0
    waits = [later - earlier for earlier, later in itertools.pairwise([0.0, *tries])]

    assert len(told) == 1  # why it failed is said for as long as it is left alone
    assert waits[:4] == [60, 120, 240, 480]
    assert max(waits) == LONGEST_S
    assert await pool.offload(idle, now + LONGEST_S) == ""
    assert disk.room_for(SIZE, now + LONGEST_S) == ""


async def test_nothing_makes_way_on_disk_for_what_is_not_written_anyway(
    pool: Pool, disk: KvDisk
) -> None:
    stays = conversation(pool)
    await pool.offload(stays, 1.0)
    disk.configure(SIZE, SIZE)
    refused = await pool.offload(conversation(pool), 2.0)

    assert refused == "today's write budget is used up"
    assert stays.stored is not None
    assert disk.stored_bytes == SIZE


def test_what_runs_on_disk_is_counted_in_the_pages_that_it_would_take_in_memory(
    pool: Pool, disk: KvDisk
) -> None:
    claim = disk.claim(HELD, 1.0)
    file = disk.new_segment(claim, SHAPE, 4096, len(TOKENS))
    like = pool.open(SHAPE, 4096, "f", 1, 10)
    lease = pool.lend(file, like)
    lease.valid = 17
    space = os.fstat(file.descriptor).st_blocks * 512

    assert pool.ledger().filed == like.segment.predicted_bytes(17)
    assert disk.stored_bytes == HELD <= space
    pool.retire(lease, TOKENS, 1.0)
    assert disk.stored_bytes == like.segment.predicted_bytes(17)


async def test_nothing_of_it_has_a_name(pool: Pool, tmp_path: Path) -> None:
    await pool.offload(conversation(pool), 1.0)

    assert list((tmp_path / "kv").iterdir()) == []
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700


def test_a_folder_in_memory_is_refused() -> None:
    with pytest.raises(StateError) as told:
        KvDisk(Path("/dev/shm/trimtab-test-kv"), Path("/proc/self/mounts").read_text())
    Path("/dev/shm/trimtab-test-kv").rmdir()

    assert "memory" in told.value.message


def test_the_filesystem_is_that_of_the_innermost_mount() -> None:
    mounts = "/dev/sda / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/sdb /run/data\\040x xfs rw 0 0"

    assert filesystem_of(Path("/var/cache"), mounts) == "ext4"
    assert filesystem_of(Path("/run/user"), mounts) == "tmpfs"
    assert filesystem_of(Path("/run/data x/kv"), mounts) == "xfs"
    assert filesystem_of(Path("/runner"), mounts) == "ext4"


class Gate:
    """A disk operation that goes on when it is told to.

    Args:
        work: What it does then.
    """

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work
        self._begun = threading.Event()
        self._go_on = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self._begun.set()
        self._go_on.wait(20)
        return self._work(*args)

    async def begun(self) -> None:
        """Wait until it is under way."""
        await asyncio.to_thread(self._begun.wait, 20)

    def open(self) -> None:
        """Let it go on."""
        self._go_on.set()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to come true."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def cancelled(task: asyncio.Task[Any], gate: Gate, disk: KvDisk) -> None:
    """Cancel what waits for a disk, and let the disk go on once nobody waits any more."""
    await gate.begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    await until(lambda: not disk.unanswered)


async def test_a_return_that_nobody_waits_for_any_more_takes_no_memory(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = conversation(pool)
    before = content(idle.lease)
    await pool.offload(idle, 1.0)
    with monkeypatch.context() as patch:
        gate = Gate(disk.read)
        patch.setattr(disk, "read", gate)
        task = asyncio.ensure_future(brought_back(pool, idle))
        await gate.begun()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        busy = idle.busy
        gate.open()
        await until(lambda: not idle.busy)
    left = pool.ledger()
    back = await brought_back(pool, idle)

    assert busy
    assert (left.leased, left.idle, left.stored) == (0, 0, SIZE)
    assert back is not None
    assert content(back) == before


async def test_the_room_for_a_conversation_that_comes_back_is_taken_before_it_is_read(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = conversation(pool)
    await pool.offload(idle, 1.0)
    pool.configure(GRANTED)
    gate = Gate(disk.read)
    monkeypatch.setattr(disk, "read", gate)
    task = asyncio.ensure_future(brought_back(pool, idle))
    await gate.begun()
    with pytest.raises(ServingError) as told:
        pool.open(SHAPE, 4096, "f", 1, 10)
    gate.open()

    assert told.value.code == "kv_pool_full"
    assert await task is not None


async def test_a_write_that_fails_when_nobody_waits_for_it_any_more_gives_its_space_back(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = conversation(pool)
    gate = Gate(disk.write)
    monkeypatch.setattr(disk, "write", gate)
    with files_of_at_most(SIZE // 2):
        await cancelled(asyncio.ensure_future(pool.offload(idle, 1.0)), gate, disk)

    assert disk.stored_bytes == 0
    assert idle.memory_bytes == HELD


async def test_a_write_that_nobody_waits_for_any_more_gives_its_space_back(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = conversation(pool)
    gate = Gate(disk.write)
    monkeypatch.setattr(disk, "write", gate)
    await cancelled(asyncio.ensure_future(pool.offload(idle, 1.0)), gate, disk)

    assert disk.stored_bytes == 0
    assert idle.memory_bytes == HELD


async def test_what_is_copied_from_when_the_disk_has_taken_it_stays_in_memory(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, gate = conversation(pool), Gate(disk.write)
    before = content(idle.lease)
    monkeypatch.setattr(disk, "write", gate)
    task = asyncio.ensure_future(pool.offload(idle, 1.0))
    await gate.begun()
    pool.read(idle)
    gate.open()
    await task
    during = content(idle.lease)
    pool.was_read(idle)

    assert during == before
    assert disk.stored_bytes == 0
    assert pool.to_offload() is idle


def on_disk() -> Policy:
    return policy(
        knobs=replace(policy().knobs, kv_placement=(KvPlacement.DISK,)),
        kv=KvPolicy(None, 64 * MIB, 64 * MIB, Share.USER),
    )


async def test_the_next_turn_comes_from_disk_without_computing_the_prompt(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, on_disk(), disk=disk) as rig:
        first = await rig.read(await rig.ask(TALK * 6))
        await rig.until(lambda: disk.stored_bytes > 0 and rig.daemon.pool.idle_bytes() == 0)
        again = await rig.read(await rig.ask(TALK * 6))

        assert again.tokens == first.tokens
        assert again.usage.cached_tokens == again.usage.prompt_tokens - 1


async def test_a_damaged_conversation_costs_a_prefill_and_never_wrong_tokens(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, on_disk(), disk=disk) as rig:
        first = await rig.read(await rig.ask(TALK * 6))
        await rig.until(lambda: disk.stored_bytes > 0 and rig.daemon.pool.idle_bytes() == 0)
        worker = rig.daemon.streams.active
        assert worker is not None
        prompt = await worker.render(text=TALK * 6)
        found = rig.daemon.pool.find(prompt, tiny.variants[0].fingerprint, 1000, everyone=False)
        assert found is not None
        assert found.source.stored is not None
        os.pwrite(found.source.stored.descriptor, b"damage", 1000)
        again = await rig.read(await rig.ask(TALK * 6))

        assert again.tokens == first.tokens
        assert again.usage.cached_tokens == 0


async def test_what_is_not_being_written_can_be_given_back_while_a_slow_disk_writes(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, go_on = disk.write, threading.Event()

    def slow(claim: Claim, segment: Segment, tokens: int) -> Stored:
        go_on.wait(20)
        return write(claim, segment, tokens)

    monkeypatch.setattr(disk, "write", slow)
    async with running(tiny, on_disk(), disk=disk) as rig:
        pool, dispatcher = rig.daemon.pool, rig.daemon.dispatcher
        for text in (TALK * 6, "Another one. " + TALK * 6):
            await rig.read(await rig.ask(text))
        dispatcher.execute([PlaceIdleKv(10**6, KvPlacement.DISK)])
        await dispatcher.finished()
        await rig.until(lambda: disk.stored_bytes > 0)  # the first one is being written
        held = pool.idle_bytes()
        dispatcher.execute([ReleaseIdleKv(10**6 + 1, 10 * MIB)])
        await dispatcher.finished()
        left = pool.ledger()
        go_on.set()
        await rig.until(lambda: pool.idle_bytes() == 0)

        assert left.idle_count == 1
        assert 0 < left.idle < held
        assert pool.ledger().stored_count == 1


async def test_those_on_disk_make_no_way_where_that_would_not_be_enough(
    pool: Pool, disk: KvDisk
) -> None:
    first = conversation(pool)
    await pool.offload(first, 1.0)
    disk.claim(SIZE, 1.0)  # of a conversation that runs
    disk.configure(2 * SIZE - 1, 64 * MIB)
    second = conversation(pool)
    refused = await pool.offload(second, 2.0)

    assert refused == "the disk quota is used up"
    assert first.stored is not None
    assert disk.stored_bytes == 2 * SIZE
    assert pool.ledger().evicted == 0


@pytest.mark.parametrize("limit", ["disk_quota_bytes", "writes_per_day_bytes"])
async def test_one_that_is_too_large_for_the_disk_keeps_no_smaller_one_in_memory(
    tiny: ModelSpec, disk: KvDisk, limit: str
) -> None:
    rules = on_disk()
    small = replace(rules, kv=replace(rules.kv, **{limit: 150_000}))  # less than 700 tokens take
    async with running(tiny, small, disk=disk) as rig:
        await rig.read(await rig.ask(TALK * 20, max_tokens=5))
        for number in range(2):
            await rig.read(await rig.ask(f"{number} begins in its own way", max_tokens=40))
        await rig.until(lambda: rig.daemon.pool.ledger().stored_count == 2)
        ledger = rig.daemon.pool.ledger()
        told = [line["reason"] for event, line in rig.log.lines if event == "kv_not_moved"]

    assert ledger.idle_count == 3
    assert ledger.idle > 150_000
    assert len(told) == 1
    assert "used up" in told[0]


async def test_a_disk_that_failed_is_not_asked_for_the_next_conversation(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fails(*order: Any) -> Stored:
        calls.append(order)
        raise ServingError("the disk is full", code="kv_disk_failed")

    async with running(tiny, policy(), disk=disk) as rig:
        for number in range(3):
            await rig.read(await rig.ask(f"{number} begins in its own way", max_tokens=40))
        disk.configure(64 * MIB, 64 * MIB)
        monkeypatch.setattr(disk, "write", fails)
        point = replace(rig.daemon.dispatcher.point, kv_placement=KvPlacement.DISK)
        rig.daemon.dispatcher.point = point
        with pytest.raises(ServingError) as told:
            await rig.daemon.dispatcher.follow_placement(lambda: 0.0)

    assert told.value.message == "the disk is full"
    assert len(calls) == 1


async def test_idle_kv_that_a_full_disk_does_not_take_is_told_once(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, on_disk(), disk=disk) as rig:
        stream = await rig.ask(TALK * 6)
        answer = await rig.read(stream, tokens=5)
        with files_of_at_most(16 * 1024):
            await rig.read(stream, answer)
            await rig.until(lambda: any(event == "kv_not_moved" for event, _ in rig.log.lines))
            await asyncio.sleep(0.5)  # some ticks
        reasons = [line["reason"] for event, line in rig.log.lines if event == "kv_not_moved"]

        assert len(reasons) == 1
        assert "can't be written" in reasons[0]
        assert rig.daemon.pool.idle_bytes() > 0


async def test_idle_kv_is_given_back_beside_a_load_that_goes_on(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    async with running(tiny, on_disk(), disk=disk) as rig:
        await rig.read(await rig.ask(TALK * 6))
        rig.pin("int8")
        await rig.until(lambda: rig.daemon.dispatcher.loading)
        rig.daemon.dispatcher.execute([ReleaseIdleKv(10**6, 10 * MIB)])
        await rig.until(lambda: rig.daemon.pool.ledger().idle_count == 0)
        while_loading = rig.daemon.dispatcher.loading
        await rig.serves("int8")
        outcomes = [one.outcome.kind for one in rig.records.outcomes if one.outcome is not None]

        assert while_loading
        assert OutcomeKind.SUPERSEDED not in outcomes


async def test_what_is_on_its_way_to_disk_is_written_and_let_go_of_in_small_pieces(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, advise, unwritten, seen = os.fdatasync, os.posix_fadvise, [0], list[int]()

    def synced(descriptor: int) -> None:
        seen.append(os.lseek(descriptor, 0, os.SEEK_CUR) - unwritten[0])
        sync(descriptor)

    def let_go(descriptor: int, offset: int, length: int, advice: int) -> None:
        unwritten[0] = os.lseek(descriptor, 0, os.SEEK_CUR)
        advise(descriptor, offset, length, advice)

    large = KvShape(layers=4, kv_heads=1, position_bytes=1024)
    idle = conversation(pool, large, range(4096))
    monkeypatch.setattr(os, "fdatasync", synced)
    monkeypatch.setattr(os, "posix_fadvise", let_go)
    told = await pool.offload(idle, 1.0)
    back = await brought_back(pool, idle)

    assert told == ""
    assert seen == [8 * MIB] * 3  # the last eight with the file's end
    assert unwritten == [32 * MIB]
    assert back is not None
    assert content(back) == list(range(1, 9))


async def test_what_a_disk_refuses_does_not_keep_a_daemon_from_resting(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks_module, "CALM_AFTER_S", 0.5)
    monkeypatch.setattr(daemon_module, "calm", lambda *_: True)
    full = replace(on_disk(), kv=KvPolicy(None, 0, 0, Share.USER))
    async with running(tiny, full, disk=disk) as rig:
        await rig.read(await rig.ask(TALK * 6))
        await rig.until(lambda: any(event == "kv_not_moved" for event, _ in rig.log.lines))
        await asyncio.sleep(1.0)
        looked, snapshot = list[float](), rig.sensors.snapshot

        def look(at_s: float, wall_s: float) -> Snapshot:
            looked.append(at_s)
            return snapshot(at_s, wall_s)

        monkeypatch.setattr(rig.sensors, "snapshot", look)
        await asyncio.sleep(1.0)
        held = rig.daemon.pool.idle_bytes()

        assert held > 0
        assert looked == []
