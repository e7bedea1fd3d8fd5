"""Prompts that begin like what others run, read or copy at the moment: who gets what, and when."""

from __future__ import annotations

import asyncio
import mmap
import threading
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rig import Answer, Rig, no_free_descriptor, running
from stand_ins import FakeClock
from test_continuity import TALK
from test_kv_disk import SHAPE, content, until
from test_kv_reuse import Stage, with_disk

from policies_for_tests import MIB, policy
from trimtab.domain.models import ModelSpec
from trimtab.domain.scheduling import Schedule
from trimtab.domain.view import View
from trimtab.policy.compiled import Share
from trimtab.serving.claims import Idle, Lease, Running
from trimtab.serving.copies import Copies, worth_waiting_s
from trimtab.serving.disk import KvDisk
from trimtab.serving.pool import GRANT_TOKENS, Pool
from trimtab.serving.prefixes import BESIDE_OTHERS, MORE_TOKENS
from trimtab.serving.requests import StreamHandle
from trimtab.serving.segments import Segment
from trimtab.serving.stream import StreamState
from trimtab.serving.streams import COMING_MAX_S
from trimtab.workers.protocol import (
    Cancel,
    Detached,
    Failed,
    Finished,
    Grow,
    Moved,
    Progress,
    Start,
    Tokens,
)

SYSTEM = list(range(1, 201))
BYTES_PER_TOKEN = 512  # of the tiny model


def turn(number: int) -> list[int]:
    """A prompt with the shared beginning and a question of its own."""
    return [*SYSTEM, *range(300 + 10 * number, 304 + 10 * number)]


class Threads:
    """Copies in memory that go on as long as the test wants."""

    def __init__(self) -> None:
        self._may_go = threading.Event()
        self.begun = 0

    def copy_into(self, source: Segment, target: Segment, tokens: int) -> None:
        self.begun += 1
        assert self._may_go.wait(20)
        COPY(source, target, tokens)

    def go_on(self) -> None:
        self._may_go.set()


COPY = Segment.copy_into


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    threads = Threads()
    monkeypatch.setattr(
        Segment, "copy_into", lambda source, *into: threads.copy_into(source, *into)
    )
    yield threads
    threads.go_on()


class Ward(Stage):
    """A stage whose streams are looked into."""

    def admits(self, **changes: Any) -> None:
        """Another admission applies."""
        self.configure(replace(with_disk(), admission=replace(policy().admission, **changes)))

    def of(self, handle: StreamHandle) -> Any:
        """The record of a stream."""
        return self.streams._streams[handle.id]

    def begun(self, handle: StreamHandle) -> bool:
        return any(one.stream == handle.id for one in self.serves.of(Start))

    async def begins(self, handle: StreamHandle) -> int:
        """With how many tokens of its prompt a stream begins, once it does."""
        await until(lambda: self.begun(handle))
        return self.begun_with(handle)

    def reads(self, handle: StreamHandle, done: int) -> None:
        """The worker has read so much of a prompt."""
        self.streams.said(self.serves, Progress(handle.id, done, len(self.of(handle).tokens)))

    def fill(self, handle: StreamHandle, byte: int) -> None:
        """Its segment holds the same byte everywhere."""
        segment: Segment = self.of(handle).lease.segment
        write(segment, byte)

    async def held_up(self, slow: Threads, prompt: list[int]) -> asyncio.Future[StreamHandle]:
        """A request that comes, and whose KV is being copied."""
        asks = asyncio.ensure_future(self.begin(prompt))
        await until(lambda: slow.begun > 0)
        return asks


def write(segment: Segment, byte: int) -> None:
    with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
        for span in segment.shape.rows(0, 400, segment.capacity):
            memory[span.offset : span.offset + span.length] = bytes([byte]) * span.length


@pytest.fixture
def ward(tiny: ModelSpec, disk: KvDisk) -> Iterator[Ward]:
    made = Ward(tiny, disk)
    yield made
    made.pool.close()


# ---------------------------------------------------------------- many readers


