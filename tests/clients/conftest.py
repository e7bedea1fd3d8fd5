"""A real daemon on the tiny model that takes tools, and how to reach it in both ways."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from real_daemon import RealDaemon
from tool_models import tiny_with_tools
from trimtab.domain.tools import ToolFormat

PROJECT = Path(__file__).resolve().parent.parent.parent
DAEMON_PYTHON = os.environ.get("TRIMTAB_PYTHON", str(PROJECT / ".venv" / "bin" / "python"))


@dataclass(frozen=True)
class Door:
    """How a client gets in.

    Attributes:
        base_url: What OpenAI's classes call so.
        api_key: The token, or anything.
        uds: The socket; None for the network.
    """

    base_url: str
    api_key: str
    uds: str | None

    def clients(self) -> dict[str, Any]:
        """The clients that the libraries take, both kinds; empty for their own."""
        if self.uds is None:
            return {}
        return {
            "http_client": httpx.Client(transport=httpx.HTTPTransport(uds=self.uds)),
            "http_async_client": httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=self.uds)
            ),
        }


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    tiny_with_tools(folder / "models", ToolFormat.HERMES)
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_urlsafe(24))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = RealDaemon(
        folder,
        models=folder / "models",
        TCP_ENABLED="true",
        TCP_PORT=str(port),
        TCP_TOKEN_FILE=str(token),
    )
    running.argv[0] = DAEMON_PYTHON
    running.start()
    yield running
    running.end()


@pytest.fixture(scope="session", params=["socket", "tcp"])
def door(request: pytest.FixtureRequest, daemon: RealDaemon) -> Door:
    if request.param == "socket":
        return Door("http://trimtab/v1", "unused", str(daemon.sockets / "inference.sock"))
    token = (daemon.folder / "token").read_text()
    return Door(f"http://127.0.0.1:{daemon.environ['TRIMTAB_TCP_PORT']}/v1", token, None)
