"""Connections that misbehave: slow, endless, too many, not HTTP. Real sockets, short deadlines."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

from api_fakes import Gateway, deltas
from trimtab.serving.requests import Delta, Ended, FinishReason, Usage

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(str(path))


async def talk(gateway: Gateway, data: bytes) -> bytes:
    """Send bytes and read until the server closes."""
    reader, writer = await connect(gateway.inference_socket)
    writer.write(data)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


def request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
        len(content),
        content,
    )


async def test_what_isnt_http_gets_400_in_openais_shape(gateway: Gateway) -> None:
    answer = await talk(gateway, b"\x16\x03\x01\x02\x00 hello\r\n\r\n")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "bad_http"


async def test_a_head_without_an_end_is_cut_off_at_its_limit(serve: Any) -> None:
    gateway = await serve(max_header="2KiB")
    endless = b"GET / HTTP/1.1\r\nx: " + b"a" * 3000

    answer = await talk(gateway, endless)

    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_many_headers_count_together(serve: Any) -> None:
    gateway = await serve(max_header="2KiB")
    many = b"GET /healthz HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(900)) + b"\r\n"

    answer = await talk(gateway, many)

    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_request_that_trickles_in_gets_408(serve: Any) -> None:
    gateway = await serve(read_deadline="300ms")
    reader, writer = await connect(gateway.inference_socket)
    for byte in b"GET /":
        writer.write(bytes([byte]))
        await asyncio.sleep(0.04)
    async with asyncio.timeout(3):
        answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_trickles_in_gets_408(serve: Any) -> None:
    gateway = await serve(read_deadline="200ms")

    answer = await talk(gateway, b"POST /v1/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\nabc")

    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_connection_that_says_nothing_is_closed(serve: Any) -> None:
    gateway = await serve(read_deadline="200ms")

    assert await talk(gateway, b"") == b""


async def test_an_idle_connection_is_closed_after_its_time(serve: Any) -> None:
    gateway = await serve(idle="200ms")

    answer = await talk(gateway, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_long_answer_isnt_cut_by_the_read_deadline(serve: Any) -> None:
    gateway = await serve(read_deadline="200ms")
    gateway.inference.hold = True
    reader, writer = await connect(gateway.inference_socket)
    writer.write(request(CHAT | {"stream": True}))
    await asyncio.sleep(0.5)
    handle = gateway.inference.handles[0]
    handle.queue.put_nowait(Ended(FinishReason.STOP, Usage(1, 1)))
    async with asyncio.timeout(3):
        answer = await reader.readuntil(b"[DONE]")
    writer.close()

    assert b"HTTP/1.1 200" in answer
    assert not handle.cancelled.is_set()


async def test_a_pipelined_request_waits_its_turn_without_a_deadline_of_its_own(serve: Any) -> None:
    gateway = await serve(read_deadline="200ms")
    gateway.inference.hold = True
    reader, writer = await connect(gateway.inference_socket)
    writer.write(request(CHAT) + b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    await asyncio.sleep(0.5)
    gateway.inference.handles[0].queue.put_nowait(Ended(FinishReason.STOP, Usage(1, 1)))
    async with asyncio.timeout(3):
        answer = await reader.read()
    writer.close()

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.index(b"chat.completion") < answer.index(b'"status":"ok"')


async def test_a_pile_of_pipelined_requests_is_refused(gateway: Gateway) -> None:
    gateway.inference.hold = True

    answer = await talk(gateway, request(CHAT) + b"GET /healthz HTTP/1.1\r\n\r\n" * 500)

    assert answer.startswith(b"HTTP/1.1 429 ")


async def test_a_client_that_reads_nothing_is_cut_off_and_its_slot_freed(serve: Any) -> None:
    gateway = await serve(write_deadline="300ms")
    gateway.inference.hold = True
    gateway.inference.events = [Delta("x" * 200_000, (number,)) for number in range(10)]
    client = socket.socket(socket.AF_UNIX)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(str(gateway.inference_socket))
    client.sendall(request(CHAT | {"stream": True}))
    while not gateway.inference.handles:
        await asyncio.sleep(0.01)

    async with asyncio.timeout(3):
        await gateway.inference.handles[0].cancelled.wait()
    client.close()


async def test_a_client_that_never_takes_a_whole_answer_is_let_go(serve: Any) -> None:
    gateway = await serve(write_deadline="200ms", idle="100ms")
    gateway.inference.events = [Delta("x" * 400_000, (1,))]
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(gateway.inference_socket))
    client.sendall(request(CHAT))

    async with asyncio.timeout(3):
        while not gateway.inference.handles or gateway.service.connections:
            await asyncio.sleep(0.02)
    client.close()


async def test_a_connection_too_many_gets_503_and_the_others_are_served(serve: Any) -> None:
    gateway = await serve(max_connections=3)
    kept = [await connect(gateway.inference_socket) for _ in range(3)]
    await asyncio.sleep(0.05)

    refused = await talk(gateway, b"GET /healthz HTTP/1.1\r\n\r\n")
    reader, writer = kept[0]
    writer.write(b"GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n")
    served = await reader.read()
    for _, open_writer in kept:
        open_writer.close()

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"too_many_connections" in refused
    assert served.startswith(b"HTTP/1.1 200 ")


async def test_one_user_leaves_connections_for_others(serve: Any) -> None:
    gateway = await serve(max_connections=20, max_user_connections=3)
    kept = [await connect(gateway.inference_socket) for _ in range(3)]
    await asyncio.sleep(0.05)

    refused = await talk(gateway, b"GET /healthz HTTP/1.1\r\n\r\n")
    kept[0][1].close()
    await asyncio.sleep(0.05)
    served = await talk(gateway, b"GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n")
    for _, open_writer in kept:
        open_writer.close()

    assert refused.startswith(b"HTTP/1.1 429 ")
    assert b"too_many_user_connections" in refused
    assert served.startswith(b"HTTP/1.1 200 ")


async def test_an_upgrade_is_answered_as_a_plain_request(gateway: Gateway) -> None:
    answer = await talk(
        gateway,
        b"GET /healthz HTTP/1.1\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n",
    )

    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_stopping_lets_an_answer_end_and_removes_the_sockets(gateway: Gateway) -> None:
    gateway.inference.hold = True
    async with gateway.client() as client:
        answer = asyncio.ensure_future(client.post("/v1/chat/completions", json=CHAT))
        while not gateway.inference.handles:
            await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(gateway.service.stop(5))
        await asyncio.sleep(0.1)
        gateway.inference.handles[0].queue.put_nowait(Ended(FinishReason.STOP, Usage(1, 1)))
        told = await answer
        await stopping

    assert told.status_code == 200
    assert not gateway.inference_socket.exists()
    assert not gateway.control_socket.exists()


async def test_stopping_cuts_off_what_doesnt_end_in_time(gateway: Gateway) -> None:
    gateway.inference.hold = True
    gateway.inference.events = deltas("a")
    reader, writer = await connect(gateway.inference_socket)
    writer.write(request(CHAT | {"stream": True}))
    await reader.readuntil(b'"a"')

    async with asyncio.timeout(2):
        await gateway.service.stop(0.1)

    assert gateway.inference.handles[0].cancelled.is_set()
    writer.close()
