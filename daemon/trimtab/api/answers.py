"""What every way of writing an answer has in common. No I/O.

There is one shape for each route: OpenAI's chat and completion, Ollama's chat and generate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from trimtab.api.tool_reader import ToolTalk
from trimtab.errors import TrimtabError
from trimtab.serving.requests import Disclosure, Ended
from trimtab.workers.protocol import Logprob

ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Heading:
    """What all pieces of an answer have in common.

    Attributes:
        id: The answer's id, without its prefix.
        created_s: Seconds since the epoch.
        model: As the client wrote it.
        include_usage: Token counts are wanted before the end of a stream.
        tools: How calls of tools are found; None if there can't be any.
    """

    id: str
    created_s: float
    model: str
    include_usage: bool = False
    tools: ToolTalk | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """How long an answer took.

    Attributes:
        total_s: From the request to the end.
        first_s: From the request to the first token; None if there was none.
    """

    total_s: float
    first_s: float | None


class AnswerShape(Protocol):
    """One way of writing an answer, made for each answer anew.

    Attributes:
        operation: For the metrics: ``chat`` or ``text_completion``.
        content_type: Of a stream.
        keep_alive: What a stream says while there is nothing to say; may be empty.
    """

    operation: str
    content_type: str
    keep_alive: bytes

    def opening(self) -> bytes:
        """What a stream begins with."""

    def moved(self, variant: str) -> bytes:
        """What a stream says when another variant goes on with it; empty where clients mind."""

    def piece(self, text: str, logprobs: Sequence[Logprob]) -> bytes:
        """New text of a stream; empty if there is nothing to say."""

    def closing(self, ended: Ended, disclosure: Disclosure, times: Times) -> bytes:
        """The end of a stream that came to its end."""

    def failing(self, error: TrimtabError) -> bytes:
        """The end of a stream that can't go on."""

    def whole(
        self,
        text: str,
        logprobs: Sequence[Logprob],
        ended: Ended,
        disclosure: Disclosure,
        times: Times,
    ) -> bytes:
        """The answer in one."""


def disclosure_headers(disclosure: Disclosure) -> dict[str, str]:
    """The headers that tell the operating point at the start of an answer."""
    return {
        "trimtab-variant": disclosure.variant,
        "trimtab-context": str(disclosure.context),
        "trimtab-policy-revision": disclosure.policy_revision,
    }
