"""The frame around every route: faults become answers, and a client that leaves ends its work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from trimtab.api.faults import FaultShape, fault_response
from trimtab.api.protocol import HttpProtocol
from trimtab.errors import TrimtabError
from trimtab.telemetry.log import get_logger
from trimtab.telemetry.metrics import Metrics


class Answer(Protocol):
    """What a route returns: one of Starlette's responses, or a stream of ours."""

    status_code: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""


Handler: TypeAlias = Callable[[Request], Awaitable[Answer]]

CLIENT_GONE: int = 499
"""What nginx counts where the client left before the answer."""


class Endpoint:
    """A route's handler as an ASGI application.

    Args:
        handler: Makes the answer, or raises a `TrimtabError`.
        shape: How errors are written.
        metrics: Where answers are counted.
        socket: Name of the socket, for the count.
    """

    def __init__(self, handler: Handler, shape: FaultShape, metrics: Metrics, socket: str) -> None:
        self._handler = handler
        self._shape = shape
        self._metrics = metrics
        self._socket = socket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. The task is cancelled as soon as the client is gone.

        `asyncio.wait_for` may swallow a cancellation that comes together with a result, so sending
        to a lost client ends the work as well.
        """
        connection: HttpProtocol = scope["state"]["connection"]
        task = asyncio.current_task()
        leave: Callable[[], Any] = task.cancel if task else _nothing
        connection.when_lost(leave)
        status = CLIENT_GONE

        async def send_to_client(message: Message) -> None:
            if connection.lost:
                raise ClientDisconnect
            await send(message)

        try:
            answer = await self._answer(Request(scope, receive, send))
            status = answer.status_code
            await answer(scope, receive, send_to_client)
        except ClientDisconnect:
            pass
        except ExceptionGroup:
            if not connection.lost:
                raise
        except asyncio.CancelledError:
            if not connection.lost:
                raise
            if task:
                task.uncancel()
        finally:
            connection.forget(leave)
            self._metrics.answered(self._socket, status)

    async def _answer(self, request: Request) -> Answer:
        try:
            return await self._handler(request)
        except TrimtabError as error:
            return fault_response(self._shape, error)
        except ClientDisconnect:
            raise
        except Exception as error:  # the last frame: no client sees a traceback
            get_logger("api").error("route_failed", path=request.url.path, exc_info=error)
            fault = TrimtabError("trimtab made an error; its log has it.", code="internal_error")
            return fault_response(self._shape, fault)


def _nothing() -> None:
    pass
