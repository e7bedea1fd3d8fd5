"""The door over TCP: shut by default, loopback only, and only with the token."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from api_fakes import FakeControl, FakeInference, a_config
from trimtab.api.service import ApiService, bind
from trimtab.api.tcp import listen_tcp, read_token
from trimtab.config.schema import TcpConfig
from trimtab.errors import ConfigError, SocketTakenError
from trimtab.runtime.clock import SystemClock
from trimtab.telemetry.metrics import Metrics

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture
async def address(tmp_path: Path, token_file: Path) -> AsyncIterator[str]:
    config = a_config(tmp_path)
    tcp = TcpConfig(enabled=True, port=0, token_file=token_file)
    bound = bind(config.sockets, environ={}, tcp=tcp)
    assert bound.tcp is not None
    service = ApiService(
        config, bound, FakeInference(), FakeControl(), Metrics(process=False), SystemClock()
    )
    await service.start()
    yield f"http://127.0.0.1:{bound.tcp.socket.getsockname()[1]}"
    await service.stop(0.1)


async def test_the_official_client_works_with_the_token_as_its_key(address: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=TOKEN) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}]
        )

    assert answer.choices[0].message.content == "Hello wörld!"


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \x80"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/nothing"])
async def test_without_the_token_nothing_is_told(
    address: str, authorization: str, path: str
) -> None:
    headers = {"authorization": authorization.encode("latin-1")} if authorization else {}
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{address}{path}", headers=headers)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


async def test_orders_arent_taken_over_tcp(address: str) -> None:
    headers = {"authorization": f"bearer {TOKEN}"}
    async with httpx.AsyncClient(headers=headers) as client:
        status = await client.get(f"{address}/trimtab/v1/status")
        pause = await client.post(f"{address}/trimtab/v1/pause")

    assert status.status_code == 200
    assert pause.status_code == 404


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_token_that_others_can_read_is_refused(token_file: Path, mode: int) -> None:
    token_file.chmod(mode)

    with pytest.raises(ConfigError, match="others may read") as caught:
        read_token(token_file)

    assert f"chmod 600 {token_file}" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"short", b"two words of sixteen", b"\xff" * 20])
def test_what_is_no_token_is_refused(token_file: Path, content: bytes) -> None:
    token_file.write_bytes(content)

    with pytest.raises(ConfigError, match="no token"):
        read_token(token_file)


def test_tcp_without_a_token_file_isnt_opened(tmp_path: Path) -> None:
    config = a_config(tmp_path)

    with pytest.raises(ConfigError, match="no token file"):
        bind(config.sockets, environ={}, tcp=TcpConfig(enabled=True))

    assert not config.sockets.inference.exists()
    assert not config.sockets.control.exists()


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config: Any = TcpConfig(enabled=True, port=taken.getsockname()[1])

        with pytest.raises(SocketTakenError, match="is taken"):
            listen_tcp(config)
