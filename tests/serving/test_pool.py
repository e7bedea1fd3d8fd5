"""The KV pool: what it reserves, keeps, shares and gives back, as the kernel counts it."""

from __future__ import annotations

import fcntl
import mmap
import os
from array import array

import pytest

from trimtab.domain.kv import KvShape
from trimtab.domain.prefix import common_prefix
from trimtab.domain.view import View
from trimtab.errors import ServingError
from trimtab.serving.claims import Idle, Lease
from trimtab.serving.pool import GRANT_TOKENS, Pool
from trimtab.serving.reuse import cheapest
from trimtab.serving.segments import Segment

SHAPE = KvShape(layers=2, kv_heads=2, position_bytes=256)
CAPACITY = 4096


def written(segment: Segment, tokens: int, byte: bytes = b"x") -> None:
    """Write so many positions, as a worker would."""
    with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
        for span in SHAPE.rows(0, tokens, segment.capacity):
            memory[span.offset : span.offset + span.length] = byte * span.length


def leased(pool: Pool, tokens: list[int], user: int | None = 1) -> Lease:
    """A lease whose tokens are all written and valid."""
    lease = pool.open(SHAPE, CAPACITY, "f", user, len(tokens))
    written(lease.segment, len(tokens))
    lease.valid = len(tokens)
    return lease


def test_a_new_segment_takes_no_memory() -> None:
    segment = Segment(SHAPE, CAPACITY)

    assert segment.committed_bytes() == 0
    segment.close()


def test_a_segment_takes_what_is_written_and_no_more() -> None:
    segment = Segment(SHAPE, CAPACITY)
    written(segment, 1024)

    assert segment.committed_bytes() == segment.predicted_bytes(1024)
    assert segment.committed_bytes() == 1024 * SHAPE.token_bytes
    segment.close()


def test_cutting_a_segment_gives_the_end_back_and_keeps_the_beginning() -> None:
    segment = Segment(SHAPE, CAPACITY)
    written(segment, 2048)
    given = segment.cut(512)
    with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
        kept = [memory[span.offset] for span in SHAPE.rows(0, 512, CAPACITY)]
        gone = [memory[span.offset] for span in SHAPE.rows(512, 2048, CAPACITY)]

    assert given == 1536 * SHAPE.token_bytes
    assert set(kept) == {ord("x")}
    assert set(gone) == {0}
    segment.close()


def test_no_worker_can_change_a_segments_size() -> None:
    segment = Segment(SHAPE, CAPACITY)
    seals = fcntl.fcntl(segment.descriptor, fcntl.F_GET_SEALS)

    assert seals & fcntl.F_SEAL_SHRINK
    assert seals & fcntl.F_SEAL_GROW
    with pytest.raises(PermissionError):
        os.ftruncate(segment.descriptor, 4096)
    segment.close()


def test_a_copy_holds_the_first_tokens_and_nothing_else() -> None:
    one, other = Segment(SHAPE, CAPACITY), Segment(SHAPE, CAPACITY)
    written(one, 1024)
    one.copy_into(other, 256)
    with mmap.mmap(other.descriptor, other.size_bytes) as memory:
        copied = [memory[span.offset + span.length - 1] for span in SHAPE.rows(0, 256, CAPACITY)]

    assert set(copied) == {ord("x")}
    assert other.committed_bytes() == other.predicted_bytes(256)
    one.close()
    other.close()


def test_grants_come_in_steps_and_never_over_the_cap() -> None:
    pool = Pool()
    pool.configure(4 * GRANT_TOKENS * SHAPE.token_bytes)
    lease = pool.open(SHAPE, CAPACITY, "f", 1, 10)
    first = lease.granted
    more = pool.grant(lease, 3 * GRANT_TOKENS + 1)
    too_much = pool.grant(lease, 4 * GRANT_TOKENS + 1)

    assert first == GRANT_TOKENS
    assert more
    assert not too_much
    assert lease.granted == 4 * GRANT_TOKENS
    pool.close()


def test_a_conversation_that_the_cap_has_no_room_for_is_refused() -> None:
    pool = Pool()
    pool.configure(GRANT_TOKENS * SHAPE.token_bytes)
    pool.open(SHAPE, CAPACITY, "f", 1, 10)
    with pytest.raises(ServingError) as told:
        pool.open(SHAPE, CAPACITY, "f", 1, 10)

    assert told.value.code == "kv_pool_full"
    pool.close()


def test_idle_conversations_make_way_for_new_ones_oldest_first() -> None:
    pool = Pool()
    pool.configure(3 * GRANT_TOKENS * SHAPE.token_bytes)
    for number in range(2):
        tokens = list(range(number * 1000, number * 1000 + GRANT_TOKENS))
        pool.retire(leased(pool, tokens), tokens, float(number))
    pool.open(SHAPE, CAPACITY, "f", 1, GRANT_TOKENS + 1)
    oldest = pool.find(list(range(GRANT_TOKENS)), "f", 1, everyone=False)
    newest = pool.find(list(range(1000, 1000 + GRANT_TOKENS)), "f", 1, everyone=False)

    assert oldest is None
    assert newest is not None
    pool.close()


def test_the_longest_shared_prefix_is_found_within_one_user() -> None:
    pool = Pool()
    tokens = list(range(100))
    pool.retire(leased(pool, tokens, user=1), tokens, 1.0)
    mine = pool.find([*range(60), 999, 998], "f", 1, everyone=False)
    theirs = pool.find([*range(60), 999, 998], "f", 2, everyone=False)
    shared = pool.find([*range(60), 999, 998], "f", 2, everyone=True)
    elsewhere = pool.find([*range(60), 999, 998], "g", 1, everyone=False)

    assert mine is not None
    assert mine.positions == 60
    assert theirs is None
    assert shared is not None
    assert elsewhere is None
    pool.close()


