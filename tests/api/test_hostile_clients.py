"""Clients that send garbage, vanish or hardly read: others are served, and nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bad_clients import chat_request, nuisances
from odd_requests import CHAT, fuzz

from api_fakes import Gateway, deltas
from trimtab.telemetry.log import LogFormat, LogLevel, configure


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@asynccontextmanager
async def nothing_leaks(gateway: Gateway) -> AsyncIterator[io.StringIO]:
    """Afterwards there are as few connections, tasks and descriptors as before, and no fault."""
    gc.collect()
    before = descriptors(), len(asyncio.all_tasks())
    lines = io.StringIO()
    configure(LogLevel.WARNING, LogFormat.JSON, lines)
    try:
        yield lines
        async with asyncio.timeout(10):
            while gateway.service.connections or len(asyncio.all_tasks()) > before[1]:
                await asyncio.sleep(0.02)
    finally:
        configure()
    gc.collect()
    assert (descriptors(), len(asyncio.all_tasks())) == before
    assert "Traceback" not in lines.getvalue()
    assert '"level": "error"' not in lines.getvalue()


@pytest.mark.parametrize(
    "count", [1_500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(240)])]
)
async def test_malformed_requests_get_honest_answers_and_leave_nothing(
    serve: Callable[..., Any], count: int
) -> None:
    gateway = await serve(read_deadline="300ms", rate=0)
    async with nothing_leaks(gateway):
        statuses = await fuzz([gateway.inference_socket, gateway.control_socket], count)

    served = sum(statuses.values()) - statuses.get(0, 0)
    assert not [status for status in statuses if status >= 500]
    assert statuses[400] > count / 10
    assert statuses[200] > count / 50
    assert served > 0.9 * count


async def well_behaved(gateway: Gateway) -> bool:
    reader, writer = await asyncio.open_unix_connection(str(gateway.inference_socket))
    writer.write(chat_request(CHAT))
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in answer


async def test_of_200_clients_the_well_behaved_half_is_served(serve: Callable[..., Any]) -> None:
    gateway = await serve(
        read_deadline="500ms",
        write_deadline="500ms",
        idle="500ms",
        max_connections=250,
        max_user_connections=250,
        rate=0,
    )
    gateway.inference.events = deltas(*["some text " * 40] * 50)
    async with nothing_leaks(gateway), asyncio.timeout(30):
        others = nuisances(gateway.inference_socket, chat_request(CHAT), 100, pause_s=0.2)
        served = await asyncio.gather(*(well_behaved(gateway) for _ in range(100)))
        await asyncio.gather(*others, return_exceptions=True)

    assert all(served)
    assert gateway.service.dropped >= 50
