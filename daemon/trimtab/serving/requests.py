"""What the API hands to serving and gets back: values, plus the protocol of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from trimtab.domain.models import ModelSpec
from trimtab.workers.protocol import Guide, Logprob, Sampling


class Priority(StrEnum):
    """What a request asks for; the policy says what it is worth."""

    INTERACTIVE = "interactive"
    BACKGROUND = "background"

    def at_most(self, allowed: Priority) -> Priority:
        """This one, or the lower one that is allowed."""
        return max(self, allowed, key=_HIGHEST_FIRST.index)


_HIGHEST_FIRST: Final = tuple(Priority)


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for text.

    Attributes:
        model: The model's id as the client wrote it; never a variant.
        messages: Chat messages; None for a completion.
        text: The prompt of a completion; None for a chat.
        tools: Tool definitions for the chat template.
        guide: What the answer must look like, as far as the client says it; None for free text.
        max_tokens: The client's limit; None: as much as the context leaves.
        sampling: How tokens are drawn.
        stop: Strings that end the answer.
        priority: What the client asks for.
        user: Numeric id of the peer, for sharing and accounting; None if unknown.
        ignore_eos: Go on past the end-of-sequence token (benchmarks).
    """

    model: str
    messages: Sequence[Mapping[str, Any]] | None = None
    text: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    priority: Priority = Priority.INTERACTIVE
    user: int | None = None
    ignore_eos: bool = False
    guide: Guide | None = None

    @property
    def prompt_field(self) -> str:
        """The field that holds the prompt, as clients write it."""
        return "messages" if self.messages is not None else "prompt"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer. ``cached_tokens`` of the prompt needed no prefill."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Disclosure:
    """Which operating point served an answer.

    Attributes:
        variant: The variant that serves it now, or served its last token.
        context: The effective context that it was admitted with, in tokens.
        policy_revision: Content hash of the policy in force.
        switches: How often the variant changed on the way.
        variants: Every variant that served a part, in order.
        resumed: How often it went on after a worker was lost.
        shifts: How often the window was shifted while it was made, since the context was full.
        dropped_tokens: How many tokens of prompt and answer the model doesn't see any more.
    """

    variant: str
    context: int
    policy_revision: str
    switches: int
    variants: tuple[str, ...]
    resumed: int = 0
    shifts: int = 0
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer; ``text`` may be empty while a character is incomplete."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The one terminal event of an answer that came to its end."""

    reason: FinishReason
    usage: Usage


class StreamHandle(Protocol):
    """One answer on its way, as the API sees it."""

    @property
    def id(self) -> int:
        """The controller's number for it."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""

    @property
    def variant(self) -> str:
        """The variant that serves it, or did last; empty before any."""

    @property
    def disclosure(self) -> Disclosure:
        """Which operating point serves it, as of now."""

    async def next(self, timeout_s: float) -> Delta | Ended | None:
        """What came next; None if nothing came in time (send a keep-alive and ask again).

        Deltas that came meanwhile are joined into one. After `Ended` or an exception nothing
        more comes.

        Raises:
            ServingError: The stream can't go on (held too long, no point fits); terminal.
            EngineError: The engine failed on this stream; terminal.
        """

    def cancel(self) -> None:
        """The client is gone: free the slot at once. Harmless after the end."""


class Inference(Protocol):
    """What the inference routes need."""

    def model(self) -> ModelSpec | None:
        """The model that is served; None if there is none."""

    def effective_context(self) -> int:
        """Tokens that a conversation admitted now may hold."""

    async def submit(self, request: GenerationRequest) -> StreamHandle:
        """Tokenize, admit and queue a request.

        Raises:
            RequestError: A field is wrong: unknown model (404 ``model_not_found``), prompt over
                the context (400 ``context_length_exceeded``), template or tokenizer refused.
            ServingError: Full queue (429 ``queue_full``), no model (503 ``no_model``), parked and
                no point fits within ``max_wait`` (503 ``parked``), draining (503 ``draining``).
        """
