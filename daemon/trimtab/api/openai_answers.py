"""Answers as OpenAI's clients read them: whole ones as JSON, streamed ones as events. No I/O.

A chunk of a stream is put together from a prefix that is encoded once and the text of the new
tokens, since this runs once a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trimtab.api.answers import ENCODE, Heading, Times
from trimtab.api.faults import OPENAI, fault_body
from trimtab.api.tool_reader import (
    Call,
    CallArguments,
    CallBegun,
    CallEnded,
    Found,
    ToolReader,
    put_together,
)
from trimtab.errors import TrimtabError
from trimtab.serving.requests import Disclosure, Ended, FinishReason, Usage
from trimtab.workers.protocol import Logprob

EVENTS: Final = "text/event-stream; charset=utf-8"
DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": waiting\n\n"


def event(body: bytes) -> bytes:
    """A server-sent event."""
    return b"data: " + body + b"\n\n"


def usage_body(usage: Usage) -> dict[str, Any]:
    """Token counts as OpenAI writes them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass(slots=True)
class _Chunks:
    """Chunks of one stream, with the parts that never change encoded once."""

    heading: Heading
    object: str
    _before: bytes = field(init=False)

    def __post_init__(self) -> None:
        fields = {
            "id": self.heading.id,
            "object": self.object,
            "created": int(self.heading.created_s),
            "model": self.heading.model,
        }
        usage = b'"usage":null,' if self.heading.include_usage else b""
        self._before = b"data: " + ENCODE(fields)[:-1] + b"," + usage

    def chunk(self, rest: bytes) -> bytes:
        """``rest`` is everything from ``"choices"`` on, without the closing brace."""
        return self._before + rest + b"}\n\n"

    def last(self, rest: bytes, disclosure: Disclosure) -> bytes:
        return self._before + rest + b',"trimtab":' + ENCODE(disclosure) + b"}\n\n"

    def usage(self, usage: Usage) -> bytes:
        if not self.heading.include_usage:
            return b""
        without = self._before.replace(b'"usage":null,', b"")
        return without + b'"choices":[],"usage":' + ENCODE(usage_body(usage)) + b"}\n\n"


class _OpenAIAnswer:
    """What chat and completion have in common; they differ in where the text stands.

    Args:
        heading: Of the answer.
        prefix: Of its id.
        whole: What an answer in one is called.
        chunk: What a chunk of a stream is called.
    """

    content_type = EVENTS
    keep_alive = KEEP_ALIVE

    def __init__(self, heading: Heading, prefix: str, whole: str, chunk: str) -> None:
        self._heading = replace(heading, id=f"{prefix}-{heading.id}")
        self._object = whole
        self._chunks = _Chunks(self._heading, chunk)

    def failing(self, error: TrimtabError) -> bytes:
        """The error as the one terminal event."""
        return event(ENCODE(fault_body(OPENAI, error)))

    def moved(self, variant: str) -> bytes:
        """A comment: clients pass over it."""
        return b": variant " + variant.encode() + b"\n\n"

    def _said(self, said: bytes, logprobs: bytes = b"null") -> bytes:
        """A chunk on the way; ``said`` is the field that holds what is new."""
        return self._chunks.chunk(_choice(said, logprobs, b"null"))

    def _ended(self, said: bytes, reason: str, ended: Ended, disclosure: Disclosure) -> bytes:
        """The last chunk, the usage if it was asked for, and the end."""
        choice = _choice(said, b"null", b'"' + reason.encode() + b'"')
        return self._chunks.last(choice, disclosure) + self._chunks.usage(ended.usage) + DONE

    def _in_one(
        self, said: dict[str, Any], reason: str, ended: Ended, disclosure: Disclosure
    ) -> bytes:
        """The answer in one; ``said`` holds the text and its log-probabilities."""
        heading = self._heading
        return ENCODE(
            {
                "id": heading.id,
                "object": self._object,
                "created": int(heading.created_s),
                "model": heading.model,
                "choices": [{"index": 0, **said, "finish_reason": reason}],
                "usage": usage_body(ended.usage),
                "trimtab": disclosure,
            }
        )


def _choice(said: bytes, logprobs: bytes, reason: bytes) -> bytes:
    """The only choice of a chunk, from ``"choices"`` on."""
    return (
        b'"choices":[{"index":0,'
        + said
        + b',"logprobs":'
        + logprobs
        + b',"finish_reason":'
        + reason
        + b"}]"
    )