async def test_requests_that_come_while_one_copies_an_idle_beginning_copy_it_too(
    ward: Ward, slow: Threads
) -> None:
    await ward.left([*SYSTEM, *range(1000, 1200)])
    asks = [asyncio.ensure_future(ward.begin(turn(number))) for number in range(4)]
    await until(lambda: slow.begun == 4)
    slow.go_on()
    begun = [ward.begun_with(await one) for one in asks]

    assert begun == [len(SYSTEM)] * 4
    assert ward.oldest().lease.readers == 0


async def test_what_is_read_is_neither_dropped_nor_moved_nor_taken_over(
    ward: Ward, slow: Threads
) -> None:
    whole = [*SYSTEM, *range(1000, 1200)]
    idle = await ward.left(whole)
    asks = await ward.held_up(slow, turn(1))
    freed = ward.pool.release(100 * MIB) + ward.pool.release_all() + ward.pool.limit(50)
    movable = ward.pool.to_offload()
    next_turn = asyncio.ensure_future(ward.begin([*whole, 7]))
    await until(lambda: slow.begun == 2)
    slow.go_on()
    streams = [await asks, await next_turn]

    assert (freed, movable) == (0, None)
    assert [ward.begun_with(one) for one in streams] == [len(SYSTEM), len(whole)]
    assert all(ward.of(one).lease is not idle.lease for one in streams)
    assert idle.lease.valid == 50  # that had to wait for them


async def test_a_copy_does_not_depend_on_its_sources_descriptor(ward: Ward, slow: Threads) -> None:
    running = await ward.begin(turn(1))
    ward.reads(running, 204)
    ward.fill(running, 7)
    asks = await ward.held_up(slow, turn(2))
    source: Lease = ward.of(running).lease
    ward.streams._carrier._drop(ward.of(running))
    slow.go_on()
    stream = await asks

    assert source.segment.descriptor == -1
    assert ward.begun_with(stream) == len(SYSTEM)
    assert set(content(ward.of(stream).lease)) == {7}


