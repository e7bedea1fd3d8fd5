"""Workers that stop answering without dying: shot, and whoever waits is served by the next one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rig import Rig, running
from test_continuity import TALK

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec
from trimtab.errors import ServingError
from trimtab.runtime import daemon as daemon_module
from trimtab.runtime import ticks as ticks_module
from trimtab.runtime.condition import condition
from trimtab.workers import supervisor as supervisor_module

WEDGED_S = 1.6
LONG = 1500


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", WEDGED_S)


def wedge(rig: Rig) -> int:
    """The serving worker does nothing any more, and doesn't die; its process number."""
    pid = rig.worker_pid
    os.kill(pid, signal.SIGSTOP)
    return pid


@asynccontextmanager
async def watched(rig: Rig) -> AsyncIterator[list[str]]:
    """What the daemon says of itself meanwhile, each change once."""
    seen: list[str] = []

    async def watch() -> None:
        while True:
            name, _ = condition(rig.daemon)
            if not seen or seen[-1] != name:
                seen.append(name)
            await asyncio.sleep(0.01)

    watching = asyncio.ensure_future(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def why_lost(rig: Rig) -> list[str]:
    return [line["reason"] for event, line in rig.log.lines if event == "worker_lost"]


@pytest.mark.parametrize("decoder", ["generator", "kv"])
async def test_a_request_to_an_idle_worker_that_is_wedged_is_served_by_the_next_one(
    tiny: ModelSpec, decoder: str
) -> None:
    async with running(tiny, decoder=decoder) as rig:
        expected = await rig.read(await rig.ask(TALK))
        before = wedge(rig)
        async with watched(rig) as seen:
            answer = await rig.read(await rig.ask(TALK))

        assert answer.tokens == expected.tokens
        assert rig.worker_pid != before
        assert "no sign of life" in why_lost(rig)[0]
        assert seen[:2] == ["ready", "degraded"]
        assert seen[-1] == "ready"


@pytest.mark.parametrize("decoder", ["generator", "kv"])
async def test_a_worker_that_is_wedged_is_shot_though_its_only_client_has_left(
    tiny: ModelSpec, decoder: str
) -> None:
    async with running(tiny, decoder=decoder) as rig:
        expected = await rig.read(await rig.ask(TALK))
        stream = await rig.ask("Another talk. " + TALK, max_tokens=LONG)
        await rig.read(stream, tokens=20)
        before = wedge(rig)
        await asyncio.sleep(0.2)  # what it had said by then has been heard
        stream.cancel()
        async with watched(rig) as seen:
            answer = await rig.read(await rig.ask(TALK))

        assert answer.tokens == expected.tokens
        assert rig.worker_pid != before
        assert "degraded" in seen


async def test_nobody_has_to_come_for_a_worker_to_be_shot_that_never_let_go_of_a_stream(
    tiny: ModelSpec,
) -> None:
    async with running(tiny) as rig:
        stream = await rig.ask(TALK, max_tokens=LONG)
        await rig.read(stream, tokens=20)
        before = wedge(rig)
        stream.cancel()
        await rig.until(lambda: bool(why_lost(rig)))
        await rig.until(lambda: rig.daemon.streams.active is not None)
        ledger = rig.daemon.pool.ledger()

        assert rig.worker_pid != before
        assert ledger.leased == 0
        assert ledger.idle_count == 1


async def test_a_wedged_worker_that_is_replaced_leaves_no_kv_behind(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 60.0)
    async with running(tiny) as rig:
        stream = await rig.ask(TALK, max_tokens=LONG)
        await rig.read(stream, tokens=20)
        wedge(rig)
        stream.cancel()
        rig.pin("int8")
        await rig.serves("int8")

        assert rig.daemon.pool.ledger().leased == 0
        assert rig.daemon.pool.ledger().idle_count == 1


async def test_an_idle_worker_that_hangs_is_replaced_before_anybody_asks_for_anything(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "PING_AFTER_S", 0.5)
    async with running(tiny) as rig:
        expected = await rig.read(await rig.ask(TALK))
        before = wedge(rig)
        async with watched(rig) as seen:
            await rig.until(lambda: condition(rig.daemon)[0] == "degraded")
            _, reason = condition(rig.daemon)
            await rig.until(lambda: bool(why_lost(rig)))
            await rig.until(lambda: condition(rig.daemon)[0] == "ready")
        after = rig.worker_pid
        answer = await rig.read(await rig.ask(TALK))

        assert seen[0] == "ready"
        assert "asked something and has said nothing" in reason
        assert "no sign of life" in why_lost(rig)[0]
        assert after != before
        assert answer.tokens == expected.tokens


async def test_a_daemon_at_rest_that_finds_a_worker_hung_looks_at_once_and_not_at_its_next_look(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "PING_AFTER_S", 0.5)
    monkeypatch.setattr(ticks_module, "CALM_AFTER_S", 0.3)
    monkeypatch.setattr(ticks_module, "CALM_TICK_S", 3600.0)
    monkeypatch.setattr(daemon_module, "calm", lambda *_: True)
    async with running(tiny) as rig:
        wedge(rig)
        await asyncio.sleep(0.6)
        rig.daemon.look()  # the one that asks; at rest the next one is an hour away
        await rig.until(lambda: bool(why_lost(rig)))

        assert "no sign of life" in why_lost(rig)[0]


async def test_asking_an_idle_worker_does_not_keep_a_daemon_from_resting(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "PING_AFTER_S", 0.0)
    monkeypatch.setattr(daemon_module, "calm", lambda *_: True)
    async with running(tiny) as rig:
        worker = rig.daemon.streams.active
        assert worker is not None
        for _ in range(3):
            await rig.until(lambda: worker.owes_since_s is None)
            rig.daemon.look()
            busy = rig.daemon.supervisor.busy
            await asyncio.sleep(0)  # where it is asked

            assert worker.owes_since_s is not None
            assert not busy


async def test_a_request_that_gave_up_still_counts_as_unanswered(tiny: ModelSpec) -> None:
    async with running(tiny) as rig:
        wedge(rig)
        asking = asyncio.ensure_future(rig.ask(TALK))
        await asyncio.sleep(0.1)
        asking.cancel()
        await rig.until(lambda: bool(why_lost(rig)))

        assert "no sign of life" in why_lost(rig)[0]


async def test_a_request_waits_for_its_prompt_no_longer_than_the_policy_lets_it_wait(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "WEDGED_UNMEASURED_S", 60.0)
    impatient = policy(admission=replace(policy().admission, max_wait_s=0.3))
    async with running(tiny, impatient) as rig:
        wedge(rig)
        async with asyncio.timeout(5):
            with pytest.raises(ServingError) as told:
                await rig.ask(TALK)
        rig.kill_worker()

        assert told.value.code == "worker_silent"
        assert told.value.status == 503
        assert told.value.retry_after_s is not None
        assert rig.daemon.gateway.rendering == 0


async def test_a_worker_that_has_nothing_to_do_may_be_silent(tiny: ModelSpec) -> None:
    async with running(tiny) as rig:
        before = rig.worker_pid
        await rig.read(await rig.ask(TALK, max_tokens=5))
        await asyncio.sleep(2 * WEDGED_S)
        await rig.read(await rig.ask(TALK, max_tokens=5))

        assert rig.worker_pid == before
        assert condition(rig.daemon)[0] == "ready"
