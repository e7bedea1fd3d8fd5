"""Answers as Ollama's clients read them: JSON objects, one a line while they stream. No I/O."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from trimtab.api.answers import ENCODE, Heading, Times
from trimtab.api.faults import OLLAMA, fault_body
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

    def failing(self, error: TrimtabError) -> bytes:
        """The error as the last line."""
        return ENCODE(fault_body(OLLAMA, error)) + b"\n"

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
    """Answer of ``/api/chat``."""

    operation = "chat"

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """A line with new text."""
        if not text:
            return b""
        said = b'"message":{"role":"assistant","content":' + ENCODE(text) + b"}"
        return self._before + said + b',"done":false}\n'

    def closing(self, ended: Ended, disclosure: Disclosure, times: Times) -> bytes:
        """The last line."""
        return self._last(_said(""), ended, disclosure, times) + b"\n"

    def whole(
        self,
        text: str,
        logprobs: Sequence[Logprob],
        ended: Ended,
        disclosure: Disclosure,
        times: Times,
    ) -> bytes:
        """The answer in one."""
        return self._last(_said(text), ended, disclosure, times)


class OllamaGenerateAnswer(_OllamaAnswer):
    """Answer of ``/api/generate``."""

    operation = "text_completion"

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """A line with new text."""
        if not text:
            return b""
        return self._before + b'"response":' + ENCODE(text) + b',"done":false}\n'

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


def _said(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}}


def _nanoseconds(value_s: float) -> int:
    return round(value_s * 1e9)
