"""How commands talk to a running daemon: HTTP over its sockets, faults as one-line errors."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import msgspec

from trimtab.config.load import Loaded
from trimtab.config.origins import OriginKind
from trimtab.config.places import SYSTEM_RUNTIME
from trimtab.errors import NotRunningError, TrimtabError

TIMEOUT_S: Final = 10.0
PREFIX: Final = "/trimtab/v1"
_BASE: Final = "http://trimtab"


class Client:
    """A connection to one socket.

    Args:
        path: Where it is.
        timeout_s: How long an answer may take; streams wait for ever between events.
    """

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url=_BASE, timeout=timeout_s
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def check(self) -> None:
        """Make sure that somebody answers, before a call after a pause; see `_state`.

        Raises:
            NotRunningError: Nobody does.
        """
        if _state(self.path) == "missing":
            raise _not_running(self.path, "")

    def get(self, path: str, **query: str | int) -> Any:
        """The body of an answer.

        Raises:
            NotRunningError: Nobody answers.
            TrimtabError: The daemon refused, in its words.
        """
        return self._call("GET", path, params=query)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Order something; see `get`."""
        return self._call(method, path, json=body)

    def text(self, path: str) -> str:
        """An answer that isn't JSON."""
        with self._explained():
            answer = self._http.get(path)
        _raise_refusal(answer)
        return answer.text

    def events(self, method: str, path: str, body: Any = None) -> Iterator[Any]:
        """The data of each server-sent event, decoded; it ends with the stream.

        Raises:
            NotRunningError: Nobody answers.
            TrimtabError: The daemon refused, or the stream ended with an error event.
        """
        timeout = httpx.Timeout(TIMEOUT_S, read=None)
        with (
            self._explained(),
            self._http.stream(method, path, json=body, timeout=timeout) as answer,
        ):
            if answer.is_error:
                answer.read()
                _raise_refusal(answer)
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    return
                event = msgspec.json.decode(data)
                if isinstance(event, dict) and "error" in event:
                    raise _refusal(event)
                yield event

    def _call(self, method: str, path: str, **options: Any) -> Any:
        with self._explained():
            answer = self._http.request(method, path, **options)
        _raise_refusal(answer)
        return msgspec.json.decode(answer.content)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise _not_running(self.path, str(error)) from error
        except httpx.TimeoutException as error:
            raise TrimtabError(
                f"trimtab at {self.path} doesn't answer",
                hint="Its log tells what it does: `journalctl -u trimtab -e`.",
                code="no_answer",
            ) from error
        except httpx.HTTPError as error:
            raise TrimtabError(
                f"the connection to {self.path} broke: {error or type(error).__name__}",
                code="connection_broke",
            ) from error


def connect(loaded: Loaded, *, orders: bool = False) -> Client:
    """A client of the daemon that this configuration means, or of the system's.

    Args:
        loaded: The configuration.
        orders: True needs the control socket; otherwise the inference socket serves as well for
            those who may not open it.

    Raises:
        NotRunningError: No socket is there, or none may be opened.
    """
    folders = [(loaded.config.sockets.control, loaded.config.sockets.inference)]
    if loaded.origins["sockets.folder"].kind is OriginKind.DEFAULT:
        folders.append((SYSTEM_RUNTIME / "control.sock", SYSTEM_RUNTIME / "inference.sock"))
    refused: Path | None = None
    for control, inference in folders:
        for path in (control,) if orders else (control, inference):
            match _state(path):
                case "open":
                    return Client(path)
                case "refused":
                    refused = refused or path
    if refused:
        raise _not_running(refused, "Permission denied")
    raise _not_running(loaded.config.sockets.control, "")


def connect_inference(loaded: Loaded) -> Client:
    """A client of the inference socket; see `connect`."""
    candidates = [loaded.config.sockets.inference]
    if loaded.origins["sockets.folder"].kind is OriginKind.DEFAULT:
        candidates.append(SYSTEM_RUNTIME / "inference.sock")
    states = {path: _state(path) for path in candidates}
    opened = next((path for path, state in states.items() if state == "open"), None)
    if opened:
        return Client(opened)
    refused = next((path for path, state in states.items() if state == "refused"), None)
    raise _not_running(refused or candidates[0], "Permission denied" if refused else "")


def _state(path: Path) -> str:
    """Whether somebody answers at a socket: ``open``, ``refused`` (not to us) or ``missing``.

    Asked before httpx is, since its backend forgets to close a socket that doesn't connect.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TIMEOUT_S)
        try:
            probe.connect(str(path))
        except PermissionError:
            return "refused"
        except OSError:
            return "missing"
    return "open"


def _not_running(path: Path, why: str) -> TrimtabError:
    if "Permission denied" in why:
        return TrimtabError(
            f"{path}: you may not talk to this daemon",
            hint="Use sudo, or join its group: `usermod -aG trimtab USER`, then log in again.",
            code="not_permitted",
        )
    return NotRunningError(
        f"trimtab isn't running at {path}",
        hint="Start it with `trimtab run` or `systemctl start trimtab`, or name its folder with "
        "`--sockets DIR`.",
    )


def _raise_refusal(answer: httpx.Response) -> None:
    if not answer.is_error:
        return
    try:
        body = msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        body = {}
    raise _refusal(body if isinstance(body, dict) else {}, answer.status_code)


def _refusal(body: dict[str, Any], status: int = 0) -> TrimtabError:
    error = body.get("error")
    if isinstance(error, dict):
        return TrimtabError(str(error.get("message")), code=str(error.get("code")))
    detail = body.get("detail") or f"the daemon answered with status {status}"
    return TrimtabError(
        str(detail), hint=str(body.get("hint", "")), code=str(body.get("code", "http_error"))
    )
