"""The frame around every route: faults become answers, and a client that leaves ends its work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from trimtab.api.faults import FaultShape, fault_response
from trimtab.api.protocol import HttpProtocol
from trimtab.api.rate import RateLimit
from trimtab.domain.clock import Clock
from trimtab.errors import ServingError, TrimtabError
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


@dataclass(frozen=True, slots=True)
class Door:
    """What the routes of one socket share.

    Attributes:
        name: ``inference``, ``control`` or ``tcp``; answers are counted under it.
        metrics: Where answers are counted.
        rate: How many requests a user may send.
        clock: The daemon's clock.
    """

    name: str
    metrics: Metrics
    rate: RateLimit
    clock: Clock

    def admit(self, connection: HttpProtocol) -> None:
        """Take a request in.

        What no route takes (404, a missing token) isn't counted: it costs no more than a refusal.

        Raises:
            ServingError: Its user has sent too many.
        """
        user = connection.peer.uid if connection.peer else None
        wait_s = self.rate.wait_s(user, self.clock.monotonic_s())
        if wait_s > 0:
            raise ServingError(
                "You send more requests a second than one user may.",
                status=429,
                retry_after_s=wait_s,
                hint="`rate` and `burst` in [api] say how many.",
                code="rate_limited",
            )


class Endpoint:
    """A route's handler as an ASGI application.

    Args:
        handler: Makes the answer, or raises a `TrimtabError`.
        shape: How errors are written.
        door: What the routes of its socket share.
    """

    def __init__(self, handler: Handler, shape: FaultShape, door: Door) -> None:
        self._handler = handler
        self._shape = shape
        self._door = door

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
            answer = await self._answer(Request(scope, receive, send), connection)
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
            self._door.metrics.answered(self._door.name, status)

    async def _answer(self, request: Request, connection: HttpProtocol) -> Answer:
        try:
            self._door.admit(connection)
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
