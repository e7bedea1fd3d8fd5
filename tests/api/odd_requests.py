"""Requests that are wrong somewhere, by chance but always the same, and how they are answered."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 0.5,
    "max_tokens": 3,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
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
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 3, "logprobs": 2}),
    ("POST", "/api/chat", OLLAMA),
    (
        "POST",
        "/api/generate",
        {"model": "tiny", "prompt": "x", "raw": True, "options": {"num_predict": 3}},
    ),
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


async def fuzz(sockets: list[Path], count: int) -> dict[int, int]:
    """Send that many odd requests, some at a time; how often each status came."""
    chance = random.Random(20260301)
    statuses: dict[int, int] = {}
    requests = iter([(chance.choice(sockets), odd_request(chance)) for _ in range(count)])

    async def work() -> None:
        for path, request in requests:
            status = await ask(path, request)
            statuses[status] = statuses.get(status, 0) + 1

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(work())
    return statuses
