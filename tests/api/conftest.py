"""The API on real sockets, with a fake engine behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from api_fakes import FakeControl, FakeInference, Gateway, a_config
from real_daemon import RealDaemon
from trimtab.api.service import ApiService, bind
from trimtab.runtime.clock import SystemClock
from trimtab.telemetry.metrics import Metrics


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """Start the API with limits of the test's own: ``await serve(idle="1s")``."""
    running: list[Gateway] = []

    async def start(**api: Any) -> Gateway:
        config = a_config(tmp_path, **api)
        inference, control, metrics = FakeInference(), FakeControl(), Metrics(process=False)
        bound = bind(config.sockets, environ={})
        service = ApiService(config, bound, inference, control, metrics, SystemClock())
        await service.start()
        gateway = Gateway(config, inference, control, metrics, service)
        running.append(gateway)
        return gateway

    yield start
    for gateway in running:
        gateway.control.live.put_nowait(None)
        await gateway.service.stop(0.2)


@pytest.fixture
async def gateway(serve: Callable[..., Awaitable[Gateway]]) -> Gateway:
    """The API with the limits that it has by default."""
    return await serve()


@pytest.fixture
def client(daemon: RealDaemon) -> Iterator[openai.OpenAI]:
    """OpenAI's own client on the inference socket of the module's daemon."""
    transport = httpx.HTTPTransport(uds=str(daemon.sockets / "inference.sock"))
    with openai.OpenAI(
        base_url="http://trimtab/v1",
        api_key="unused",
        max_retries=0,
        http_client=httpx.Client(transport=transport),
    ) as official:
        yield official
