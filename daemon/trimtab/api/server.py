"""Serve an ASGI application on sockets that listen already, inside the daemon's own loop.

uvicorn's Server isn't used: it takes over signals and wakes ten times a second when idle.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from trimtab.api.plain_uvicorn import Config as UvicornConfig
from trimtab.api.plain_uvicorn import ServerState
from trimtab.api.protocol import HttpProtocol, Limits, Refusal, Server
from trimtab.api.sockets import BACKLOG, Listener
from trimtab.domain.clock import Clock


class HttpServer:
    """An application on its sockets.

    Args:
        app: The ASGI application.
        limits: For each connection.
        clock: The daemon's clock.
        refuse: Makes the answer for what never reaches the application.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        limits: Limits,
        clock: Clock,
        refuse: Callable[[int, str, str], Refusal],
    ) -> None:
        config = UvicornConfig(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        config.load()
        self._server = Server(config, ServerState(), limits, clock, refuse)
        self._listening: list[asyncio.base_events.Server] = []
        self._listeners: list[Listener] = []

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._server.state.connections)

    @property
    def dropped(self) -> int:
        """How many were ended for being too slow or too many."""
        return self._server.dropped

    async def start(self, listeners: Sequence[Listener]) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        self._listeners = list(listeners)
        for listener in listeners:
            self._listening.append(
                await loop.create_server(
                    lambda: HttpProtocol(self._server), sock=listener.socket, backlog=BACKLOG
                )
            )

    async def stop(self, deadline_s: float) -> None:
        """Accept nothing new, let answers end until the deadline, then cut them off.

        Args:
            deadline_s: How long answers may go on.
        """
        for listening in self._listening:
            listening.close()
        for listener in self._listeners:
            listener.close()
        state = self._server.state
        for connection in list(state.connections):
            connection.shutdown()
        if state.connections:
            self._server.quiet.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.quiet.wait(), deadline_s)
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)
        for task in list(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=1)
        self._listening.clear()
