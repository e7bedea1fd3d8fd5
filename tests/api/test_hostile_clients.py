"""Clients that send garbage, vanish or hardly read: others are served, and nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from odd_requests import CHAT, ask, fuzz

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
    body = json.dumps(CHAT).encode()
    reader, writer = await asyncio.open_unix_connection(str(gateway.inference_socket))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in answer


async def vanishes(gateway: Gateway) -> None:
    body = json.dumps(CHAT).encode()
    reader, writer = await asyncio.open_unix_connection(str(gateway.inference_socket))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    await reader.readline()
    writer.transport.abort()


async def reads_a_byte_at_a_time(gateway: Gateway) -> None:
    body = json.dumps(CHAT | {"trimtab": {}}).encode()
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, str(gateway.inference_socket))
        head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        await loop.sock_sendall(client, head + body)
        for _ in range(30):
            if not await loop.sock_recv(client, 1):
                return
            await asyncio.sleep(0.1)


async def sends_garbage(gateway: Gateway) -> None:
    await ask(gateway.inference_socket, random.Random(1).randbytes(2000))


async def never_finishes(gateway: Gateway) -> None:
    await ask(gateway.inference_socket, b"POST /v1/completions HTTP/1.1\r\ncontent-length: 50\r\n")


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
    bad = [vanishes, reads_a_byte_at_a_time, sends_garbage, never_finishes]
    async with nothing_leaks(gateway), asyncio.timeout(30):
        others = [asyncio.ensure_future(bad[number % 4](gateway)) for number in range(100)]
        served = await asyncio.gather(*(well_behaved(gateway) for _ in range(100)))
        await asyncio.gather(*others, return_exceptions=True)

    assert all(served)
    assert gateway.service.dropped >= 50
