"""Decisions as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from trimtab.serving.control import Control

_BEHIND: Final = 1000
"""A client that is this many records behind has stopped reading; it is let go."""


class DecisionEvents:
    """Records as they are made, and again when their outcome is known.

    Args:
        control: Where they come from.
        keep_alive_s: A comment is sent when nothing came for this long.
        since: Send those after this id first, as far as they are remembered.
    """

    status_code = 200

    def __init__(self, control: Control, keep_alive_s: float, since: int | None) -> None:
        self._control = control
        self._keep_alive_s = keep_alive_s
        self._since = since

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them until the client leaves."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue(_BEHIND)
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(self._pump(queue))
            try:
                await self._events(send, queue)
            finally:
                pump.cancel()

    async def _events(self, send: Send, queue: asyncio.Queue[Mapping[str, Any] | None]) -> None:
        body = b": decisions\n\n" + b"".join(_event(record) for record in self._missed())
        while True:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            try:
                record = await asyncio.wait_for(queue.get(), self._keep_alive_s)
            except TimeoutError:
                body = b": waiting\n\n"
                continue
            if record is None:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            body = _event(record)

    def _missed(self) -> list[dict[str, Any]]:
        if self._since is None:
            return []
        return [one for one in self._control.decisions(_BEHIND) if one["id"] > self._since]

    async def _pump(self, queue: asyncio.Queue[Mapping[str, Any] | None]) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            async for record in self._control.decision_stream():
                queue.put_nowait(record)
        await queue.put(None)


def _event(record: Mapping[str, Any]) -> bytes:
    return b"event: decision\nid: %d\ndata: %b\n\n" % (record["id"], msgspec.json.encode(record))
