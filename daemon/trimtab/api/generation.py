"""The routes that generate text: a wish is read from a body, and its stream is followed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.requests import Request

from trimtab.api.answers import AnswerShape, Heading
from trimtab.api.bodies import decode, read_body
from trimtab.api.context import ApiContext, connection_of, peer_of
from trimtab.api.endpoint import Answer
from trimtab.api.followed import Asked, Followed, TokenStream, whole_answer
from trimtab.api.tool_reader import ToolTalk
from trimtab.api.wish import Wish
from trimtab.serving.requests import GenerationRequest, Priority

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Dialect(Generic[B]):
    """One route's way of asking and answering.

    Attributes:
        body: What is sent.
        wish: What a body asks for, given the peer's user id and highest priority.
        answer: Makes the shape of one answer.
    """

    body: type[B]
    wish: Callable[[B, int | None, Priority], Wish]
    answer: Callable[[Heading], AnswerShape]


class Generation(Generic[B]):
    """A route that generates text, as a handler.

    Args:
        context: The daemon.
        dialect: How it is asked and answered.
    """

    def __init__(self, context: ApiContext, dialect: Dialect[B]) -> None:
        self._context = context
        self._dialect = dialect

    async def __call__(self, request: Request) -> Answer:
        """Answer one request.

        Raises:
            TrimtabError: It is refused.
        """
        context = self._context
        arrived_s = context.clock.monotonic_s()
        content = await read_body(request, context.limits.max_body_bytes)
        body = decode(content, self._dialect.body)
        wish = self._dialect.wish(body, *self._sender(request))
        heading = Heading(
            id=secrets.token_hex(12),
            created_s=context.clock.wall_s(),
            model=wish.model,
            include_usage=wish.include_usage,
            tools=self._tool_talk(wish.request),
        )
        answer = self._dialect.answer(heading)
        connection = connection_of(request)
        asked = Asked(answer.operation, wish.model, request.headers.get("traceparent", ""))
        followed = Followed(context, asked, arrived_s, lambda: connection.lost)
        await followed.begin(wish.request)
        if wish.stream:
            return TokenStream(followed, answer, await followed.next())
        return await whole_answer(followed, answer)

    def _tool_talk(self, request: GenerationRequest) -> ToolTalk | None:
        """How calls in the answer are found; a model that takes no tools refuses the request."""
        model = self._context.inference.model()
        if not (request.guide and request.guide.tools and model and model.tool_format):
            return None
        return ToolTalk(model.tool_format, tuple(tool.name for tool in request.guide.tools))

    def _sender(self, request: Request) -> tuple[int | None, Priority]:
        peer = peer_of(request)
        if peer is None:
            return None, Priority.INTERACTIVE
        return peer.uid, self._context.priorities.get(peer.uid, Priority.INTERACTIVE)
