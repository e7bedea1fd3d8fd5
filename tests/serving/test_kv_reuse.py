"""What prompts get of idle conversations' KV, wherever it lies: what it costs, and whose it is."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_systemd import FakeManager
from rig import running
from test_continuity import TALK
from test_kv_disk import SHAPE, SIZE, TOKENS, Gate, content, conversation, on_disk, until
from test_streams import Scene, carrying

from policies_for_tests import MIB
from trimtab.domain.actions import HandoverMode, SetContext, SwitchWorker
from trimtab.domain.models import ModelSpec
from trimtab.policy.compiled import Policy, Share
from trimtab.serving.claims import Idle
from trimtab.serving.disk import KvDisk
from trimtab.serving.keep import restore
from trimtab.serving.pool import GRANT_TOKENS, Pool
from trimtab.serving.requests import StreamHandle
from trimtab.serving.segments import Segment
from trimtab.serving.threads import on_disk as in_thread
from trimtab.workers.protocol import Failed, Finished, Progress, Start

LONG = list(range(1, 300))
SYSTEM_PROMPT = LONG[:150]
BYTES_PER_TOKEN = 512  # of the tiny model


def with_disk(**kv: Any) -> Policy:
    return carrying(**{"disk_quota_bytes": 64 * MIB, "writes_per_day_bytes": 64 * MIB} | kv)


class Stage(Scene):
    """A scene with a disk, and one worker that has KV of its own."""

    def __init__(self, model: ModelSpec, disk: KvDisk, **kv: Any) -> None:
        super().__init__(model, with_disk(**kv))
        self.pool.disk = disk
        self.configure(with_disk(**kv))
        self.serves = self.serving(0, "kv")

    async def begin(self, prompt: list[int], user: int = 1) -> StreamHandle:
        """A request with this prompt."""
        self.serves.renders = [prompt]
        return await self.ask(user=user)

    async def left(self, prompt: list[int], user: int = 1) -> Idle:
        """What the conversation leaves behind whose prompt this is."""
        stream = await self.begin(prompt, user)
        self.streams.said(self.serves, Progress(stream.id, len(prompt), len(prompt)))
        self.streams.said(self.serves, Finished(stream.id, "stop"))
        return self.oldest()

    def oldest(self) -> Idle:
        """The conversation in memory that was left first."""
        idle = self.pool.to_offload()
        assert idle is not None
        return idle

    async def stored(self, prompt: list[int], user: int = 1) -> Idle:
        """The same on disk."""
        idle = await self.left(prompt, user)
        assert await self.pool.offload(idle, self.clock.now) == ""
        self.clock.now += 1
        return idle

    def begun_with(self, stream: StreamHandle) -> int:
        """How many tokens of its prompt a stream didn't need to compute."""
        (start,) = (one for one in self.serves.of(Start) if one.stream == stream.id)
        return int(start.valid)


@pytest.fixture
def stage(tiny: ModelSpec, disk: KvDisk) -> Iterator[Stage]:
    made = Stage(tiny, disk)
    yield made
    made.pool.close()


# ---------------------------------------------------------------- what it costs


async def test_a_short_beginning_that_a_long_conversation_on_disk_shares_is_computed(
    stage: Stage, disk: KvDisk
) -> None:
    idle = await stage.stored(LONG)
    stored = disk.stored_bytes
    stream = await stage.begin([*LONG[:20], 499, 498])

    assert stage.begun_with(stream) == 0
    assert idle.stored is not None
    assert disk.stored_bytes == stored


async def test_a_long_beginning_is_read_from_disk_and_the_conversation_stays_there(
    stage: Stage, disk: KvDisk
) -> None:
    await stage.stored(LONG)
    stored = disk.stored_bytes
    stream = await stage.begin([*SYSTEM_PROMPT, 499, 498])
    held = stage.pool.idle_bytes()
    next_turn = await stage.begin([*LONG, 499])

    assert stage.begun_with(stream) == len(SYSTEM_PROMPT)
    assert held == 0  # nothing that would be written again
    assert stage.begun_with(next_turn) == len(LONG)
    assert stored == len(LONG) * BYTES_PER_TOKEN
    assert disk.stored_bytes == 0  # its next turn has taken it over


