"""A client that costs next to nothing: streamed completions over a Unix socket, and their times.

An HTTP library takes tenths of a millisecond a token, on the core that the controller needs; what
is to be measured is the daemon.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from trimtab.errors import WorkerError

TIMEOUT_S: Final = 120.0
_DONE: Final = b"data: [DONE]"
_PIECE: Final = b'"text":"'
_EMPTY: Final = b'"text":""'
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_READ_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Times:
    """One answer.

    Attributes:
        ttft_s: From sending the request to the first text.
        tps: Tokens a second after it; over the whole answer if that came in one piece.
        tokens: How many came, by the daemon's own count.
    """

    ttft_s: float
    tps: float
    tokens: int


class RawClient:
    """One connection that is kept open, as the usual clients do.

    Args:
        path: The daemon's inference socket.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(str(path))

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def complete(self, model: str, prompt: str, tokens: int) -> Times:
        """Have a prompt completed greedily, past any end-of-sequence token.

        Raises:
            WorkerError: The daemon refuses, or the stream breaks.
        """
        request = _request(model, prompt, tokens)
        begun_s = perf_counter()
        self._socket.sendall(request)
        answer = bytearray()
        first_s = last_s = 0.0
        while not answer.endswith(_LAST_CHUNK):
            piece = self._socket.recv(_READ_BYTES)
            now_s = perf_counter()
            if not piece:
                raise WorkerError(f"the stream broke: {answer[-300:].decode(errors='replace')}")
            answer += piece
            if not first_s and _has_text(answer):
                first_s = now_s
            if not answer.startswith(b"HTTP/1.1 200"):
                raise WorkerError(f"the daemon refused: {answer.decode(errors='replace')}")
            if not last_s and _DONE in answer[-256:]:
                last_s = now_s
        produced = _produced(bytes(answer))
        rest_s = last_s - first_s or last_s - begun_s
        return Times(first_s - begun_s, (produced - 1) / rest_s, produced)


def _has_text(answer: bytearray) -> bool:
    at = answer.find(_PIECE)
    return at >= 0 and not answer.startswith(_EMPTY, at)


def _request(model: str, prompt: str, tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "trimtab": {"ignore_eos": True},
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: trimtab\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _produced(answer: bytes) -> int:
    """Tokens of the answer, from the event that carries the usage."""
    for line in reversed(answer.splitlines()):
        if line.startswith(b"data: {"):
            event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            if event.get("usage"):
                return int(event["usage"]["completion_tokens"])
    raise WorkerError("the daemon didn't say how many tokens there were")
