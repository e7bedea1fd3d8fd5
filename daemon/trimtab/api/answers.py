"""How answers look: whole ones as JSON, streamed ones as events. No I/O.

A chunk of a stream is put together from a prefix that is encoded once and the text of the new
tokens, since this runs once a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import msgspec

from trimtab.serving.requests import Disclosure, Ended, Usage
from trimtab.workers.protocol import Logprob

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": waiting\n\n"
ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Heading:
    """What all chunks of an answer have in common.

    Attributes:
        id: The answer's id, without its prefix.
        created: Seconds since the epoch.
        model: As the client wrote it.
    """

    id: str
    created: int
    model: str


class AnswerShape(Protocol):
    """One way of writing an answer: chat or completion."""

    operation: str

    def opening(self) -> bytes:
        """What a stream begins with."""

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """The event for new text; empty if there is nothing to say."""

    def closing(self, ended: Ended, disclosure: Disclosure, include_usage: bool) -> bytes:
        """The last events of a stream that came to its end."""

    def whole(
        self, text: str, logprobs: Sequence[Logprob], ended: Ended, disclosure: Disclosure
    ) -> bytes:
        """The answer in one."""


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


def disclosure_headers(disclosure: Disclosure) -> dict[str, str]:
    """The headers that tell the operating point at the start of an answer."""
    return {
        "trimtab-variant": disclosure.variant,
        "trimtab-context": str(disclosure.context),
        "trimtab-policy-revision": disclosure.policy_revision,
    }


@dataclass(slots=True)
class _Chunks:
    """Chunks of one stream, with the parts that never change encoded once."""

    heading: Heading
    object: str
    include_usage: bool
    _before: bytes = field(init=False)

    def __post_init__(self) -> None:
        fields = {
            "id": self.heading.id,
            "object": self.object,
            "created": self.heading.created,
            "model": self.heading.model,
        }
        usage = b'"usage":null,' if self.include_usage else b""
        self._before = b"data: " + ENCODE(fields)[:-1] + b"," + usage

    def chunk(self, rest: bytes) -> bytes:
        """``rest`` is everything from ``"choices"`` on, without the closing brace."""
        return self._before + rest + b"}\n\n"

    def last(self, rest: bytes, disclosure: Disclosure) -> bytes:
        return self._before + rest + b',"trimtab":' + ENCODE(disclosure) + b"}\n\n"

    def usage(self, usage: Usage) -> bytes:
        without = self._before.replace(b'"usage":null,', b"")
        return without + b'"choices":[],"usage":' + ENCODE(usage_body(usage)) + b"}\n\n"


class ChatAnswer:
    """``chat.completion`` and its chunks."""

    operation = "chat"

    def __init__(self, heading: Heading, include_usage: bool = False) -> None:
        self._heading = replace(heading, id=f"chatcmpl-{heading.id}")
        self._chunks = _Chunks(self._heading, "chat.completion.chunk", include_usage)

    def opening(self) -> bytes:
        """The chunk with the role."""
        return self._chunks.chunk(
            b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]'
        )

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """A chunk with new text."""
        if not text and not logprobs:
            return b""
        told = ENCODE({"content": _chat_logprobs(logprobs)}) if logprobs else b"null"
        return self._chunks.chunk(
            b'"choices":[{"index":0,"delta":{"content":'
            + ENCODE(text)
            + b'},"logprobs":'
            + told
            + b',"finish_reason":null}]'
        )

    def closing(self, ended: Ended, disclosure: Disclosure, include_usage: bool) -> bytes:
        """The chunk with the finish reason, the usage if it was asked for, and the end."""
        last = self._chunks.last(
            b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"'
            + ended.reason.encode()
            + b'"}]',
            disclosure,
        )
        return last + (self._chunks.usage(ended.usage) if include_usage else b"") + DONE

    def whole(
        self, text: str, logprobs: Sequence[Logprob], ended: Ended, disclosure: Disclosure
    ) -> bytes:
        """The answer in one."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": {"content": _chat_logprobs(logprobs)} if logprobs else None,
            "finish_reason": ended.reason,
        }
        return ENCODE(_whole(self._heading, "chat.completion", choice, ended, disclosure))


class CompletionAnswer:
    """``text_completion`` and its chunks."""

    operation = "text_completion"

    def __init__(self, heading: Heading, include_usage: bool = False) -> None:
        self._heading = replace(heading, id=f"cmpl-{heading.id}")
        self._chunks = _Chunks(self._heading, "text_completion", include_usage)
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
        return self._chunks.chunk(
            b'"choices":[{"index":0,"text":'
            + ENCODE(text)
            + b',"logprobs":'
            + told
            + b',"finish_reason":null}]'
        )

    def closing(self, ended: Ended, disclosure: Disclosure, include_usage: bool) -> bytes:
        """The chunk with the finish reason, the usage if it was asked for, and the end."""
        last = self._chunks.last(
            b'"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"'
            + ended.reason.encode()
            + b'"}]',
            disclosure,
        )
        return last + (self._chunks.usage(ended.usage) if include_usage else b"") + DONE

    def whole(
        self, text: str, logprobs: Sequence[Logprob], ended: Ended, disclosure: Disclosure
    ) -> bytes:
        """The answer in one."""
        choice = {
            "index": 0,
            "text": text,
            "logprobs": _completion_logprobs(logprobs, 0) if logprobs else None,
            "finish_reason": ended.reason,
        }
        return ENCODE(_whole(self._heading, "text_completion", choice, ended, disclosure))


def _whole(
    heading: Heading, object_: str, choice: dict[str, Any], ended: Ended, disclosure: Disclosure
) -> dict[str, Any]:
    return {
        "id": heading.id,
        "object": object_,
        "created": heading.created,
        "model": heading.model,
        "choices": [choice],
        "usage": usage_body(ended.usage),
        "trimtab": disclosure,
    }


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
