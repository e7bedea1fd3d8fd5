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

from api_fakes import Gateway, deltas
from trimtab.telemetry.log import LogFormat, LogLevel, configure

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 0.5,
    "stop": ["x"],
    "logit_bias": {"1": 2},
    "stream": True,
    "stream_options": {"include_usage": True},
    "trimtab": {"priority": "background"},
}
OLLAMA: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "options": {"temperature": 1, "num_predict": 5},
}
TARGETS = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "x", "logprobs": 2}),
    ("POST", "/api/chat", OLLAMA),
    ("POST", "/api/generate", {"model": "tiny", "prompt": "x", "raw": True}),
    ("POST", "/api/show", {"model": "tiny"}),
    ("PUT", "/trimtab/v1/pin", {"knobs": {"variant": "int8"}, "for": "10m"}),
    ("GET", "/trimtab/v1/decisions?limit=3", {}),
    ("GET", "/v1/models/tiny", {}),
]
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 2**70, 1e308, "", "x" * 3000, "\x00", "é\u2028", [], {}, [[[]]],
    {"a": {"b": []}}, ["", 3, None], -0.0, "🙂", {"": ""},
]  # fmt: skip
HEADERS = [
    b"transfer-encoding: chunked", b"content-length: -5", b"content-length: 99999999999",
    b"expect: 100-continue", b"connection: upgrade\r\nupgrade: h2c", b"host: \xff\xfe",
    b"content-type: text/plain; charset=utf-16", b"x: " + b"y" * 5000, b": empty", b"no colon",
    b"last-event-id: 99999999999999999999", b"authorization: Bearer x", b"cookie: a=b",
]  # fmt: skip


def odd_body(chance: random.Random, body: dict[str, Any]) -> bytes:
    """A body that is wrong somewhere: in a value, in a name, or in its bytes."""
    changed = json.loads(json.dumps(body))
    for _ in range(chance.randrange(3)):
        place = changed
        while isinstance(place, dict) and place and chance.random() < 0.5:
            below = place[chance.choice(list(place))]
            if not isinstance(below, dict):
                break
            place = below
        if isinstance(place, dict):
            name = chance.choice([*place, "unknown", "", "\x00"]) if place else "unknown"
            place[name] = json.loads(json.dumps(chance.choice(ODD_VALUES)))
    content = bytearray(json.dumps(changed).encode("utf-8", "surrogatepass"))
    match chance.randrange(5):
        case 0:
            del content[chance.randrange(len(content) + 1) :]
        case 1:
            for _ in range(3):
                content[chance.randrange(len(content))] = chance.randrange(256)
        case 2:
            content = bytearray(b"[" * chance.randrange(5000)) + content
    return bytes(content)


def odd_request(chance: random.Random) -> bytes:
    """A request that is wrong somewhere."""
    method, path, body = chance.choice(TARGETS)
    content = odd_body(chance, body)
    if chance.random() < 0.1:
        method = chance.choice(["GET", "DELETE", "PATCH", "CONNECT", "BREW", "post", "PRI", ""])
    if chance.random() < 0.1:
        path = chance.choice(["/", "*", "//", "/%00", "/\xff", "/v1/models/" + "x" * 4000, "x:1"])
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode("latin-1")
    if chance.random() < 0.2:
        head += chance.choice(HEADERS) + b"\r\n"
    length = len(content) + (chance.choice([-3, 5]) if chance.random() < 0.05 else 0)
    whole = head + b"content-length: %d\r\n\r\n" % max(length, 0) + content
    if chance.random() < 0.05:
        whole = chance.randbytes(chance.randrange(1, 400))
    if chance.random() < 0.1:
        whole = whole[: chance.randrange(len(whole)) + 1]
    return whole


async def ask(path: Path, request: bytes) -> int:
    """Send a request, say that no more comes, and return the status; 0 if there is no answer."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            line = await reader.readline()
            await reader.read()
        return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0
    except (ConnectionError, TimeoutError):
        return 0
    finally:
        writer.close()


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


async def fuzz(gateway: Gateway, count: int) -> dict[int, int]:
    """Send that many odd requests, some at a time; how often each status came."""
    chance = random.Random(20260301)
    statuses: dict[int, int] = {}
    sockets = [gateway.inference_socket, gateway.control_socket]
    requests = iter([(chance.choice(sockets), odd_request(chance)) for _ in range(count)])

    async def work() -> None:
        for path, request in requests:
            status = await ask(path, request)
            statuses[status] = statuses.get(status, 0) + 1

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(work())
    return statuses


@pytest.mark.parametrize(
    "count", [1_500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(240)])]
)
async def test_malformed_requests_get_honest_answers_and_leave_nothing(
    serve: Callable[..., Any], count: int
) -> None:
    gateway = await serve(read_deadline="300ms")
    async with nothing_leaks(gateway):
        statuses = await fuzz(gateway, count)

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
        read_deadline="500ms", write_deadline="500ms", idle="500ms", max_connections=250
    )
    gateway.inference.events = deltas(*["some text " * 40] * 50)
    bad = [vanishes, reads_a_byte_at_a_time, sends_garbage, never_finishes]
    async with nothing_leaks(gateway), asyncio.timeout(30):
        others = [asyncio.ensure_future(bad[number % 4](gateway)) for number in range(100)]
        served = await asyncio.gather(*(well_behaved(gateway) for _ in range(100)))
        await asyncio.gather(*others, return_exceptions=True)

    assert all(served)
    assert gateway.service.dropped >= 50
