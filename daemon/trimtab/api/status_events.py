"""The status as server-sent events, for screens that show it live."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.types import Receive, Scope, Send

from trimtab.serving.control import Control


class StatusEvents:
    """The status now, and again after each interval, until the client leaves.

    Args:
        control: Where it comes from.
        every_s: The interval.
    """

    status_code = 200

    def __init__(self, control: Control, every_s: float) -> None:
        self._control = control
        self._every_s = every_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; the endpoint cancels this when the client has left."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            self._control.look()
            body = b"event: status\ndata: %b\n\n" % msgspec.json.encode(self._control.status())
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(self._every_s)