async def test_what_is_read_from_disk_is_what_was_written(pool: Pool, disk: KvDisk) -> None:
    idle = conversation(pool)
    await pool.offload(idle, 1.0)
    assert idle.stored is not None
    part = Segment(SHAPE, 4096)
    right = disk.read(idle.stored, part, 300)
    with mmap.mmap(part.descriptor, part.size_bytes) as memory:
        rows = list(enumerate(SHAPE.rows(0, 300, 4096)))
        same = [
            memory[span.offset : span.offset + span.length] == bytes([row + 1]) * span.length
            for row, span in rows
        ]
    committed = part.committed_bytes()
    part.close()

    assert right
    assert all(same)
    assert committed == part.predicted_bytes(300)


async def test_damage_beyond_what_is_wanted_is_found_too(stage: Stage, disk: KvDisk) -> None:
    idle = await stage.stored(LONG)
    assert idle.stored is not None
    os.pwrite(idle.stored.descriptor, b"?", len(LONG) * BYTES_PER_TOKEN - 1)
    stream = await stage.begin([*SYSTEM_PROMPT, 499, 498])

    assert stage.begun_with(stream) == 0
    assert disk.stored_bytes == 0


async def test_one_in_memory_that_serves_as_well_goes_before_one_on_disk(pool: Pool) -> None:
    on_disk = conversation(pool)
    await pool.offload(on_disk, 1.0)
    in_memory = conversation(pool)
    found = pool.find([*TOKENS[:500], 9999], "f", 1, everyone=False)

    assert found is not None
    assert found.source is in_memory


