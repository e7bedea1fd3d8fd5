"""The optional door over TCP: loopback only, and only with the bearer token."""

from __future__ import annotations

import errno
import hmac
import os
import socket
import stat
from pathlib import Path
from typing import Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from trimtab.api.faults import OPENAI
from trimtab.api.sockets import BACKLOG, Listener
from trimtab.config.schema import TcpConfig
from trimtab.errors import ConfigError, SocketTakenError

MIN_TOKEN_CHARACTERS: Final = 16
_MAX_TOKEN_BYTES: Final = 4096


def listen_tcp(config: TcpConfig) -> Listener:
    """Listen on the loopback address of the configuration.

    Raises:
        SocketTakenError: Somebody has the port.
        ConfigError: The address isn't there.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((config.host, config.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        where = f"tcp: {config.host} port {config.port}"
        if error.errno == errno.EADDRINUSE:
            raise SocketTakenError(
                f"{where}: is taken", hint="Set `port` in [tcp] to a free one."
            ) from error
        raise ConfigError(f"{where}: can't be bound: {error.strerror}") from error
    listening.setblocking(False)
    return Listener(listening)


def read_token(path: Path | None) -> str:
    """The token that clients must send.

    Raises:
        ConfigError: There is no file, others may read it, or what it holds is no token.
    """
    hint = "`(umask 077; head -c 32 /dev/urandom | base64 > FILE)` makes one."
    if path is None:
        raise ConfigError("tcp.token_file: TCP is on, and no token file is named", hint=hint)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_TOKEN_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}", hint=hint) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path}: others may read the token", hint=f"`chmod 600 {path}` mends that."
        )
    token = content.decode("ascii", "replace").strip()
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or len(token.split()) != 1:
        raise ConfigError(
            f"{path}: holds no token: one word of at least {MIN_TOKEN_CHARACTERS} characters",
            hint=hint,
        )
    return token


class BearerGuard:
    """Lets requests through that carry the token.

    Args:
        app: What it guards.
        token: The token.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, token = sent.partition(b" ")
        if hmac.compare_digest(kind.lower() + b" " + token.strip(), self._wanted):
            await self._app(scope, receive, send)
            return
        body = msgspec.json.encode(
            OPENAI.body(401, "invalid_api_key", "Send the token as `Authorization: Bearer TOKEN`.")
        )
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"www-authenticate", b"Bearer"),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})
