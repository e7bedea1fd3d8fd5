"""A disk that hangs over a write: the conversation stays in memory, and the disk is left alone."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest
from rig import running
from test_continuity import TALK
from test_frozen_disk import lease_on
from test_kv_disk import HELD, SIZE, TOKENS, Gate, conversation, on_disk, until
from test_running_kv import ask, placing

from trimtab.domain.models import ModelSpec
from trimtab.runtime.daemon import Daemon
from trimtab.serving import disk as disk_module
from trimtab.serving.disk import HANGS, KvDisk
from trimtab.serving.pool import Pool


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk hangs if it takes longer than a moment."""
    monkeypatch.setattr(disk_module, "HANGS_AFTER_S", 0.2)


async def test_a_conversation_that_it_does_not_take_stays_in_memory(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, gate = conversation(pool), Gate(disk.write)
    monkeypatch.setattr(disk, "write", gate)
    refused = await pool.offload(idle, 1.0)
    found = pool.find(TOKENS, "f", 1, everyone=False)
    held = pool.idle_bytes()
    freed = pool.release(1)
    gate.open()
    await until(lambda: not disk.unanswered)

    assert refused == HANGS
    assert found is not None
    assert held == freed == HELD  # it makes way like any other, though the disk still hangs
    assert disk.stored_bytes == 0


async def test_it_gets_nothing_else_before_it_has_answered(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, gate = conversation(pool), Gate(disk.write)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", gate)
        await pool.offload(idle, 1.0)
        begun_s = time.monotonic()
        refused = await pool.offload(idle, 2.0)
        took_s = time.monotonic() - begun_s
        gate.open()
        await until(lambda: not disk.unanswered)
    taken = await pool.offload(idle, 3.0)

    assert refused == HANGS
    assert took_s < 0.1
    assert taken == ""
    assert disk.stored_bytes == SIZE


async def test_what_ended_there_waits_for_its_checksum_until_it_answers(
    pool: Pool, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        pool.retire(lease_on(disk, pool), range(64), 1.0)
    gate, left = Gate(disk.seal), pool.to_seal()
    monkeypatch.setattr(disk, "seal", gate)
    assert left is not None
    refused, next_one = await pool.seal(left, 1.0), pool.to_seal()
    gate.open()
    await until(lambda: not disk.unanswered)
    other = pool.to_seal()

    assert refused == HANGS
    assert next_one is None
    assert left.sealed
    assert other is not None
    assert other is not left


async def test_what_runs_there_is_written_once_it_answers(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, placing(slow=True), disk=disk) as rig:
        monkeypatch.setattr(Daemon, "_offload", lambda daemon: None)
        stream = await ask(rig, max_tokens=200)
        answer = await rig.read(stream, tokens=20)
        kv, sync = rig.daemon.dispatcher.running_kv, os.fdatasync
        calls, go_on = list[int](), threading.Event()

        def hangs(descriptor: int) -> None:
            calls.append(descriptor)
            go_on.wait(20)
            sync(descriptor)

        await kv.to_disk()
        monkeypatch.setattr(os, "fdatasync", hangs)
        told = await kv.write_back()
        await rig.read(stream, answer, tokens=100)
        again, asked = await kv.write_back(), len(calls)
        go_on.set()
        await until(lambda: not disk.unanswered)
        after = await kv.write_back()
        await rig.read(stream, answer)

        assert told == again == HANGS
        assert asked == 1
        assert after == ""
        assert len(calls) == 2
        assert len(answer.tokens) == 200


async def test_that_it_hangs_is_told_once(
    tiny: ModelSpec, disk: KvDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(disk.write)
    monkeypatch.setattr(disk, "write", gate)
    async with running(tiny, on_disk(), disk=disk) as rig:
        await rig.read(await rig.ask(TALK * 6))
        await rig.until(lambda: any(event == "kv_not_moved" for event, _ in rig.log.lines))
        await asyncio.sleep(0.5)  # some ticks
        again = await rig.read(await rig.ask(TALK * 6))
        gate.open()
        await until(lambda: not disk.unanswered)
        reasons = [line["reason"] for event, line in rig.log.lines if event == "kv_not_moved"]

        assert reasons == [HANGS]
        assert again.tokens
