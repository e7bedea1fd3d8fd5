"""Clients that mean no good: each does it once, on one socket."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from functools import partial
from pathlib import Path
from typing import Any

from odd_requests import ask


def chat_request(body: dict[str, Any]) -> bytes:
    """A chat, whole, on a connection that ends with it."""
    content = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % len(content) + content


async def vanishes(path: Path, request: bytes) -> None:
    """Leaves as soon as the answer begins."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(request)
    await reader.readline()
    writer.transport.abort()


async def reads_a_byte_at_a_time(path: Path, request: bytes, pause_s: float) -> None:
    """Takes ten bytes of its answer as slowly as can be, or until it is cut off."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, str(path))
        await loop.sock_sendall(client, request)
        for _ in range(10):
            if not await loop.sock_recv(client, 1):
                return
            await asyncio.sleep(pause_s)


async def sends_garbage(path: Path, request: bytes) -> None:
    """Sends what is no HTTP."""
    await ask(path, random.Random(len(request)).randbytes(2000))


async def never_finishes(path: Path, request: bytes) -> None:
    """Sends the beginning of a request, and no more."""
    await ask(path, request[:60])


def nuisances(
    path: Path, request: bytes, count: int, pause_s: float = 1.0
) -> list[asyncio.Future[None]]:
    """That many of them at once, of each kind in turn; slow ones pause between two bytes."""
    kinds = (
        vanishes,
        partial(reads_a_byte_at_a_time, pause_s=pause_s),
        sends_garbage,
        never_finishes,
    )
    return [asyncio.ensure_future(kinds[number % 4](path, request)) for number in range(count)]
