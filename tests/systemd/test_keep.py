"""Idle conversations over a restart of the controller: what comes back, and what doesn't."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_systemd import FakeManager

from trimtab.catalog.load import load_catalog
from trimtab.domain.models import ModelSpec
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.notify import Notifier
from trimtab.serving import keep
from trimtab.serving.claims import Idle, Lease, shape_of
from trimtab.serving.copies import Copies
from trimtab.serving.disk import KvDisk
from trimtab.serving.keep import restore
from trimtab.serving.pool import Pool
from trimtab.serving.segments import Segment

TOKENS = list(range(300, 340))
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_catalog([Path(__file__).parent.parent]).model("tiny")


@pytest.fixture
def pool(manager: FakeManager) -> Iterator[Pool]:
    one = Pool()
    restore({}, one, None, manager.notifier())
    yield one
    one.close()


def ended(
    pool: Pool,
    model: ModelSpec,
    tokens: list[int] = TOKENS,
    rows: int | None = None,
    said: tuple[str, ...] = (),
) -> Lease:
    """A conversation whose stream has ended, its KV (or so many rows of it) written by a worker."""
    variant = model.variants[0]
    shape = shape_of(model, variant)
    lease = pool.open(shape, model.context_length, variant.fingerprint, 1000, len(tokens))
    segment = lease.segment
    with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
        for span in list(shape.rows(0, len(tokens), segment.capacity))[:rows]:
            memory[span.offset : span.offset + span.length] = b"k" * span.length
    lease.valid, lease.said = len(tokens), said
    pool.retire(lease, tokens, 5.0)
    return lease


def next_pool(manager: FakeManager, model: ModelSpec | None) -> tuple[Pool, tuple[str, ...]]:
    """The pool of the next controller, and why something didn't come back."""
    pool = Pool()
    restored = restore(manager.passed(), pool, model, manager.notifier())
    return pool, restored.dropped


def found(pool: Pool, model: ModelSpec, user: int = 1000) -> int:
    """How many tokens of the conversation it can go on with."""
    answer = pool.find(TOKENS, model.variants[0].fingerprint, user, everyone=False)
    return 0 if answer is None else answer.positions


def test_a_conversation_comes_back_with_its_kv(
    pool: Pool, model: ModelSpec, manager: FakeManager
) -> None:
    ended(pool, model)
    pool.close()
    later, dropped = next_pool(manager, model)
    answer = later.find(TOKENS, model.variants[0].fingerprint, 1000, everyone=False)

    assert dropped == ()
    assert answer is not None
    assert answer.positions == len(TOKENS)
    segment = answer.source.lease.segment
    with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
        spans = segment.shape.rows(0, len(TOKENS), segment.capacity)
        assert all(memory[span.offset : span.offset + 1] == b"k" for span in spans)
    later.close()


def test_what_was_said_in_it_is_known_as_before(
    pool: Pool, model: ModelSpec, manager: FakeManager
) -> None:
    ended(pool, model, said=("first", "second"))
    pool.close()
    later, _ = next_pool(manager, model)

    assert list(later.known(("first",), 1000, everyone=False)) == TOKENS
    assert list(later.known(("first",), 1001, everyone=False)) == []
    later.close()


async def test_one_that_turns_out_wrong_while_a_disk_takes_it_is_kept_no_longer(
    pool: Pool, model: ModelSpec, manager: FakeManager, tmp_path: Path
) -> None:
    pool.disk = KvDisk(tmp_path / "kv", Path("/proc/self/mounts").read_text())
    pool.disk.configure(MIB, MIB)
    lease = ended(pool, model)
    write, seen = pool.disk.write, []

    def wrong(*order: Any) -> Any:
        loop.call_soon_threadsafe(pool.distrust, lease)
        time.sleep(0.2)
        seen.append(manager.passed())
        return write(*order)

    loop = asyncio.get_running_loop()
    pool.disk.write = wrong  # type: ignore[method-assign]
    idle = pool.to_offload()
    assert idle is not None
    await pool.offload(idle, 1.0)

    assert seen == [{}]
    assert manager.passed() == {}
    assert found(pool, model) == 0


