"""A recording of the daemon as server-sent events, for `trimtab record`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

_DONE: Final = b"data: [DONE]\n\n"


class RecordingEvents:
    """Lines of a recording, one event each, until the client leaves.

    Args:
        lines: From the recorder; they end when the client can't keep up.
        keep_alive_s: A comment is sent when nothing came for this long.
    """

    status_code = 200

    def __init__(self, lines: AsyncIterator[dict[str, Any]], keep_alive_s: float) -> None:
        self._lines = lines
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with asyncio.TaskGroup() as group:
            next_line = group.create_task(_next(self._lines))
            try:
                while True:
                    done, _ = await asyncio.wait({next_line}, timeout=self._keep_alive_s)
                    if not done:
                        await _body(send, b": waiting\n\n")
                        continue
                    line = next_line.result()
                    if line is None:
                        break
                    await _body(send, b"data: %b\n\n" % msgspec.json.encode(line))
                    next_line = group.create_task(_next(self._lines))
            finally:
                next_line.cancel()
        await send({"type": "http.response.body", "body": _DONE, "more_body": False})


async def _body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _next(lines: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    return await anext(lines, None)
