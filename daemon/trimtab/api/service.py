"""The API as one part of the daemon: bind, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.applications import Starlette

from trimtab.api.app import application
from trimtab.api.context import ApiContext, priorities_by_uid
from trimtab.api.control_routes import ordering_routes, reading_routes
from trimtab.api.endpoint import Door
from trimtab.api.faults import OPENAI, PROBLEM, FaultShape, refusal
from trimtab.api.inference_routes import inference_routes
from trimtab.api.ollama_routes import ollama_routes
from trimtab.api.protocol import Limits, Refusal
from trimtab.api.rate import RateLimit
from trimtab.api.server import HttpServer
from trimtab.api.sockets import Listener, activated, listen_unix, passed_by_systemd
from trimtab.api.status_metrics import StatusCollector
from trimtab.api.tcp import BearerGuard, listen_tcp, read_token
from trimtab.config.schema import ApiConfig, Config, SocketsConfig, TcpConfig
from trimtab.domain.clock import Clock
from trimtab.serving.control import Control
from trimtab.serving.requests import Inference
from trimtab.telemetry.metrics import Metrics

_CONTROL_STOP_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Bound:
    """The sockets, listening; connections wait until the service has started."""

    inference: Listener
    control: Listener
    tcp: Listener | None = None
    token: str = field(default="", repr=False)

    def close(self) -> None:
        """Give them up without having served."""
        for listener in (self.inference, self.control, self.tcp):
            if listener is not None:
                listener.close()


def bind(
    sockets: SocketsConfig,
    environ: Mapping[str, str] | None = None,
    tcp: TcpConfig | None = None,
) -> Bound:
    """Take systemd's sockets, or bind our own. First thing at a start, before anything is loaded.

    Args:
        sockets: Paths, group and permissions.
        environ: The environment; our own by default.
        tcp: The door over TCP, if it is to be open.

    Raises:
        SocketTakenError: A living daemon has them, or somebody has the port.
        ConfigError: They can't be bound safely, or the token file isn't one.
    """
    passed = passed_by_systemd(os.environ if environ is None else environ, os.getpid())
    with contextlib.ExitStack() as opened:
        inference = activated(passed, "inference") or listen_unix(
            sockets.inference, sockets.inference_mode, sockets.group
        )
        opened.callback(inference.close)
        control = activated(passed, "control") or listen_unix(sockets.control, sockets.control_mode)
        opened.callback(control.close)
        bound = Bound(inference, control)
        if tcp is not None and tcp.enabled:
            token = read_token(tcp.token_file)
            bound = Bound(inference, control, listen_tcp(tcp), token)
        opened.pop_all()
    return bound


class ApiService:
    """Both applications on their sockets.

    Args:
        config: The daemon's configuration.
        bound: From `bind`.
        inference: Takes requests.
        control: State and orders.
        metrics: The daemon's registry; the API adds its own figures.
        clock: The daemon's clock.
    """

    def __init__(
        self,
        config: Config,
        bound: Bound,
        inference: Inference,
        control: Control,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        context = ApiContext(
            inference=inference,
            control=control,
            metrics=metrics,
            clock=clock,
            limits=config.api,
            priorities=priorities_by_uid(config.users),
            started_s=clock.wall_s(),
        )
        metrics.add(StatusCollector(control))
        limits = _limits(config.api)
        self._bound = bound
        self._inference = HttpServer(
            _open_application(context, "inference"), limits, clock, _refuse(OPENAI)
        )
        control_door = _door(context, "control")
        self._control = HttpServer(
            application(
                reading_routes(context, control_door) + ordering_routes(context, control_door),
                PROBLEM,
            ),
            limits,
            clock,
            _refuse(PROBLEM),
        )
        self._tcp = HttpServer(
            BearerGuard(_open_application(context, "tcp"), bound.token),
            limits,
            clock,
            _refuse(OPENAI),
        )

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(server.connections for server in self._servers)

    @property
    def dropped(self) -> int:
        """How many clients were sent away for being too slow, too many or no HTTP."""
        return sum(server.dropped for server in self._servers)

    @property
    def _servers(self) -> tuple[HttpServer, ...]:
        return (self._inference, self._control, self._tcp)

    async def start(self) -> None:
        """Serve from now on."""
        await self._inference.start([self._bound.inference])
        await self._control.start([self._bound.control])
        if self._bound.tcp is not None:
            await self._tcp.start([self._bound.tcp])

    async def stop(self, deadline_s: float) -> None:
        """Let answers end until the deadline, cut off the rest, remove our sockets.

        The control socket goes last, so that a person can watch the end.

        Args:
            deadline_s: How long answers may go on.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._inference.stop(deadline_s))
            group.create_task(self._tcp.stop(deadline_s))
        await self._control.stop(_CONTROL_STOP_S)


def _open_application(context: ApiContext, socket: str) -> Starlette:
    """The application of a socket that gives answers and shows state, and takes no orders."""
    door = _door(context, socket)
    routes = [
        *inference_routes(context, door),
        *ollama_routes(context, door),
        *reading_routes(context, door),
    ]
    return application(routes, OPENAI)


def _door(context: ApiContext, socket: str) -> Door:
    limits = context.limits
    rate = RateLimit(limits.rate_per_second, limits.burst)
    return Door(socket, context.metrics, rate, context.clock)


def _limits(api: ApiConfig) -> Limits:
    return Limits(
        max_header_bytes=api.max_header_bytes,
        max_connections=api.max_connections,
        max_user_connections=api.max_user_connections,
        read_deadline_s=api.read_deadline_s,
        write_deadline_s=api.write_deadline_s,
        idle_s=api.idle_s,
    )


def _refuse(shape: FaultShape) -> Callable[[int, str, str], Refusal]:
    return functools.partial(refusal, shape)