def test_what_an_older_release_kept_is_told_by_its_version(
    pool: Pool, model: ModelSpec, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = keep._record

    def older(idle: Idle) -> bytes:
        record = msgspec.msgpack.decode(written(idle)) | {"version": 3}
        return msgspec.msgpack.encode({name: record[name] for name in record if name != "said"})

    monkeypatch.setattr(keep, "_record", older)
    ended(pool, model)
    pool.close()
    later, dropped = next_pool(manager, model)

    assert found(later, model) == 0
    assert "its record has version 3, not 4" in dropped[0]
    later.close()


def test_it_stays_its_users(pool: Pool, model: ModelSpec, manager: FakeManager) -> None:
    ended(pool, model)
    later, _ = next_pool(manager, model)

    assert found(later, model, user=1001) == 0
    later.close()


def test_one_that_goes_on_is_kept_no_longer(
    pool: Pool, model: ModelSpec, manager: FakeManager
) -> None:
    ended(pool, model)
    answer = pool.find(TOKENS, model.variants[0].fingerprint, 1000, everyone=False)
    assert answer is not None
    pool.take(answer)

    assert manager.passed() == {}


def test_one_that_makes_room_gives_its_memory_back_at_once(
    pool: Pool, model: ModelSpec, manager: FakeManager
) -> None:
    lease = ended(pool, model)
    manager.heard()
    descriptor = os.dup(lease.segment.descriptor)  # as the manager has it
    pool.release_all()
    held = os.fstat(descriptor).st_blocks
    os.close(descriptor)

    assert held == 0
    assert manager.passed() == {}


def test_another_model_takes_none_of_it(pool: Pool, model: ModelSpec, manager: FakeManager) -> None:
    ended(pool, model)
    variants = tuple(replace(one, fingerprint="kv1-other") for one in model.variants)
    later, dropped = next_pool(manager, replace(model, variants=variants))

    assert found(later, model) == 0
    assert dropped == ("kv-1: it belongs to another model",)
    assert manager.passed() == {}


def test_half_a_conversation_is_dropped(pool: Pool, model: ModelSpec, manager: FakeManager) -> None:
    ended(pool, model)
    manager.heard()
    os.close(manager.kept["kv-1"].pop())
    later, dropped = next_pool(manager, model)

    assert found(later, model) == 0
    assert dropped == ("kv-1: 1 descriptors came back, of which 0 records",)


def test_a_segment_of_which_one_page_is_missing_is_dropped(
    pool: Pool, model: ModelSpec, manager: FakeManager
) -> None:
    ended(pool, model, rows=-1)
    pool.close()
    later, dropped = next_pool(manager, model)

    assert found(later, model) == 0
    assert dropped == ("kv-1: its memory had been given back",)


def test_a_segment_that_was_emptied_is_dropped(
    pool: Pool, model: ModelSpec, manager: FakeManager
) -> None:
    ended(pool, model).segment.cut(0)
    later, dropped = next_pool(manager, model)

    assert found(later, model) == 0
    assert dropped == ("kv-1: its memory had been given back",)


def test_a_descriptor_that_is_no_memory_is_dropped(
    pool: Pool, model: ModelSpec, manager: FakeManager, tmp_path: Path
) -> None:
    ended(pool, model)
    manager.heard()
    os.close(manager.kept["kv-1"][0])
    manager.kept["kv-1"][0] = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    later, dropped = next_pool(manager, model)

    assert found(later, model) == 0
    assert dropped == ("kv-1: 2 descriptors came back, of which 1 records",)


@pytest.fixture
def disk(tmp_path: Path) -> KvDisk:
    made = KvDisk(tmp_path / "kv", Path("/proc/self/mounts").read_text())
    made.configure(1 << 26, 1 << 26)
    return made


async def moved_to_disk(pool: Pool, model: ModelSpec, disk: KvDisk) -> None:
    pool.disk = disk
    ended(pool, model)
    idle = pool.to_offload()
    assert idle is not None
    assert await pool.offload(idle, 6.0) == ""


async def test_one_on_disk_comes_back_from_disk(
    pool: Pool, model: ModelSpec, manager: FakeManager, disk: KvDisk
) -> None:
    await moved_to_disk(pool, model, disk)
    size = disk.stored_bytes
    pool.close()
    disk.stored_bytes = 0
    later = Pool(disk)
    restored = restore(manager.passed(), later, model, manager.notifier())
    answer = later.find(TOKENS, model.variants[0].fingerprint, 1000, everyone=False)
    assert answer is not None
    counted = disk.stored_bytes
    back = await Copies(later, SystemClock()).lease(answer, 1000, 20.0)
    assert back is not None
    segment = back.segment
    with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
        spans = segment.shape.rows(0, len(TOKENS), segment.capacity)
        whole = all(memory[span.offset : span.offset + 1] == b"k" for span in spans)

    assert restored.dropped == ()
    assert counted == size > 0
    assert whole
    assert manager.passed() == {}
    later.close()


async def test_one_that_ended_on_disk_comes_back_from_its_file(
    pool: Pool, model: ModelSpec, manager: FakeManager, disk: KvDisk
) -> None:
    variant = model.variants[0]
    shape = shape_of(model, variant)
    pool.disk = disk
    capacity = Segment.capacity_for(shape, model.context_length)
    claim = disk.claim(shape.committed_bytes(100, capacity, mmap.PAGESIZE), 5.0)
    segment = disk.new_segment(claim, shape, capacity, 100)
    with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
        for span in shape.rows(0, len(TOKENS), segment.capacity):
            memory[span.offset : span.offset + span.length] = b"k" * span.length
    lease = pool.lend(segment, Lease(segment, variant.fingerprint, 1000))
    lease.valid = len(TOKENS)
    pool.retire(lease, TOKENS, 5.0)
    early = found(pool, model), manager.passed()
    idle = pool.to_seal()
    assert idle is not None
    await pool.seal(idle, 0.0)
    size = disk.stored_bytes
    pool.close()
    disk.stored_bytes = 0
    later = Pool(disk)
    restored = restore(manager.passed(), later, model, manager.notifier())
    answer = later.find(TOKENS, variant.fingerprint, 1000, everyone=False)
    assert answer is not None
    back = await Copies(later, SystemClock()).lease(answer, 1000, 20.0)
    assert back is not None
    held = back.segment
    with mmap.mmap(held.descriptor, held.size_bytes) as memory:
        spans = held.shape.rows(0, len(TOKENS), held.capacity)
        whole = all(memory[span.offset : span.offset + 1] == b"k" for span in spans)

    assert early == (0, {})  # nothing is believed before it has its checksum
    assert size == shape.committed_bytes(len(TOKENS), capacity, mmap.PAGESIZE)
    assert restored.dropped == ()
    assert whole
    later.close()


async def test_one_on_disk_is_given_up_where_there_is_no_disk_any_more(
    pool: Pool, model: ModelSpec, manager: FakeManager, disk: KvDisk
) -> None:
    await moved_to_disk(pool, model, disk)
    later, dropped = next_pool(manager, model)

    assert found(later, model) == 0
    assert [line.partition(": ")[2] for line in dropped] == ["there is no disk for it any more"]
    assert manager.passed() == {}


async def test_a_file_that_was_cut_is_dropped(
    pool: Pool, model: ModelSpec, manager: FakeManager, disk: KvDisk
) -> None:
    await moved_to_disk(pool, model, disk)
    (descriptors,) = manager.passed().values()
    os.ftruncate(descriptors[2], 16)
    later = Pool(disk)
    restored = restore(manager.passed(), later, model, manager.notifier())

    assert found(later, model) == 0
    assert "isn't what was written" in restored.dropped[0]


def test_names_go_on_where_the_earlier_controller_ended(
    pool: Pool, model: ModelSpec, manager: FakeManager
) -> None:
    ended(pool, model)
    later, _ = next_pool(manager, model)
    ended(later, model, list(range(400, 440)))

    assert sorted(manager.passed()) == ["kv-1", "kv-2"]
    later.close()


def test_without_a_manager_closing_gives_everything_back(model: ModelSpec) -> None:
    pool = Pool()
    restore({}, pool, model, Notifier())
    lease = ended(pool, model)
    descriptor = os.dup(lease.segment.descriptor)
    pool.close()
    held = os.fstat(descriptor).st_blocks
    os.close(descriptor)

    assert held == 0