async def test_where_no_descriptor_is_left_the_prompt_is_computed(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = await ward.left([*SYSTEM, *range(1000, 1200)])
    with no_free_descriptor(monkeypatch):
        stream = await ward.begin(turn(1))

    assert ward.begun_with(stream) == 0
    assert idle.lease.readers == 0
    assert len(ward.pool._leases) == 1


async def test_a_conversation_that_ends_while_it_is_read_keeps_what_is_read_of_it(
    ward: Ward, slow: Threads
) -> None:
    running = await ward.begin(turn(1))
    ward.reads(running, 204)
    ward.fill(running, 7)
    ward.pool.limit(100)
    asks = await ward.held_up(slow, turn(2))
    ward.streams.said(ward.serves, Finished(running.id, "stop"))
    kept = ward.pool.ledger().idle_count, ward.pool.release_all()
    slow.go_on()
    stream = await asks
    idle = ward.oldest()

    assert kept == (1, 0)
    assert ward.begun_with(stream) == len(SYSTEM)
    assert set(content(ward.of(stream).lease)) == {7}
    assert (idle.lease.readers, idle.lease.valid) == (0, 100)


# ---------------------------------------------------------------- who may read whose


async def test_a_running_conversation_serves_with_what_is_acknowledged_of_it(ward: Ward) -> None:
    running = await ward.begin([*SYSTEM, *range(1000, 1500)])
    ward.reads(running, 150)
    ward.of(running).paused = True  # so that nobody waits for the rest
    stream = await ward.begin(turn(1))

    assert ward.begun_with(stream) == 150
    assert ward.of(stream).cached_tokens == 150


async def test_what_it_has_answered_serves_a_next_turn_too(ward: Ward) -> None:
    running = await ward.begin(SYSTEM)
    ward.reads(running, 200)
    answer = list(range(1000, 1100))
    for index, token in enumerate(answer):
        ward.streams.said(ward.serves, Tokens(running.id, index, [token], "x"))
    stream = await ward.begin([*SYSTEM, *answer, 7])

    assert ward.begun_with(stream) == 299  # the newest is not in its KV


async def test_one_that_waits_serves_too_with_what_it_will_begin_with(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    ward = Ward(tiny, disk)
    await ward.left(turn(1))
    ward.admits(conversations=0)
    taken, copied = await ward.begin(turn(2)), await ward.begin(turn(3))

    assert ward.of(taken).state is ward.of(copied).state is StreamState.WAITING
    assert ward.of(taken).lease.valid == ward.of(copied).lease.valid == len(SYSTEM)
    ward.pool.close()


@pytest.mark.parametrize("share", [Share.USER, Share.ALL])
async def test_another_users_running_conversation_serves_if_the_policy_says_so(
    tiny: ModelSpec, disk: KvDisk, share: Share
) -> None:
    ward = Ward(tiny, disk, share=share)
    running = await ward.begin(turn(1), user=1)
    ward.reads(running, 204)
    stream = await ward.begin(turn(2), user=2)

    assert ward.begun_with(stream) == (len(SYSTEM) if share is Share.ALL else 0)
    ward.pool.close()


async def test_nor_do_others_wait_for_another_users(ward: Ward) -> None:
    await ward.begin(turn(1), user=1)
    stream = await ward.begin(turn(2), user=2)

    assert ward.begun_with(stream) == 0


async def doubtful(ward: Ward, handle: StreamHandle) -> None:
    ward.of(handle).doubtful = True


async def shifted(ward: Ward, handle: StreamHandle) -> None:
    ward.of(handle).view = View(4, 20)


async def of_another_model(ward: Ward, handle: StreamHandle) -> None:
    ward.of(handle).lease.fingerprint = "other"


async def distrusted(ward: Ward, handle: StreamHandle) -> None:
    ward.pool.distrust(ward.of(handle).lease)


async def cancelled(ward: Ward, handle: StreamHandle) -> None:
    ward.streams.cancel(ward.of(handle))


async def on_a_disk(ward: Ward, handle: StreamHandle) -> None:
    disk, stream = ward.pool.disk, ward.of(handle)
    assert disk is not None
    memory = stream.lease.segment
    claim = disk.claim(memory.predicted_bytes(300), 0.0, fills=True)
    file = disk.new_segment(claim, memory.shape, memory.capacity, 300)
    stream.moving = ward.pool.lend(file, stream.lease)
    ward.streams.said(ward.serves, Moved(handle.id, 0, 204))


@pytest.mark.parametrize(
    "happens", [doubtful, shifted, of_another_model, distrusted, cancelled, on_a_disk]
)
async def test_one_whose_kv_may_not_serve_serves_nobody(ward: Ward, happens: Any) -> None:
    running = await ward.begin(turn(1))
    ward.reads(running, 204)
    await happens(ward, running)
    stream = await ward.begin(turn(2))

    assert ward.begun_with(stream) == 0


# ---------------------------------------------------------------- garbage is not believed


async def rewound(ward: Ward, handle: StreamHandle) -> None:
    """It is computed again in place, and has come as far again before the copy is looked at."""
    stream = ward.of(handle)
    stream.lease.rewind(0)
    ward.fill(handle, 99)
    ward.reads(handle, 204)


async def read_again(ward: Ward, handle: StreamHandle) -> None:
    """A window that is shifted without a second segment."""
    ward.of(handle).read_again(View(4, 100))


async def crossed(ward: Ward, handle: StreamHandle) -> None:
    """A worker begins anew with its segment, since the policy has it computed again."""
    ward.of(handle).lease.writers = ("another",)
    ward.of(handle).doubtful = False
    ward.streams._carrier._refused = lambda *_: frozenset(["another"])  # type: ignore[method-assign]
    ward.streams.lost(ward.serves)
    ward.serves = ward.serving(0, "kv")


async def found_wrong(ward: Ward, handle: StreamHandle) -> None:
    ward.streams.said(ward.serves, Failed(handle.id, "engine_failed", "NaN"))


async def found_doubtful(ward: Ward, handle: StreamHandle) -> None:
    ward.streams.doubt(ward.of(handle))


@pytest.mark.parametrize("happens", [rewound, read_again, crossed, found_wrong, found_doubtful])
async def test_what_was_copied_while_the_source_lost_it_is_not_believed(
    ward: Ward, slow: Threads, happens: Any
) -> None:
    running = await ward.begin(turn(1))
    ward.reads(running, 204)
    asks = await ward.held_up(slow, turn(2))
    held = len(ward.pool._leases)
    await happens(ward, running)
    slow.go_on()
    stream = await asks
    record = ward.of(stream)

    assert record.lease is None or record.lease.valid == 0
    assert record.cached_tokens == 0
    assert len(ward.pool._leases) <= held  # what was copied into has been given back


async def test_a_prompts_last_token_that_is_read_again_in_place_is_not_copied(
    ward: Ward, slow: Threads
) -> None:
    running = await ward.begin(turn(1))
    ward.reads(running, 204)  # all of it, and its first token is lost with the worker
    asks = await ward.held_up(slow, [*turn(1), 7])
    ward.streams.lost(ward.serves)
    ward.serves = ward.serving(0, "kv")
    (again,) = ward.serves.of(Start)
    slow.go_on()
    stream = await asks

    assert again.valid == 203
    assert await ward.begins(stream) == 203


async def test_what_a_running_one_gave_to_a_stream_that_failed_serves_nobody_else(
    ward: Ward,
) -> None:
    running = await ward.begin(turn(1))
    ward.reads(running, 204)
    fails = await ward.begin(turn(2))
    ward.streams.said(ward.serves, Failed(fails.id, "engine_failed", "NaN"))
    again = await ward.begin(turn(3))
    ward.streams.said(ward.serves, Finished(running.id, "stop"))

    assert ward.begun_with(fails) == len(SYSTEM)
    assert ward.begun_with(again) == 0
    assert ward.pool.ledger().idle_count == 0


# ---------------------------------------------------------------- who waits


async def test_a_burst_with_one_cold_beginning_computes_it_once(ward: Ward) -> None:
    streams = [await ward.begin(turn(number)) for number in range(4)]
    early = [ward.begun(one) for one in streams]
    ward.reads(streams[0], 192)
    still = [ward.begun(one) for one in streams]
    ward.reads(streams[0], 204)
    begun = [await ward.begins(one) for one in streams]

    assert early == still == [True, False, False, False]
    assert begun == [0] + [len(SYSTEM)] * 3
    assert [ward.of(one).cached_tokens for one in streams] == begun
    assert all(ward.of(one).lease.readers == 0 for one in streams)


async def test_nobody_waits_for_little(ward: Ward) -> None:
    beginning = SYSTEM[: MORE_TOKENS - 1]
    await ward.begin([*beginning, *range(1000, 1100)])
    stream = await ward.begin([*beginning, *range(2000, 2100)])

    assert ward.begun_with(stream) == 0


async def test_nobody_else_waits_for_one_that_waits_for_its_prefix(ward: Ward) -> None:
    await ward.begin(turn(1))
    waits, other = await ward.begin(turn(2)), await ward.begin(list(range(2000, 2100)))

    assert not ward.begun(waits)
    assert ward.begun(other)


@pytest.mark.parametrize(
    ("why", "how"), [("detaching", True), ("moving", object()), ("reading", False)]
)
async def test_nobody_waits_for_one_that_does_not_get_on(
    ward: Ward, why: str, how: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await ward.begin(turn(1))
    with monkeypatch.context() as patch:
        patch.setattr(ward.of(running), why, how)
        stream = await ward.begin(turn(2))

    assert ward.begun(stream)


async def test_nobody_waits_for_one_whose_turn_others_have(ward: Ward) -> None:
    running = await ward.begin(turn(1))
    other, stream = await ward.begin(list(range(2000, 2100))), await ward.begin(turn(2))
    ward.streams.follow(Schedule((stream.id, other.id, running.id), together=1))
    early = ward.begun(stream)
    ward.streams.expire()

    assert not early
    assert ward.of(running).paused
    assert ward.begun_with(stream) == 0


async def test_who_waits_for_one_that_reads_leaves_it_its_turn(ward: Ward) -> None:
    running = await ward.begin(turn(1))
    stream = await ward.begin(turn(2))
    ward.streams.follow(Schedule((stream.id, running.id), together=1))
    paused = ward.of(running).paused
    ward.reads(running, 204)

    assert not paused
    assert await ward.begins(stream) == len(SYSTEM)
    assert ward.of(running).paused


async def test_who_waited_for_one_that_is_gone_begins(ward: Ward) -> None:
    running = await ward.begin(turn(1))
    stream = await ward.begin(turn(2))
    early = ward.begun(stream)
    ward.streams.cancel(ward.of(running))

    assert not early
    assert ward.begun_with(stream) == 0
    assert ward.serves.of(Cancel) == [Cancel(running.id)]


async def test_patience_has_an_end(ward: Ward) -> None:
    await ward.begin(turn(1))
    stream = await ward.begin(turn(2))
    patience_s = BESIDE_OTHERS * worth_waiting_s(len(SYSTEM), ward.serves.variant)
    ward.clock.now += patience_s - 0.1
    ward.streams.expire()
    early = ward.begun(stream)
    ward.clock.now += 0.1
    ward.streams.expire()

    assert not early
    assert ward.begun_with(stream) == 0


async def test_who_waits_for_its_prefix_has_had_its_turn(tiny: ModelSpec, disk: KvDisk) -> None:
    ward = Ward(tiny, disk)
    ward.admits(max_wait_s=1.0)
    await ward.begin(turn(1))
    stream = await ward.begin(turn(2))
    ward.clock.now += 1.5
    ward.streams.expire()
    alive = not ward.of(stream).done
    ward.clock.now += 100
    ward.streams.expire()

    assert alive
    assert ward.begun(stream)
    ward.pool.close()


async def test_what_ended_while_a_request_waited_is_found_when_its_turn_comes(
    tiny: ModelSpec, disk: KvDisk
) -> None:
    ward = Ward(tiny, disk)
    ward.admits(conversations=1)
    running = await ward.begin(turn(1))
    shares, goes_on = await ward.begin(turn(2)), await ward.begin([*turn(2), *range(600, 700)])
    ward.reads(running, 204)
    ward.streams.said(ward.serves, Finished(running.id, "stop"))
    first = await ward.begins(shares)
    ward.reads(shares, 204)
    ward.streams.said(ward.serves, Finished(shares.id, "stop"))
    second = await ward.begins(goes_on)

    assert (first, second) == (len(SYSTEM), 204)
    ward.pool.close()


# ---------------------------------------------------------------- a copy on its way


async def being_prepared(ward: Ward, slow: Threads) -> tuple[StreamHandle, StreamHandle]:
    """One that reads, and one that copies what it has just read."""
    running = await ward.begin(turn(1))
    stream = await ward.begin(turn(2))
    ward.reads(running, 204)
    await until(lambda: slow.begun == 1)
    return running, stream


async def test_a_stream_is_not_started_while_its_kv_is_copied(ward: Ward, slow: Threads) -> None:
    _, stream = await being_prepared(ward, slow)
    ward.streams.expire()
    early = ward.begun(stream)
    other = await ward.begin(list(range(2000, 2100)))
    slow.go_on()

    assert not early
    assert ward.begun(other)
    assert await ward.begins(stream) == len(SYSTEM)
    assert slow.begun == 1


async def test_one_that_is_cancelled_while_its_kv_is_copied_leaks_nothing(
    ward: Ward, slow: Threads
) -> None:
    running, stream = await being_prepared(ward, slow)
    ward.streams.cancel(ward.of(stream))
    held = len(ward.pool._leases)
    slow.go_on()
    await until(lambda: not ward.pool.copying)

    assert (held, len(ward.pool._leases)) == (2, 1)
    assert ward.of(running).lease.readers == 0
    assert not ward.begun(stream)


async def test_a_copy_that_fails_is_not_tried_again_and_the_prompt_is_computed(
    ward: Ward, slow: Threads
) -> None:
    running, stream = await being_prepared(ward, slow)
    await rewound(ward, running)
    slow.go_on()
    begun = await ward.begins(stream)

    assert begun == ward.of(stream).cached_tokens == 0
    assert slow.begun == 1
    assert len(ward.pool._leases) == 2


async def test_a_copy_that_takes_too_long_is_left_alone(ward: Ward, slow: Threads) -> None:
    _, stream = await being_prepared(ward, slow)
    ward.clock.now += BESIDE_OTHERS * worth_waiting_s(len(SYSTEM), ward.serves.variant)
    ward.streams.expire()
    begun = ward.begun_with(stream)
    slow.go_on()
    await until(lambda: not ward.pool.copying)

    assert begun == 0
    assert ward.of(stream).lease.valid == 0
    assert len(ward.pool._leases) == 2


async def test_kv_that_is_copied_for_a_worker_of_another_kind_is_given_back(
    ward: Ward, slow: Threads
) -> None:
    running, stream = await being_prepared(ward, slow)
    ward.streams.release(ward.serves)
    ward.streams.said(ward.serves, Detached(running.id, 0))
    slow.go_on()
    await until(lambda: not ward.pool.copying)
    other = ward.worker(1, "kv")
    other.variant = replace(other.variant, fingerprint="other")
    ward.serves = other
    ward.streams.attach(other)

    assert {one.stream: one.valid for one in other.of(Start)} == {running.id: 0, stream.id: 0}
    assert len(ward.pool._leases) == 2
    assert ward.of(stream).cached_tokens == 0


async def test_no_worker_when_the_copy_is_done_is_no_harm(ward: Ward, slow: Threads) -> None:
    _, stream = await being_prepared(ward, slow)
    ward.streams.lost(ward.serves)
    slow.go_on()
    await until(lambda: not ward.pool.copying)
    ward.serves = ward.serving(0, "kv")

    assert await ward.begins(stream) == len(SYSTEM)


async def test_nobody_starves_for_what_a_copy_holds(
    tiny: ModelSpec, disk: KvDisk, slow: Threads
) -> None:
    ward = Ward(tiny, disk, pool_bytes=3 * GRANT_TOKENS * BYTES_PER_TOKEN)
    running, stream = await being_prepared(ward, slow)
    ward.of(running).max_tokens = 1000  # more than what had to be free for both
    for wanted in (1, 2):
        ward.streams.said(ward.serves, Grow(running.id, wanted * GRANT_TOKENS + 10))
        ward.reads(running, ward.of(running).lease.granted)
    ward.streams.expire()
    alive = not ward.of(running).done
    slow.go_on()
    await until(lambda: not ward.pool.copying)
    ward.streams.expire()

    assert alive
    assert ward.of(running).lease.granted == 3 * GRANT_TOKENS
    assert not ward.of(stream).done
    ward.pool.close()


# ---------------------------------------------------------------- what turns out to be wrong


async def test_a_copy_of_kv_that_is_then_found_wrong_is_not_begun_with(ward: Ward) -> None:
    source = await ward.begin(turn(1))
    ward.reads(source, 204)
    ward.admits(conversations=1)
    copy = await ward.begin(turn(2))
    copied = ward.of(copy).lease.valid
    ward.streams.said(ward.serves, Failed(source.id, "engine_failed", "NaN"))
    begun = await ward.begins(copy)

    assert (copied, begun) == (len(SYSTEM), 0)


async def test_a_copy_that_goes_on_when_its_source_is_found_wrong_leaves_nothing_behind(
    ward: Ward,
) -> None:
    source = await ward.begin(turn(1))
    ward.reads(source, 204)
    copy = await ward.begin(turn(2))
    assert await ward.begins(copy) == len(SYSTEM)
    ward.reads(copy, 204)
    ward.streams.said(ward.serves, Failed(source.id, "engine_failed", "NaN"))
    third = await ward.begin(turn(3))
    ward.streams.said(ward.serves, Finished(copy.id, "stop"))

    assert await ward.begins(third) == 0
    assert ward.pool.ledger().idle_count == 0


@pytest.mark.parametrize("which", ["source", "copy"])
async def test_what_is_found_wrong_is_so_in_the_segment_that_it_has_moved_to(
    ward: Ward, slow: Threads, which: str
) -> None:
    source = await ward.begin(turn(1))
    ward.reads(source, 204)
    asks = await ward.held_up(slow, turn(2))
    moved = ward.of(source)
    moved.moving = ward.pool.second(moved.lease, 260)
    ward.streams.said(ward.serves, Moved(source.id, 0, 204))
    if which == "source":
        ward.streams.said(ward.serves, Failed(source.id, "engine_failed", "NaN"))
    slow.go_on()
    copy = await asks
    if which == "copy":
        ward.streams.said(ward.serves, Failed(copy.id, "engine_failed", "NaN"))
        copy = await ward.begin(turn(3))

    assert await ward.begins(copy) == 0


async def test_without_a_thread_to_copy_a_prompt_is_computed_and_nothing_leaks(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = await ward.left([*SYSTEM, *range(1000, 1200)])

    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "run_in_executor", none)
        stream = await ward.begin(turn(1))

    assert await ward.begins(stream) == 0
    assert idle.lease.readers == 0
    assert len(ward.pool._leases) == 1


# ---------------------------------------------------------------- patience


async def test_what_is_there_when_patience_is_over_is_taken(ward: Ward) -> None:
    reading = await ward.begin(turn(1))
    stream = await ward.begin(turn(2))
    ward.reads(reading, 190)
    ward.clock.now += 600
    ward.streams.expire()

    assert await ward.begins(stream) == 190


async def test_one_that_waited_for_a_prefix_and_lost_its_place_has_all_its_time_left(
    ward: Ward,
) -> None:
    ward.admits(conversations=2, max_wait_s=10.0)
    reading = await ward.begin(turn(1))
    stream = await ward.begin(turn(2))
    await ward.begin(list(range(400, 480)))  # takes the place meanwhile
    ward.reads(reading, 204)
    patience_s = ward.of(stream).patience.until_s - ward.clock.now
    ward.clock.now += patience_s + 9
    ward.streams.expire()
    waits = not ward.of(stream).done
    ward.clock.now += 2
    ward.streams.expire()

    assert patience_s > 0
    assert waits
    assert stream.id not in ward.streams._streams


async def test_who_is_held_waits_for_no_disk_that_hangs(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, write = threading.Event(), KvDisk.write

    def hanging(*told: Any) -> Any:
        go_on.wait(20)
        return write(*told)

    monkeypatch.setattr(KvDisk, "write", hanging)
    ward = Ward(tiny, disk)
    small = await ward.left(list(range(600, 620)))
    held = await ward.begin(turn(1))
    ward.reads(held, 204)
    ward.streams.said(ward.serves, Tokens(held.id, 0, [5], "x"))
    ward.admits(conversations=1)
    await ward.begin(turn(2))  # has what it begins with, and waits
    offloading = asyncio.ensure_future(ward.pool.offload(small, ward.clock.now))
    await until(lambda: small.busy)
    base = ward.streams._policy
    assert base is not None
    ward.configure(replace(base, kv=replace(base.kv, pool_bytes=400 * BYTES_PER_TOKEN)))
    ward.streams._give_way(ward.of(held))
    ward.streams.said(ward.serves, Detached(held.id, 1))
    early = ward.of(held).state
    for _ in range(2):
        ward.streams.expire()
        ward.clock.now += COMING_MAX_S
    ward.streams.expire()
    late = ward.of(held).state
    go_on.set()
    await offloading

    assert (early, late) == (StreamState.HELD, StreamState.RUNNING)
    ward.pool.close()


# ---------------------------------------------------------------- with real workers


async def test_answers_of_a_burst_are_those_of_each_alone(tiny: ModelSpec) -> None:
    texts = [TALK * 12 + f" Question {number}" for number in range(4)]
    alone = []
    for text in texts:
        async with running(tiny) as rig:
            alone.append((await rig.read(await rig.ask(text, max_tokens=30))).tokens)
    async with running(tiny) as rig:
        cold = await answers(rig, texts)
        warm = await answers(rig, texts)
        left = rig.daemon.pool.ledger().leased

    assert [one.tokens for one in cold] == [one.tokens for one in warm] == alone
    assert sorted(one.usage.cached_tokens > 300 for one in cold) == [False, True, True, True]
    assert all(one.usage.cached_tokens > 300 for one in warm)
    assert left == 0


async def answers(rig: Rig, texts: list[str]) -> list[Answer]:
    """To requests that come at once."""
    streams = await asyncio.gather(*(rig.ask(text, max_tokens=30) for text in texts))
    return list(await asyncio.gather(*(rig.read(stream) for stream in streams)))


# ---------------------------------------------------------------- at the pool


async def test_a_running_conversation_is_never_taken_over(pool: Pool) -> None:
    lease = pool.open(SHAPE, 4096, "f", 1, 300)
    lease.valid = 300
    source = Running(lease, array("I", range(300)))
    found = pool.find(list(range(300)), "f", 1, everyone=False, running=[source])
    assert found is not None
    copy = await Copies(pool, FakeClock()).lease(found, 1, 20.0)

    assert not found.goes_on
    assert not isinstance(found.source, Idle)
    assert copy is not None
    assert copy is not lease
    assert copy.valid == 300