def test_what_was_granted_and_not_used_goes_back_when_a_stream_ends() -> None:
    pool = Pool()
    tokens = list(range(40))
    lease = leased(pool, tokens)
    written(lease.segment, GRANT_TOKENS)
    pool.retire(lease, tokens, 1.0)

    assert pool.idle_bytes() == lease.segment.committed_bytes()
    assert lease.segment.committed_bytes() == lease.segment.predicted_bytes(40)
    pool.close()


@pytest.mark.parametrize("tokens", [16, 17, 255, 256, 257, 1000])
def test_what_an_idle_conversation_holds_is_what_the_kernel_counts(tokens: int) -> None:
    pool = Pool()
    ids = list(range(tokens))
    lease = leased(pool, ids)
    pool.retire(lease, ids, 1.0)

    assert pool.idle_bytes() == pool.ledger().idle == lease.segment.committed_bytes()
    pool.close()


def test_short_conversations_stay_within_the_budget_as_the_kernel_counts_it() -> None:
    pool = Pool()
    budget_bytes = 4 * GRANT_TOKENS * SHAPE.token_bytes
    pool.configure(budget_bytes)
    held = []
    for number in range(80):
        ids = list(range(100 * number, 100 * number + 17))  # a page and a little of the next
        held.append(leased(pool, ids))
        pool.retire(held[-1], ids, float(number))
    pool.open(SHAPE, CAPACITY, "f", 1, GRANT_TOKENS)
    left = sum(lease.segment.committed_bytes() for lease in held)

    assert left > 0
    assert left + GRANT_TOKENS * SHAPE.token_bytes <= budget_bytes
    pool.close()


def test_a_grant_reserves_the_whole_pages_that_it_takes() -> None:
    thin = KvShape(layers=2, kv_heads=2, position_bytes=mmap.PAGESIZE // (2 * GRANT_TOKENS))
    pool = Pool()
    one = 8 * mmap.PAGESIZE  # half a page of each row is written, and the kernel gives whole ones
    pool.configure(2 * one)
    leases = [pool.open(thin, CAPACITY, "f", 1, 10) for _ in range(2)]
    with pytest.raises(ServingError) as told:
        pool.open(thin, CAPACITY, "f", 1, 10)
    filled = pool.grant(leases[0], 2 * GRANT_TOKENS), pool.grant(leases[0], 2 * GRANT_TOKENS + 1)

    assert told.value.code == "kv_pool_full"
    assert [lease.segment.predicted_bytes(GRANT_TOKENS) for lease in leases] == [one, one]
    assert filled == (True, False)  # the rest of a page that is charged costs nothing
    pool.close()


def test_a_smaller_context_gives_back_what_idle_conversations_hold_beyond_it() -> None:
    pool = Pool()
    tokens = list(range(2048))
    pool.retire(leased(pool, tokens), tokens, 1.0)
    freed = pool.limit(512)
    found = pool.find(tokens, "f", 1, everyone=False)

    assert freed == 1536 * SHAPE.token_bytes
    assert found is not None
    assert found.positions == 512
    pool.close()


def test_releasing_gives_back_what_a_worker_still_maps() -> None:
    pool = Pool()
    tokens = list(range(1000))
    lease = leased(pool, tokens)
    with mmap.mmap(lease.segment.descriptor, lease.segment.size_bytes):
        before = lease.segment.committed_bytes()
        descriptor = os.dup(lease.segment.descriptor)
        pool.retire(lease, tokens, 1.0)
        freed = pool.release(1)
        after = os.fstat(descriptor).st_blocks * 512
        os.close(descriptor)

    assert freed == before
    assert after == 0
    pool.close()


def test_a_common_prefix_is_as_long_as_it_is() -> None:
    one = array("I", range(1000))

    assert common_prefix(one, array("I", [*range(777), 5])) == 777
    assert common_prefix(one, one) == 1000
    assert common_prefix(one, array("I", [7])) == 0
    assert common_prefix(one, array("I")) == 0


@pytest.mark.parametrize("prompt_view", [View(300), View(300, 500)])
def test_what_was_left_of_a_shifted_window_serves_no_further_than_it_was_read(
    prompt_view: View,
) -> None:
    pool = Pool()
    tokens = list(range(1000))
    lease = leased(pool, tokens[:64])  # its client left after the first piece
    pool.retire(lease, tokens, 1.0, View(300, 500))
    found = pool.find(tokens, "f", 1, everyone=False, view=prompt_view)

    assert found is not None
    assert found.positions == 64
    assert pool.take(found).valid == 64
    pool.close()


def test_no_more_of_a_conversation_serves_than_is_valid_whatever_its_tokens_say() -> None:
    pool = Pool()
    tokens = array("I", range(1000))
    lease = leased(pool, list(range(64)))
    found = cheapest(tokens, View(), [Idle(lease, tokens, 1.0)], 16)

    assert found is not None
    assert found.positions == 64
    pool.close()


@pytest.mark.parametrize("head_size", [64, 80, 96, 128])
def test_the_whole_budget_holds_as_many_tokens_as_it_is_said_to(head_size: int) -> None:
    shape, pool = KvShape(2, 2, head_size * 4), Pool()
    for cap_bytes in range(1 << 20, 2 << 20, 69632):
        pool.configure(cap_bytes)
        tokens = int(pool.most_tokens(shape))
        pool.drop(pool.open(shape, 4096, "f", 1, tokens))
        with pytest.raises(ServingError):
            pool.open(shape, 4096, "f", 1, tokens + 1)
