"""One HTTP/1.1 connection: uvicorn's protocol with deadlines, limits and the peer's identity.

What uvicorn leaves open is closed here: a head without an end, a request that trickles in, a client
that takes nothing of what waits for it, a pile of pipelined requests, a connection too many.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final, cast

import httptools

from trimtab.api.peer import Peer, peer_of
from trimtab.api.plain_uvicorn import STATUS_LINE, HttpToolsProtocol, ServerState
from trimtab.api.plain_uvicorn import Config as UvicornConfig
from trimtab.domain.clock import Clock

MAX_PIPELINED: Final = 16
LINGER_S: Final = 1.0
"""How long a client that was sent away may take to read why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may do; see the configuration's section ``api``."""

    max_header_bytes: int
    max_connections: int
    max_user_connections: int
    read_deadline_s: float
    write_deadline_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is given below the application."""

    status: int
    content_type: str
    body: bytes


@dataclass(slots=True)
class Server:
    """What the connections of one server share.

    Attributes:
        config: uvicorn's, loaded.
        state: uvicorn's, with the open connections.
        limits: For each connection.
        clock: For the date header.
        refuse: Makes the answer from status, code and message.
        by_user: Open connections of each user, by user id.
        dropped: Connections that were ended for being too slow or too many.
        dated_s: Wall-clock time of the date header.
        quiet: Set when the last connection has gone.
    """

    config: UvicornConfig
    state: ServerState
    limits: Limits
    clock: Clock
    refuse: Callable[[int, str, str], Refusal]
    by_user: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    dated_s: float = 0.0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)

    def left(self, user: int) -> None:
        """One connection of a user has gone."""
        self.by_user[user] -= 1
        if not self.by_user[user]:
            del self.by_user[user]

    def refresh_date(self) -> None:
        """Set the date header, at most once a second."""
        now_s = self.clock.wall_s()
        if not 0 <= now_s - self.dated_s < 1:
            self.dated_s = now_s
            self.state.default_headers = [(b"date", formatdate(now_s, usegmt=True).encode())]


class HttpProtocol(HttpToolsProtocol):
    """A connection. Routes find it as ``request.state.connection``."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.config, server.state, {}, asyncio.get_running_loop())
        self.access_log = False
        self.timeout_keep_alive = cast(int, server.limits.idle_s)  # seconds; call_later takes any
        self.peer: Peer | None = None
        self.lost = False
        self._server = server
        self._limits = server.limits
        self._when_lost: set[Callable[[], None]] = set()
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        self._refused = False

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call this as soon as the client is gone."""
        self._when_lost.add(call)

    def forget(self, call: Callable[[], None]) -> None:
        """Don't call it any more."""
        self._when_lost.discard(call)

    # ------------------------------------------------------------ the connection's life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Greet a client, or send it away if there are too many."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        self.peer = peer_of(connection) if connection is not None else None
        if self.peer is not None:
            self._server.by_user[self.peer.uid] += 1
        self._server.refresh_date()
        if len(self.connections) > self._limits.max_connections:
            self._drop(503, "too_many_connections", "too many connections are open; try again")
        elif self._is_one_too_many():
            told = "one user may not have so many connections; close some"
            self._drop(429, "too_many_user_connections", told)
        else:
            self._arm_read_timer()

    def _is_one_too_many(self) -> bool:
        """Whether its user leaves none for others; over TCP all are one user."""
        if self.peer is None:
            return False
        return self._server.by_user[self.peer.uid] > self._limits.max_user_connections

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whoever works for it is told at once."""
        self.lost = True
        for timer in (self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if self.peer is not None:
            self._server.left(self.peer.uid)
        self._unset_keepalive_if_required()
        waiting, self._when_lost = self._when_lost, set()
        for call in waiting:
            call()
        if not self.connections:
            self._server.quiet.set()

    # ------------------------------------------------------------ reading

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what it can't read is answered and ends the connection."""
        self._unset_keepalive_if_required()
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no upgrade is offered; the request is answered as it is
        except httptools.HttpParserError:
            self._drop(400, "bad_http", "this isn't HTTP/1.1")
        if self._in_head and self._head_bytes > self._limits.max_header_bytes:
            self._head_too_large()

    def on_message_begin(self) -> None:
        """A request begins: its head is counted and its time runs."""
        if self._refused:
            return
        self._server.refresh_date()
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._in_head = True
        self._arm_read_timer()

    def on_headers_complete(self) -> None:
        """The head is there: start the request unless the head breaks a limit."""
        if self._refused:
            return
        length = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if length > self._limits.max_header_bytes:
            self._head_too_large()
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self._drop(429, "too_many_pipelined", "too many requests at once on one connection")
            return
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here as a whole."""
        if self._refused:
            return
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    # ------------------------------------------------------------ writing

    def pause_writing(self) -> None:
        """The client takes less than it gets: it has until the deadline."""
        super().pause_writing()
        self._arm_write_timer()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def on_response_complete(self) -> None:
        """A connection that closes after its answer must still take it in time."""
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._arm_write_timer()

    def timeout_keep_alive_handler(self) -> None:
        """An idle connection ends, even if its client hasn't taken the last answer."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self._arm_write_timer()

    # ------------------------------------------------------------ deadlines

    def _arm_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._read_timer = self.loop.call_later(self._limits.read_deadline_s, self._read_too_slow)

    def _read_too_slow(self) -> None:
        self._read_timer = None
        if self.flow.read_paused:  # it is we who don't read: an earlier request is still served
            self._arm_read_timer()
        elif self._head_bytes or not self._in_head:
            self._drop(408, "request_too_slow", "the request didn't come in time")
        else:
            self.transport.close()

    def _arm_write_timer(self) -> None:
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(
                self._limits.write_deadline_s, self._write_too_slow
            )

    def _write_too_slow(self) -> None:
        self._server.dropped += 1
        self.transport.abort()

    def _head_too_large(self) -> None:
        self._drop(
            431, "head_too_large", f"the head has over {self._limits.max_header_bytes} bytes"
        )

    def _drop(self, status: int, code: str, message: str) -> None:
        """Answer and close; in the middle of another answer just close.

        A client that is still sending would lose the answer if we closed at once, so what it sends
        is thrown away for a moment.
        """
        if self._refused:
            return
        self._refused = True
        self._server.dropped += 1
        answering = self.cycle is not None and not self.cycle.response_complete
        crowded = len(self.connections) > 2 * self._limits.max_connections
        if self.transport.is_closing() or (answering and self.cycle.response_started) or crowded:
            self.transport.close()
            self._arm_write_timer()
            return
        refusal = self._server.refuse(status, code, message)
        self.transport.write(_response(refusal, self.server_state.default_headers))
        self.transport.write_eof()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = self.loop.call_later(LINGER_S, self.transport.abort)


def _response(refusal: Refusal, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [
        STATUS_LINE[refusal.status],
        *(b"%b: %b\r\n" % header for header in headers),
        b"content-type: %b\r\n" % refusal.content_type.encode(),
        b"content-length: %d\r\n" % len(refusal.body),
        b"connection: close\r\n\r\n",
        refusal.body,
    ]
    return b"".join(lines)
