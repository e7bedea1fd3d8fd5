"""One answer on its way to one client: its stream, its times, and how it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeAlias

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trimtab.api.answers import AnswerShape, Times, disclosure_headers
from trimtab.api.context import ApiContext
from trimtab.errors import ServingError, TrimtabError
from trimtab.serving.requests import (
    Delta,
    Ended,
    FinishReason,
    GenerationRequest,
    StreamHandle,
    Usage,
)
from trimtab.telemetry.metrics import RequestFigures
from trimtab.workers.protocol import Logprob

Event: TypeAlias = Delta | Ended | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of itself, for the metrics.

    Attributes:
        operation: ``chat`` or ``text_completion``.
        model: As the client wrote it.
        traceparent: The trace that it belongs to, as in W3C's header; may be empty.
    """

    operation: str
    model: str
    traceparent: str


class Followed:
    """A stream, its times and its count in the metrics; it ends with exactly one count.

    Args:
        context: The daemon.
        asked: What the metrics tell of the request besides how it went.
        arrived_s: When the request was received.
        gone: Whether the client has left.
    """

    def __init__(
        self,
        context: ApiContext,
        asked: Asked,
        arrived_s: float,
        gone: Callable[[], bool],
    ) -> None:
        self._context = context
        self._gone = gone
        self._asked = asked
        self._arrived_s = arrived_s
        self._first_s: float | None = None
        self._handle: StreamHandle | None = None
        self._counted = False

    @property
    def handle(self) -> StreamHandle:
        """The stream, once it has begun."""
        if self._handle is None:
            raise ServingError("the stream hasn't begun", code="not_begun")
        return self._handle

    @property
    def times(self) -> Times:
        """How long it has taken until now."""
        now_s = self._context.clock.monotonic_s()
        first_s = self._first_s
        return Times(
            total_s=now_s - self._arrived_s,
            first_s=None if first_s is None else first_s - self._arrived_s,
        )

    async def begin(self, request: GenerationRequest) -> None:
        """Hand the request over.

        Raises:
            TrimtabError: It was refused.
        """
        try:
            self._handle = await self._context.inference.submit(request)
        except BaseException as error:
            self._count(_outcome(error))
            raise

    async def next(self) -> Event:
        """What came next; None if it is time for a sign of life.

        Raises:
            TrimtabError: The stream can't go on.
            ClientDisconnect: The client has left.
        """
        handle = self.handle
        try:
            if self._gone():
                raise ClientDisconnect
            came = await handle.next(self._context.limits.keep_alive_s)
        except BaseException as error:
            handle.cancel()
            self._count(_outcome(error))
            raise
        if isinstance(came, Delta):
            if self._first_s is None:
                self._first_s = self._context.clock.monotonic_s()
        elif isinstance(came, Ended):
            self._count(came.reason, came)
            if came.reason is FinishReason.CANCELLED:
                raise ServingError("the stream was cancelled", code="cancelled")
        return came

    def abandon(self) -> None:
        """Nobody listens any more; harmless after the end."""
        if self._handle is not None and not self._counted:
            self._handle.cancel()
        self._count(FinishReason.CANCELLED)

    def _count(self, outcome: str, ended: Ended | None = None) -> None:
        if self._counted:
            return
        self._counted = True
        times, asked = self.times, self._asked
        usage = ended.usage if ended else Usage(0, 0)
        disclosure = self._handle.disclosure if self._handle else None
        self._context.metrics.request_ended(
            RequestFigures(
                operation=asked.operation,
                outcome=outcome,
                variant=disclosure.variant if disclosure else "",
                duration_s=times.total_s,
                ttft_s=times.first_s,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                model=asked.model,
                failed=not isinstance(outcome, FinishReason),
                traceparent=asked.traceparent,
                disclosed=asdict(disclosure) if disclosure else {},
            )
        )


class TokenStream:
    """A streamed answer: pieces while the text comes, and exactly one that ends it.

    Args:
        followed: The stream.
        answer: How its pieces look.
        first: What came first, so that a refusal could still have its own HTTP status.
    """

    status_code = 200

    def __init__(self, followed: Followed, answer: AnswerShape, first: Event) -> None:
        self._followed = followed
        self._answer = answer
        self._first = first
        self._variant = followed.handle.variant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        headers = {
            "content-type": self._answer.content_type,
            "cache-control": "no-store",
            **disclosure_headers(self._followed.handle.disclosure),
        }
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _raw(headers)})
            await self._pieces(send)
        finally:
            self._followed.abandon()

    async def _pieces(self, send: Send) -> None:
        came, opening = self._first, self._answer.opening()
        while True:
            body = opening + self._moved() + self._body(came)
            opening = b""
            if isinstance(came, Ended):
                await _send(send, body, last=True)
                return
            if body:
                await _send(send, body)
            try:
                came = await self._followed.next()
            except TrimtabError as error:
                await _send(send, self._answer.failing(error), last=True)
                return

    def _moved(self) -> bytes:
        variant = self._followed.handle.variant
        if variant == self._variant:
            return b""
        self._variant = variant
        return self._answer.moved(variant)

    def _body(self, came: Event) -> bytes:
        match came:
            case Delta():
                return self._answer.piece(came.text, came.logprobs)
            case Ended():
                followed = self._followed
                return self._answer.closing(came, followed.handle.disclosure, followed.times)
            case None:
                return self._answer.keep_alive


async def whole_answer(followed: Followed, answer: AnswerShape) -> Response:
    """Wait for the end and answer in one.

    Raises:
        TrimtabError: The stream can't go on.
    """
    texts: list[str] = []
    logprobs: list[Logprob] = []
    try:
        while True:
            came = await followed.next()
            if isinstance(came, Delta):
                texts.append(came.text)
                logprobs += came.logprobs
            elif isinstance(came, Ended):
                disclosure = followed.handle.disclosure
                body = answer.whole("".join(texts), logprobs, came, disclosure, followed.times)
                return Response(
                    body, media_type="application/json", headers=disclosure_headers(disclosure)
                )
    finally:
        followed.abandon()


async def _send(send: Send, body: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


def _outcome(error: BaseException) -> str:
    return error.code if isinstance(error, TrimtabError) else FinishReason.CANCELLED
