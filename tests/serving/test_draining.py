"""Shutting down: whoever was admitted gets an answer, or is told why there is none."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rig import MIB, Rig, running

from policies_for_tests import policy
from real_daemon import RealDaemon
from trimtab.domain.models import ModelSpec
from trimtab.errors import ServingError
from trimtab.serving import gateway
from trimtab.serving.requests import StreamHandle


def parked(model: ModelSpec) -> Rig:
    """A daemon with too little memory to load anything."""
    rig = Rig(model, policy(), "auto")
    rig.sensors.available_bytes = 10.0 * MIB
    rig.daemon.start(model)
    return rig


async def asked(rig: Rig) -> asyncio.Task[StreamHandle]:
    """A request that isn't in the queue yet."""
    asking = asyncio.ensure_future(rig.ask(max_tokens=20))
    await rig.until(lambda: rig.daemon.gateway.rendering == 1)
    return asking


async def test_a_request_that_waits_for_a_load_is_served_before_the_daemon_goes(
    tiny: ModelSpec,
) -> None:
    rig = parked(tiny)
    asking = await asked(rig)
    draining = asyncio.ensure_future(rig.daemon.drain(15.0))
    await asyncio.sleep(0.2)
    waits = not draining.done()
    rig.sensors.available_bytes = 8192.0 * MIB
    answer = await rig.read(await asking)
    await draining
    await rig.daemon.stop()

    assert waits
    assert len(answer.tokens) == 20


async def test_a_request_that_waits_for_a_load_longer_than_that_is_told_so(
    tiny: ModelSpec,
) -> None:
    rig = parked(tiny)
    asking = await asked(rig)
    await rig.daemon.drain(0.2)
    with pytest.raises(ServingError) as told:
        async with asyncio.timeout(1):
            await asking
    left = rig.daemon.gateway.rendering
    await rig.daemon.stop()

    assert told.value.code == "shutting_down"
    assert left == 0


async def test_a_request_that_is_being_tokenized_is_told_so_too(tiny: ModelSpec) -> None:
    async with running(tiny) as rig:
        os.kill(rig.worker_pid, signal.SIGSTOP)
        asking = await asked(rig)
        await rig.daemon.drain(0.2)
        with pytest.raises(ServingError) as told:
            async with asyncio.timeout(1):
                await asking

    assert told.value.code == "shutting_down"


def test_its_client_gets_an_http_answer(tmp_path: Path) -> None:
    daemon = RealDaemon(tmp_path, API_DRAIN="500ms").start()
    os.kill(daemon.status()["workers"][0]["pid"], signal.SIGSTOP)
    with daemon.client() as client, ThreadPoolExecutor() as others:
        body = {"model": "tiny", "prompt": "The river", "max_tokens": 3}
        asking = others.submit(client.post, "/v1/completions", json=body)
        while daemon.status()["queued"] == 0:
            time.sleep(0.02)
        daemon.tell(signal.SIGTERM)
        answer = asking.result(20)
    daemon.end()

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "shutting_down"


async def test_one_that_is_ready_in_the_moment_in_which_the_time_is_over_is_told_too(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny) as rig:
        rendered: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

        async def render(*_: object) -> list[int]:
            return await rendered

        monkeypatch.setattr(gateway, "render", render)
        asking = await asked(rig)
        rig.daemon.gateway.drain()
        rendered.set_result([1, 2, 3])
        rig.daemon.gateway.close()

        with pytest.raises(ServingError) as told:
            await asking
        assert told.value.code == "shutting_down"
        assert not rig.daemon.streams.busy()
