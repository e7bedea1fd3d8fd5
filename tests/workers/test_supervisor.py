"""Workers that fail in every way that there is: told, ended, reaped, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.errors import LoadError, SilentWorkerError, WorkerError
from trimtab.runtime.clock import SystemClock
from trimtab.workers import supervisor as supervisor_module
from trimtab.workers.process import describe_exit
from trimtab.workers.protocol import FromWorker, Start, Tokens
from trimtab.workers.supervisor import Supervisor, load_timeout_s, wedged_after_s
from trimtab.workers.worker import Launch, Worker, WorkerState

FAULTY = Path(__file__).parent / "faulty_worker.py"
MIB = 1024 * 1024


class Listener:
    """What the supervisor tells."""

    def __init__(self) -> None:
        self.messages: list[FromWorker] = []
        self.lost: list[str] = []
        self.lines: list[str] = []


def supervised(fault: str) -> tuple[Supervisor, Listener]:
    told = Listener()
    return (
        Supervisor(
            SystemClock(),
            lambda _, message: told.messages.append(message),
            lambda _, reason: told.lost.append(reason),
            lambda _, line: told.lines.append(line),
            lambda descriptor: [sys.executable, str(FAULTY), fault, "--fd", str(descriptor)],
        ),
        told,
    )


@pytest.fixture
def launch(tiny: ModelSpec) -> Launch:
    return Launch(tiny.variants[0], 1, 2048)


@pytest.fixture(autouse=True)
async def nothing_left_behind() -> AsyncIterator[None]:
    before = children()
    yield
    await asyncio.sleep(0)

    assert children() <= before


def children() -> set[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(word) for word in text.split()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def ready(fault: str, launch: Launch) -> tuple[Supervisor, Listener, Worker]:
    supervisor, told = supervised(fault)
    return supervisor, told, await supervisor.start(launch, None)


async def test_a_worker_is_ready_when_it_says_so_however_slowly(launch: Launch) -> None:
    supervisor, _, worker = await ready("none", launch)
    tokens = await worker.render(text="hello")
    pong = await worker.ping(1.0)
    await supervisor.retire(worker)

    assert worker.state is WorkerState.STOPPED
    assert tokens == [1, 2, 3]
    assert pong.resident_bytes == 1
    assert supervisor.workers == ()


async def test_a_worker_is_the_kernels_first_victim_before_it_has_done_anything(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "LOAD_TIMEOUT_MIN_S", 0.5)
    supervisor, _ = supervised("never_ready")
    before = children()
    starting = asyncio.create_task(supervisor.start(launch, 0.01))
    await until(lambda: bool(children() - before))
    (child,) = children() - before
    score = Path(f"/proc/{child}/oom_score_adj").read_text().strip()
    with pytest.raises(LoadError):
        await starting

    assert score == "1000"


async def test_a_load_that_takes_too_long_is_ended(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "LOAD_TIMEOUT_MIN_S", 0.5)
    supervisor, told = supervised("never_ready")
    begun = time.monotonic()
    with pytest.raises(LoadError, match="did not load within"):
        await supervisor.start(launch, 0.01)

    assert time.monotonic() - begun < 3
    assert supervisor.workers == ()
    assert told.lost == []


async def test_a_variant_that_does_not_load_says_why(launch: Launch) -> None:
    supervisor, _ = supervised("does_not_load")
    with pytest.raises(LoadError, match=r"model\.onnx is truncated"):
        await supervisor.start(launch, None)

    assert supervisor.workers == ()


async def test_a_worker_that_dies_at_once_is_told_with_its_last_words(launch: Launch) -> None:
    supervisor, told = supervised("dies_at_once")
    with pytest.raises(WorkerError, match="exit status 3: no such instruction"):
        await supervisor.start(launch, None)

    assert told.lines == ["no such instruction"]


async def test_a_process_that_died_before_its_turn_says_why_when_it_is_to_load(
    launch: Launch,
) -> None:
    supervisor, told = supervised("dies_at_once")
    worker = supervisor.begin(launch)
    await until(lambda: not worker.alive)
    with pytest.raises(WorkerError, match="exit status 3: no such instruction"):
        await supervisor.load(worker, None)

    assert supervisor.workers == ()
    assert told.lost == []


async def test_a_worker_that_dies_the_moment_it_is_ready_is_none(launch: Launch) -> None:
    supervisor, told = supervised("dies_with_ready")
    worker = supervisor.begin(launch)
    loading = asyncio.ensure_future(supervisor.load(worker, None))
    await asyncio.sleep(0)
    time.sleep(0.5)  # the controller does something else, and hears of both at once
    with pytest.raises(WorkerError, match="died at once"):
        await loading

    assert supervisor.workers == ()
    assert told.lost == []


async def test_a_process_that_is_not_needed_after_all_is_ended(launch: Launch) -> None:
    supervisor, told = supervised("none")
    stopped, killed = supervisor.begin(launch), supervisor.begin(launch)
    await supervisor.retire(stopped)
    await supervisor.kill(killed)

    assert supervisor.workers == ()
    assert told.lost == []


@pytest.mark.parametrize("fault", ["talks_nonsense", "boasts"])
async def test_a_worker_that_talks_nonsense_is_ended(launch: Launch, fault: str) -> None:
    supervisor, _ = supervised(fault)
    with pytest.raises(WorkerError):
        await supervisor.start(launch, None)

    assert supervisor.workers == ()


async def test_the_loss_of_a_ready_worker_is_told_once(launch: Launch) -> None:
    supervisor, told, worker = await ready("dies_when_ready", launch)
    await until(lambda: bool(told.lost))
    await asyncio.sleep(0.1)

    assert told.lost == ["killed by SIGKILL"]
    assert worker.state is WorkerState.FAILED
    assert supervisor.losses == 1
    assert supervisor.workers == ()


async def test_what_waits_for_a_lost_worker_is_told(launch: Launch) -> None:
    _, told, worker = await ready("wedged", launch)
    waiting = asyncio.ensure_future(worker.ping(30))
    await asyncio.sleep(0.05)
    os.kill(worker.pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerError, match="gone"):
        await waiting

    assert told.lost == ["killed by SIGKILL"]
    with pytest.raises(WorkerError):
        worker.send(Start(1, [1]))


async def test_a_worker_that_ignores_every_word_is_killed_at_the_deadline(launch: Launch) -> None:
    supervisor, told, worker = await ready("deaf_to_sigterm", launch)
    begun = time.monotonic()
    await worker.stop(grace_s=0.2)
    await supervisor.retire(worker)

    assert time.monotonic() - begun < 2
    assert not worker.alive
    assert told.lost == []


async def test_a_worker_that_shows_no_sign_of_life_while_it_has_work_is_shot(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, told, worker = await ready("wedged", launch)
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 0.2)
    await asyncio.sleep(0.3)
    supervisor.shoot_wedged(lambda _: False)
    supervisor.shoot_wedged(lambda _: True)  # its silence counts from here: it has work now
    fresh = supervisor.busy, supervisor.falters(worker), bool(told.lost)
    await asyncio.sleep(0.1)
    halfway = supervisor.falters(worker)
    await asyncio.sleep(0.2)
    supervisor.shoot_wedged(lambda _: True)
    await until(lambda: bool(told.lost))

    assert fresh == (True, False, False)
    assert halfway
    assert "no sign of life" in told.lost[0]


async def test_silence_while_the_caller_was_away_itself_is_no_fault_of_a_worker(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, told, worker = await ready("wedged", launch)
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 0.2)
    with pytest.raises(SilentWorkerError):
        await worker.ping(0.05)  # owed from here on
    supervisor.shoot_wedged(lambda _: True)
    await asyncio.sleep(0.3)
    returned_s = time.monotonic()
    supervisor.shoot_wedged(lambda _: True, returned_s)
    at_return = supervisor.falters(worker), bool(told.lost)
    await asyncio.sleep(0.3)
    supervisor.shoot_wedged(lambda _: True, returned_s)
    await until(lambda: bool(told.lost))

    assert at_return == (False, False)
    assert told.lost


async def test_a_question_that_nobody_waits_for_any_more_is_still_to_be_answered(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, told, worker = await ready("wedged", launch)
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 0.2)
    await worker.render(text="hello")
    open_question_s = worker.owes_since_s
    with pytest.raises(SilentWorkerError):
        await worker.ping(0.05)
    supervisor.shoot_wedged(lambda _: False)
    await asyncio.sleep(0.3)
    supervisor.shoot_wedged(lambda _: False)
    await until(lambda: bool(told.lost))

    assert open_question_s is None
    assert worker.owes_since_s is not None
    assert "no sign of life" in told.lost[0]


async def test_a_question_that_is_never_answered_is_not_hidden_by_what_else_is_said(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, told, worker = await ready("wedged", launch)
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 1.5)
    with pytest.raises(SilentWorkerError):
        await worker.ping(0.05)
    async with asyncio.timeout(10):
        while not told.lost:
            await asyncio.sleep(0.05)
            if worker.alive:
                await asyncio.gather(worker.render(text="hello"), return_exceptions=True)
            supervisor.shoot_wedged(lambda _: False)

    assert "no answer to a question" in told.lost[0]


async def test_a_worker_that_answers_one_question_after_the_other_is_left_alone(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, told, worker = await ready("slow", launch)
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 0.9)
    begun = time.monotonic()
    questions = [asyncio.create_task(worker.render(text="hello")) for _ in range(5)]
    while not all(question.done() for question in questions) and not told.lost:
        await asyncio.sleep(0.02)
        supervisor.shoot_wedged(lambda _: False)
    took_s = time.monotonic() - begun
    await worker.stop()
    await supervisor.retire(worker)

    assert told.lost == []
    assert took_s > 1.4
    assert worker.owes_since_s is None


async def test_an_idle_worker_is_asked_whether_it_lives_once_it_was_not_heard_of_for_long(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, _, worker = await ready("none", launch)
    fresh = supervisor.unheard()
    monkeypatch.setattr(supervisor_module, "PING_AFTER_S", 0.05)
    await asyncio.sleep(0.1)
    supervisor.shoot_wedged(lambda _: True)
    busy = supervisor.unheard()
    supervisor.shoot_wedged(lambda _: False)
    idle = supervisor.unheard()
    monkeypatch.setattr(supervisor_module, "PING_AFTER_S", 60.0)
    await worker.ping(10)
    await supervisor.retire_all()

    assert (fresh, busy, idle) == ([], [], [worker])
    assert supervisor.unheard() == []


async def test_a_ping_that_is_not_answered_says_so(launch: Launch) -> None:
    supervisor, _, worker = await ready("wedged", launch)
    with pytest.raises(WorkerError, match="no answer"):
        await worker.ping(0.1)
    await supervisor.retire_all()

    assert supervisor.workers == ()


async def test_messages_of_one_write_are_all_delivered_in_order(launch: Launch) -> None:
    supervisor, told, worker = await ready("doubles_a_token", launch)
    worker.send(Start(9, [1]))
    await until(lambda: len(told.messages) == 2)
    await supervisor.retire(worker)

    assert told.messages == [Tokens(9, 0, [5], "a")] * 2


async def test_a_program_that_is_not_there_is_a_worker_error(launch: Launch) -> None:
    supervisor = Supervisor(
        SystemClock(), lambda *_: None, lambda *_: None, lambda *_: None, lambda _: ["/no/such"]
    )
    with pytest.raises(WorkerError, match="can't be started"):
        await supervisor.start(launch, None)

    assert supervisor.workers == ()


def variant(tiny: ModelSpec, disk_bytes: int) -> VariantSpec:
    return replace(tiny.variants[0], disk_bytes=disk_bytes)


def test_a_load_may_take_ten_times_what_it_took_here(tiny: ModelSpec) -> None:
    launch = Launch(variant(tiny, 1), 1, 2048)

    assert load_timeout_s(launch, 10.0) == 100.0
    assert load_timeout_s(launch, 0.1) == 30.0


def test_a_load_that_was_never_measured_may_take_as_long_as_a_slow_disk(tiny: ModelSpec) -> None:
    launch = Launch(variant(tiny, 5000 * MIB), 1, 2048)

    assert load_timeout_s(launch, None) == 1000.0
    assert load_timeout_s(Launch(variant(tiny, MIB), 1, 2048), None) == 120.0


def test_a_load_may_take_longer_with_a_draft_whether_it_was_measured_or_not(
    tiny: ModelSpec,
) -> None:
    launch = Launch(variant(tiny, 1000 * MIB), 1, 2048, draft=variant(tiny, 500 * MIB))

    assert load_timeout_s(launch, None) == 300.0
    assert load_timeout_s(launch, 1.0) == 130.0


def test_a_slow_board_may_be_silent_for_longer(tiny: ModelSpec) -> None:
    quick = replace(tiny.variants[0], prefill_tps=400.0)
    slow = replace(tiny.variants[0], prefill_tps=2.0)

    assert wedged_after_s(quick) == 30.0
    assert wedged_after_s(slow) == 128.0
    assert wedged_after_s(tiny.variants[0]) == 120.0


def test_an_exit_status_is_told_in_words() -> None:
    assert describe_exit(0) == "exit status 0"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-64) == "killed by SIGRTMAX"
