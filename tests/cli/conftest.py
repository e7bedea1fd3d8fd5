"""The command line against a real API on real sockets, with a fake engine behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_gateway import ServedGateway, Told, run_command

from api_fakes import FakeControl, FakeInference, a_config
from trimtab.api.service import ApiService, bind
from trimtab.runtime.clock import SystemClock
from trimtab.telemetry.log import configure
from trimtab.telemetry.metrics import Metrics


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[ServedGateway]:
    config = a_config(tmp_path, keep_alive="50ms")
    bound = bind(config.sockets, environ={})
    started = threading.Event()
    served: list[ServedGateway] = []
    ending = asyncio.Event()

    async def serve() -> None:
        inference, control, metrics = FakeInference(), FakeControl(), Metrics(process=False)
        service = ApiService(config, bound, inference, control, metrics, SystemClock())
        await service.start()
        one = ServedGateway(config, inference, control, metrics, service)
        one.loop = asyncio.get_running_loop()
        served.append(one)
        started.set()
        await ending.wait()
        control.live.put_nowait(None)
        await service.stop(0.2)

    configure()
    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(10)
    yield served[0]
    served[0].soon(ending.set)
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def trimtab(gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """Run a command: ``trimtab("status", "--json")``."""
    monkeypatch.setenv("TRIMTAB_SOCKETS_FOLDER", str(gateway.config.sockets.folder))
    return run_command