async def test_one_on_disk_for_which_there_is_no_room_now_stays_there(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    stage = Stage(tiny, disk, pool_bytes=2 * GRANT_TOKENS * BYTES_PER_TOKEN)
    await stage.stored(LONG)
    other = await stage.begin([7] * 20)
    waits = await stage.begin([*LONG, 499])
    stage.streams.cancel(waits)  # type: ignore[arg-type]
    stage.streams.cancel(other)  # type: ignore[arg-type]
    stage.streams.said(stage.serves, Finished(other.id, "cancelled"))
    later = await stage.begin([*LONG, 499])

    assert stage.begun_with(later) == len(LONG)
    stage.pool.close()


async def test_short_chats_beside_a_long_conversation_on_disk_write_and_read_only_their_own(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, on_disk(), disk=disk) as rig:
        await rig.read(await rig.ask(TALK * 20))
        await rig.until(lambda: disk.stored_bytes > 0 and rig.daemon.pool.idle_bytes() == 0)
        stored, read, reads = disk.stored_bytes, disk.read, []

        def counted(*args: Any) -> bool:
            reads.append(args[0].size_bytes)
            return read(*args)

        monkeypatch.setattr(disk, "read", counted)
        for number in range(3):
            await rig.read(await rig.ask(TALK[:38] + f" {number} is another", max_tokens=5))
            await rig.until(lambda: rig.daemon.pool.idle_bytes() == 0)

        assert all(size < stored / 10 for size in reads)
        assert disk.writes.counted_bytes < 1.5 * stored


async def being_written(
    pool: Pool, idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> tuple[Gate, asyncio.Future[str]]:
    """The disk takes a conversation, as long as the gate is closed; what comes of it."""
    assert pool.disk is not None
    gate = Gate(pool.disk.write)
    monkeypatch.setattr(pool.disk, "write", gate)
    writes = asyncio.ensure_future(pool.offload(idle, 0.0))
    await gate.begun()
    return gate, writes


async def test_a_next_turn_takes_its_kv_from_a_disk_that_is_writing_it(
    stage: Stage, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, writes = await being_written(stage.pool, await stage.left(LONG), monkeypatch)
    shares = await stage.begin([*SYSTEM_PROMPT, 499])
    goes_on = await stage.begin([*LONG, 499])
    gate.open()
    refused = await writes

    assert stage.begun_with(shares) == 0  # a copy could lose its source in the middle
    assert stage.begun_with(goes_on) == len(LONG)
    assert refused == ""
    assert disk.stored_bytes == 0


async def test_what_is_taken_from_a_disk_that_is_writing_it_is_whole(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = conversation(pool)
    before = content(idle.lease)
    gate, writes = await being_written(pool, idle, monkeypatch)
    found = pool.find([*TOKENS, 9999], "f", 1, everyone=False)
    assert found is not None
    lease = pool.take(found)
    gate.open()
    await writes

    assert content(lease) == before
    assert disk.stored_bytes == 0


async def test_a_next_turn_that_ends_while_a_disk_still_writes_is_no_failure_of_the_disk(
    stage: Stage, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, writes = await being_written(stage.pool, await stage.left(LONG), monkeypatch)
    await stage.left([*LONG, 499])
    stage.pool.release_all()
    gate.open()

    assert await writes == ""
    assert disk.forbids(1, 0.0) == ""
    assert (stage.pool.ledger().idle_count, disk.stored_bytes) == (0, 0)


# ---------------------------------------------------------------- a disk that hangs


async def test_a_disk_that_hangs_holds_a_request_for_seconds_only(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, on_disk(), disk=disk) as rig:
        first = await rig.read(await rig.ask(TALK * 6, max_tokens=5))
        await rig.until(lambda: disk.stored_bytes > 0 and rig.daemon.pool.idle_bytes() == 0)
        stored = disk.stored_bytes
        with monkeypatch.context() as patch:
            gate = Gate(disk.read)
            patch.setattr(disk, "read", gate)
            async with asyncio.timeout(6):
                answer = await rig.read(await rig.ask(TALK * 6, max_tokens=5))
            async with asyncio.timeout(1):
                other = await rig.read(await rig.ask(TALK * 6, max_tokens=5))
            kept = disk.stored_bytes >= stored
            gate.open()

        assert answer.tokens == other.tokens == first.tokens
        assert answer.usage.cached_tokens == 0
        assert kept


async def test_what_comes_late_is_given_back_and_serves_the_next_prompt(
    stage: Stage, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = await stage.stored(LONG)
    with monkeypatch.context() as patch:
        gate = Gate(disk.read)
        patch.setattr(disk, "read", gate)
        late = await stage.begin([*LONG, 499])
        gate.open()
        await until(lambda: not idle.busy)
    again = await stage.begin([*LONG, 498])

    assert stage.begun_with(late) == 0
    assert stage.begun_with(again) == len(LONG)


async def test_nothing_else_is_read_while_a_disk_is_late(
    stage: Stage, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.stored(LONG)
    await stage.stored([7, *LONG])
    gate = Gate(disk.read)
    monkeypatch.setattr(disk, "read", gate)
    await stage.begin([*LONG, 499])
    async with asyncio.timeout(1):
        other = await stage.begin([7, *LONG, 499])
    gate.open()
    await until(lambda: not stage.pool.copying)

    assert stage.begun_with(other) == 0


async def test_a_client_that_leaves_while_the_disk_hangs_waits_for_nothing(
    stage: Stage, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.stored(LONG)
    gate = Gate(disk.read)
    monkeypatch.setattr(disk, "read", gate)
    asks = asyncio.ensure_future(stage.begin([*LONG, 499]))
    await gate.begun()
    asks.cancel()
    await asyncio.wait([asks], timeout=1)
    left = asks.done(), stage.gateway.rendering
    gate.open()
    await until(lambda: not stage.pool.copying)

    assert left == (True, 0)


async def test_disks_that_hang_take_no_threads_from_others() -> None:
    gate = Gate(lambda: None)
    hang = [in_thread(gate) for _ in range(40)]
    await gate.begun()
    async with asyncio.timeout(1):
        others = await asyncio.to_thread(lambda: "done")
    gate.open()
    await asyncio.gather(*hang)

    assert others == "done"


async def test_what_a_thread_is_at_work_on_is_not_closed_with_the_pool(
    stage: Stage, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = await stage.stored(LONG)
    gate, used = Gate(disk.read), []
    monkeypatch.setattr(disk, "read", lambda *args: (used.append(args), gate(*args))[1])
    await stage.begin([*LONG, 499])
    stage.pool.close()
    stored, segment = used[0][:2]
    left_open = stored.descriptor >= 0, segment.descriptor >= 0
    gate.open()
    await until(lambda: not idle.busy)

    assert left_open == (True, True)
    assert segment.descriptor == -1  # nobody gets at another file through its number


# ---------------------------------------------------------------- KV that may be wrong


async def test_kv_that_fails_while_it_comes_back_is_not_gone_on_with(
    stage: Stage, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.left(LONG)
    fails = await stage.begin([*SYSTEM_PROMPT, 499])
    assert await stage.pool.offload(stage.oldest(), 0.0) == ""
    gate = Gate(disk.read)
    monkeypatch.setattr(disk, "read", gate)
    asks = asyncio.ensure_future(stage.begin([*LONG, 499]))
    await gate.begun()
    stage.streams.said(stage.serves, Failed(fails.id, "engine_failed", "NaN"))
    gate.open()

    assert stage.begun_with(await asks) == 0
    assert disk.stored_bytes == 0


async def test_kv_that_fails_while_it_is_written_is_not_kept(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = FakeManager(tmp_path)
    stage = Stage(tiny, disk)
    restore({}, stage.pool, None, manager.notifier())
    await stage.left(LONG)
    fails = await stage.begin([*SYSTEM_PROMPT, 499])
    gate = Gate(disk.write)
    monkeypatch.setattr(disk, "write", gate)
    writes = asyncio.ensure_future(stage.pool.offload(stage.oldest(), 0.0))
    await gate.begun()
    stage.streams.said(stage.serves, Failed(fails.id, "engine_failed", "NaN"))
    gate.open()
    await writes

    assert manager.passed() == {}
    assert disk.stored_bytes == 0
    stage.pool.close()
    manager.close()


# ---------------------------------------------------------------- context, user, quota


async def test_what_ends_after_the_context_has_shrunk_holds_no_more_than_fits(
    tiny: ModelSpec,
) -> None:
    async with running(tiny) as rig:
        stream = await rig.ask(TALK * 20, max_tokens=300)
        answer = await rig.read(stream, tokens=2)
        rig.daemon.dispatcher.execute([SetContext(10**6, 256)])
        await rig.daemon.dispatcher.finished()
        await rig.read(stream, answer)
        await rig.until(lambda: rig.daemon.pool.ledger().idle_count == 1)

        assert len(answer.tokens) == 300  # it keeps what it was admitted with
        assert rig.daemon.pool.ledger().idle == 256 * BYTES_PER_TOKEN


async def test_a_switch_to_a_smaller_context_gives_back_what_idle_conversations_hold_beyond_it(
    tiny: ModelSpec,
) -> None:
    async with running(tiny) as rig:
        await rig.read(await rig.ask(TALK * 20, max_tokens=5))
        point = replace(rig.daemon.dispatcher.point, variant="int8", context=256)
        rig.daemon.dispatcher.execute([SwitchWorker(10**6, point, HandoverMode.MAKE_BEFORE_BREAK)])
        await rig.daemon.dispatcher.finished()

        assert rig.daemon.pool.ledger().idle == 256 * BYTES_PER_TOKEN


async def test_no_more_of_a_stored_one_comes_back_than_the_prompt_begins_with(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    stage = Stage(tiny, disk)
    await stage.stored(LONG)
    await stage.begin([*SYSTEM_PROMPT, 499])
    ledger = stage.pool.ledger()

    assert ledger.idle == 0
    assert 0 < ledger.leased < 200 * BYTES_PER_TOKEN
    stage.pool.close()


async def test_a_conversation_stays_its_owners_when_others_share_it(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    stage = Stage(tiny, disk, share=Share.ALL)
    await stage.left(LONG, user=1)
    shares = await stage.begin([*SYSTEM_PROMPT, 499], user=2)
    goes_on = await stage.begin([*LONG, 499], user=2)
    stage.configure(with_disk(share=Share.USER))
    tries = await stage.begin([*LONG, 498], user=3)
    own = await stage.begin([*LONG, 497], user=1)

    assert stage.begun_with(shares) == len(SYSTEM_PROMPT)
    assert stage.begun_with(goes_on) == len(LONG)
    assert stage.begun_with(tries) == 0
    assert stage.begun_with(own) == len(LONG)
    stage.pool.close()


async def test_a_smaller_quota_has_the_oldest_leave_the_disk(stage: Stage, disk: KvDisk) -> None:
    await stage.stored(LONG)
    newer = await stage.stored([7, *LONG])
    size = disk.stored_bytes // 2
    stage.configure(with_disk(disk_quota_bytes=size + 1000))

    assert disk.stored_bytes <= size + 1000
    assert newer.stored is not None
    assert newer.stored.descriptor >= 0
    assert stage.pool.ledger().stored_count == 1


async def test_what_a_smaller_quota_has_no_room_for_does_not_come_back_after_a_restart(
    tiny: ModelSpec, disk: KvDisk, tmp_path: Path
) -> None:
    manager = FakeManager(tmp_path)
    stage = Stage(tiny, disk)
    restore({}, stage.pool, None, manager.notifier())
    await stage.stored(LONG)
    await stage.stored([7, *LONG])
    stage.pool.close()
    disk.configure(disk.stored_bytes // 2 + 1000, SIZE)
    disk.stored_bytes = 0
    later = Pool(disk)
    restored = restore(manager.passed(), later, tiny, manager.notifier())
    newest = later.find([7, *LONG], "tiny", 1, everyone=False)

    assert restored.conversations == 1
    assert later.ledger().stored_count == 1
    assert newest is not None
    later.close()
    manager.close()
