"""Workers that not even SIGKILL ends: given up after a while, and reaped when that can be."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_supervisor import launch, nothing_left_behind, ready, supervised, until

from trimtab.errors import LoadError, WorkerError
from trimtab.workers import process
from trimtab.workers import supervisor as supervisor_module
from trimtab.workers.process import ChildProcess
from trimtab.workers.worker import Launch, WorkerState
from uninterruptible import Uninterruptible

__all__ = ["launch", "nothing_left_behind"]


@pytest.fixture
async def sleep(
    monkeypatch: pytest.MonkeyPatch, nothing_left_behind: None
) -> AsyncIterator[Uninterruptible]:
    made = Uninterruptible(monkeypatch)
    yield made
    await made.over()


def exists(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_child_that_can_not_be_reaped_is_given_up_and_reaped_later(
    sleep: Uninterruptible,
) -> None:
    told: list[object] = []
    argv = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    child = ChildProcess(
        argv, (), told.append, lambda _: None, on_hang=lambda: told.append("hangs")
    )
    async with asyncio.timeout(5):
        await child.kill()
    given_up = child.hangs, child.alive, list(told)
    sleep.wake()
    await until(lambda: not child.alive)

    assert given_up == (True, True, ["hangs"])
    assert told == ["hangs", -9]
    assert not child.hangs


async def test_a_child_that_ends_in_time_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "REAP_S", 0.1)
    told: list[object] = []
    child = ChildProcess(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"],
        (),
        told.append,
        lambda _: None,
        on_hang=lambda: told.append("hangs"),
    )
    await child.kill()
    await asyncio.sleep(0.3)

    assert told == [-9]


async def test_the_loss_of_a_worker_that_hangs_is_told_without_its_end(
    launch: Launch, sleep: Uninterruptible
) -> None:
    supervisor, told, worker = await ready("none", launch)
    waiting = asyncio.ensure_future(worker.render(text="x"))
    worker.shoot("no sign of life for 30 s")
    await until(lambda: bool(told.lost))
    lost = list(told.lost)
    await asyncio.gather(waiting, return_exceptions=True)
    meanwhile = supervisor.workers, supervisor.hanging, exists(worker.pid), worker.state
    sleep.wake()
    await until(lambda: not worker.alive)

    assert "no sign of life" in lost[0]
    assert "SIGKILL has not ended it" in lost[0]
    assert meanwhile == ((), (worker,), True, WorkerState.FAILED)
    assert isinstance(waiting.exception(), WorkerError)
    assert len(told.lost) == supervisor.losses == 1
    assert supervisor.hanging == ()


async def test_nothing_is_left_of_a_worker_that_hung_once_it_is_reaped(
    launch: Launch, sleep: Uninterruptible
) -> None:
    supervisor, told, worker = await ready("none", launch)
    kept = weakref.ref(worker)
    worker.shoot("wedged")
    await until(lambda: bool(told.lost))
    sleep.wake()
    pid = worker.pid
    del worker
    await until(lambda: not exists(pid))
    gc.collect()

    assert kept() is None
    assert supervisor.hanging == ()


@pytest.mark.parametrize("way", ["retire", "kill"])
async def test_who_ends_a_worker_that_hangs_is_not_held_up(
    launch: Launch, sleep: Uninterruptible, way: str
) -> None:
    supervisor, told, worker = await ready("deaf_to_sigterm", launch)
    begun = time.monotonic()
    async with asyncio.timeout(8):
        await getattr(supervisor, way)(worker)
        took_s = time.monotonic() - begun
        await supervisor.retire(worker)  # once more takes no time
    hanging = supervisor.hanging, worker.state, worker.hangs
    sleep.wake()
    await until(lambda: not worker.alive)

    assert took_s < 5
    assert hanging == ((worker,), WorkerState.FAILED, True)
    assert any("SIGKILL has not ended it" in line for line in told.lines)
    assert told.lost == []
    assert supervisor.hanging == ()


async def test_a_worker_that_hangs_while_it_loads_holds_nobody_up(
    launch: Launch, sleep: Uninterruptible, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "LOAD_TIMEOUT_MIN_S", 0.3)
    supervisor, _ = supervised("never_ready")
    with pytest.raises(LoadError, match="did not load within"):
        await supervisor.start(launch, 0.01)
    workers, hanging = supervisor.workers, supervisor.hanging
    sleep.wake()
    await until(lambda: supervisor.hanging == ())

    assert workers == ()
    assert len(hanging) == 1