class ChatAnswer(_OpenAIAnswer):
    """``chat.completion`` and its chunks."""

    operation = "chat"

    def __init__(self, heading: Heading) -> None:
        super().__init__(heading, "chatcmpl", "chat.completion", "chat.completion.chunk")
        self._reader = ToolReader(heading.tools) if heading.tools else None

    def opening(self) -> bytes:
        """The chunk with the role."""
        return self._said(b'"delta":{"role":"assistant","content":""}')

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """A chunk with new text; several where calls of tools begin or end in it."""
        if not text and not logprobs:
            return b""
        deltas = [b'"content":' + ENCODE(text)]
        if self._reader:
            deltas = [_delta(found) for found in self._reader.feed(text)]
            deltas = [delta for delta in deltas if delta] or ([b'"content":""'] if logprobs else [])
        told = ENCODE({"content": _chat_logprobs(logprobs)}) if logprobs else b"null"
        chunks = b""
        for delta in deltas:
            chunks += self._said(b'"delta":{' + delta + b"}", told)
            told = b"null"
        return chunks

    def closing(self, ended: Ended, disclosure: Disclosure, times: Times) -> bytes:
        """The chunk with the finish reason, the usage if it was asked for, and the end."""
        rest = self._reader.rest() if self._reader else ""
        before = self._said(b'"delta":{"content":' + ENCODE(rest) + b"}") if rest else b""
        return before + self._ended(b'"delta":{}', self._finish_reason(ended), ended, disclosure)

    def _finish_reason(self, ended: Ended) -> str:
        called = self._reader is not None and self._reader.calls > 0
        return "tool_calls" if called and ended.reason is FinishReason.STOP else ended.reason

    def whole(
        self,
        text: str,
        logprobs: Sequence[Logprob],
        ended: Ended,
        disclosure: Disclosure,
        times: Times,
    ) -> bytes:
        """The answer in one."""
        said = {
            "message": self._message(text),
            "logprobs": {"content": _chat_logprobs(logprobs)} if logprobs else None,
        }
        return self._in_one(said, self._finish_reason(ended), ended, disclosure)

    def _message(self, text: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._reader is None:
            return message
        calls: list[Call] = []
        message["content"] = put_together(self._reader.feed(text), calls) + self._reader.rest()
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in calls]
        return message


def _call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _delta(found: Found) -> bytes:
    """The inside of a delta; empty for what clients see by themselves."""
    match found:
        case str():
            return b'"content":' + ENCODE(found)
        case CallBegun():
            begun = {"index": found.number} | _call(found.id, found.name, "")
            return b'"tool_calls":' + ENCODE([begun])
        case CallArguments():
            piece = {"index": found.number, "function": {"arguments": found.text}}
            return b'"tool_calls":' + ENCODE([piece])
        case CallEnded():
            return b""


class CompletionAnswer(_OpenAIAnswer):
    """``text_completion`` and its chunks."""

    operation = "text_completion"

    def __init__(self, heading: Heading) -> None:
        super().__init__(heading, "cmpl", "text_completion", "text_completion")
        self._offset = 0

    def opening(self) -> bytes:
        """Nothing: a completion has no role."""
        return b""

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """A chunk with new text."""
        if not text and not logprobs:
            return b""
        told = ENCODE(_completion_logprobs(logprobs, self._offset)) if logprobs else b"null"
        self._offset += sum(len(one.token) for one in logprobs)
        return self._said(b'"text":' + ENCODE(text), told)

    def closing(self, ended: Ended, disclosure: Disclosure, times: Times) -> bytes:
        """The chunk with the finish reason, the usage if it was asked for, and the end."""
        return self._ended(b'"text":""', ended.reason, ended, disclosure)

    def whole(
        self,
        text: str,
        logprobs: Sequence[Logprob],
        ended: Ended,
        disclosure: Disclosure,
        times: Times,
    ) -> bytes:
        """The answer in one."""
        said = {
            "text": text,
            "logprobs": _completion_logprobs(logprobs, 0) if logprobs else None,
        }
        return self._in_one(said, ended.reason, ended, disclosure)


def _chat_logprobs(logprobs: Sequence[Logprob]) -> list[dict[str, Any]]:
    return [
        {
            "token": one.token,
            "logprob": one.logprob,
            "bytes": list(one.token.encode()),
            "top_logprobs": [
                {"token": token, "logprob": logprob, "bytes": list(token.encode())}
                for _, token, logprob in one.top
            ],
        }
        for one in logprobs
    ]


def _completion_logprobs(logprobs: Sequence[Logprob], offset: int) -> dict[str, Any]:
    offsets = []
    for one in logprobs:
        offsets.append(offset)
        offset += len(one.token)
    return {
        "tokens": [one.token for one in logprobs],
        "token_logprobs": [one.logprob for one in logprobs],
        "top_logprobs": [
            {token: logprob for _, token, logprob in one.top} or None for one in logprobs
        ],
        "text_offset": offsets,
    }
