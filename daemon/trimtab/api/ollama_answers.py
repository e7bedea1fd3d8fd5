"""Answers as Ollama's clients read them: JSON objects, one a line while they stream. No I/O."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec

from trimtab.api.answers import ENCODE, Heading, Times
from trimtab.api.faults import OLLAMA, fault_body
from trimtab.api.tool_reader import Call, ToolReader, put_together
from trimtab.errors import TrimtabError
from trimtab.serving.requests import Disclosure, Ended
from trimtab.workers.protocol import Logprob


class _OllamaAnswer:
    """What chat and generate have in common; they differ in where the text stands."""

    content_type = "application/x-ndjson"
    keep_alive = b""  # clients decode every line

    def __init__(self, heading: Heading) -> None:
        created = datetime.datetime.fromtimestamp(heading.created_s, datetime.UTC)
        self._fields = {
            "model": heading.model,
            "created_at": created.isoformat().replace("+00:00", "Z"),
        }
        self._before = ENCODE(self._fields)[:-1] + b","

    def opening(self) -> bytes:
        """Nothing."""
        return b""

    def moved(self, variant: str) -> bytes:
        """Nothing: clients decode every line."""
        return b""

    def failing(self, error: TrimtabError) -> bytes:
        """The error as the last line."""
        return ENCODE(fault_body(OLLAMA, error)) + b"\n"

    def _line(self, said: bytes) -> bytes:
        """A line on the way; ``said`` is the field that holds what is new."""
        return self._before + said + b',"done":false}\n'

    def _last(
        self, said: dict[str, Any], ended: Ended, disclosure: Disclosure, times: Times
    ) -> bytes:
        first_s = times.total_s if times.first_s is None else times.first_s
        return ENCODE(
            {
                **self._fields,
                **said,
                "done": True,
                "done_reason": ended.reason,
                "total_duration": _nanoseconds(times.total_s),
                "load_duration": 0,
                "prompt_eval_count": ended.usage.prompt_tokens,
                "prompt_eval_duration": _nanoseconds(first_s),
                "eval_count": ended.usage.completion_tokens,
                "eval_duration": _nanoseconds(times.total_s - first_s),
                "trimtab": disclosure,
            }
        )


class OllamaChatAnswer(_OllamaAnswer):
    """Answer of ``/api/chat``. Calls of tools come whole, since arguments are values here."""

    operation = "chat"

    def __init__(self, heading: Heading) -> None:
        super().__init__(heading)
        self._reader = ToolReader(heading.tools) if heading.tools else None
        self._calls: list[Call] = []

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """A line with new text, and one for calls that are whole."""
        if self._reader is None:
            return self._words(text)
        told = sum(call.whole for call in self._calls)
        text = put_together(self._reader.feed(text), self._calls)
        calls = _whole_calls(self._calls[told:])
        line = self._line(b'"message":' + ENCODE(_message("", calls))) if calls else b""
        return self._words(text) + line

    def _words(self, text: str) -> bytes:
        if not text:
            return b""
        return self._line(b'"message":{"role":"assistant","content":' + ENCODE(text) + b"}")

    def closing(self, ended: Ended, disclosure: Disclosure, times: Times) -> bytes:
        """The last line."""
        rest = self._reader.rest() if self._reader else ""
        return self._last({"message": _message(rest)}, ended, disclosure, times) + b"\n"

    def whole(
        self,
        text: str,
        logprobs: Sequence[Logprob],
        ended: Ended,
        disclosure: Disclosure,
        times: Times,
    ) -> bytes:
        """The answer in one."""
        calls: list[dict[str, Any]] = []
        if self._reader is not None:
            text = put_together(self._reader.feed(text), self._calls) + self._reader.rest()
            calls = _whole_calls(self._calls)
        return self._last({"message": _message(text, calls)}, ended, disclosure, times)


class OllamaGenerateAnswer(_OllamaAnswer):
    """Answer of ``/api/generate``."""

    operation = "text_completion"

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """A line with new text."""
        if not text:
            return b""
        return self._line(b'"response":' + ENCODE(text))

    def closing(self, ended: Ended, disclosure: Disclosure, times: Times) -> bytes:
        """The last line."""
        return self._last({"response": ""}, ended, disclosure, times) + b"\n"

    def whole(
        self,
        text: str,
        logprobs: Sequence[Logprob],
        ended: Ended,
        disclosure: Disclosure,
        times: Times,
    ) -> bytes:
        """The answer in one."""
        return self._last({"response": text}, ended, disclosure, times)


def _message(text: str, calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return message | {"tool_calls": calls} if calls else message


def _whole_calls(calls: Sequence[Call]) -> list[dict[str, Any]]:
    return [
        {"function": {"name": call.name, "arguments": msgspec.json.decode(call.arguments)}}
        for call in calls
        if call.whole
    ]


def _nanoseconds(value_s: float) -> int:
    return round(value_s * 1e9)
