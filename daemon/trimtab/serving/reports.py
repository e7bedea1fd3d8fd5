"""What the core hears of requests: that they have come, how far they are, and how they left.

`Streams` tells it each step of a stream's life, as it does the meter. Each report makes a new plan,
so there is one when it matters and no more: at the first token, when the answer of the first in the
schedule is as long as the schedule wanted to look at it again, and, for all that run, before a new
request and before a tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from trimtab.domain.events import (
    Event,
    RequestArrived,
    RequestEnd,
    RequestEnded,
    RequestProgress,
)
from trimtab.domain.scheduling import Schedule
from trimtab.serving.requests import FinishReason
from trimtab.serving.stream import Spent, Stream


@dataclass(slots=True)
class _Told:
    """What the core knows of a request.

    Attributes:
        stream: Its record.
        whole: Tokens of its prompt that had to be read when it came.
        prefilled: Tokens of those that have been read.
        produced: Tokens of the answer, without the first.
        spent: What the engine had done for it.
    """

    stream: Stream
    whole: int
    prefilled: int = 0
    produced: int = 0
    spent: Spent = field(default_factory=Spent)


@dataclass(frozen=True, slots=True)
class _News:
    """How far a request is, and the engine's time since the last report; see the events."""

    prefilled: int
    produced: int
    prefill_s: float
    decode_s: float
    together: float


class Reports:
    """Posts the requests' events; an observer of all streams.

    Args:
        post: Takes events; the schedule that comes of one may call back into `Streams`.
        soon: Has something called once what is at hand is done: a token on its way to a client
            doesn't wait for the core to think about it.
    """

    def __init__(
        self, post: Callable[[Event], None], soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._post = post
        self._soon = soon
        self._weights: dict[str, float] = {}
        self._told: dict[int, _Told] = {}
        self._head: int | None = None
        self._look: int | None = None

    def configure(self, weights: Iterable[tuple[str, float]]) -> None:
        """What each priority is worth from now on."""
        self._weights = dict(weights)

    def follow(self, schedule: Schedule) -> None:
        """Report the first of the schedule again when it has come as far as that asks for."""
        self._head = schedule.order[0] if schedule.order else None
        self._look = schedule.look_tokens

    def progress(self, at_s: float) -> None:
        """Tell how far all requests are, as far as there is anything new."""
        for told in list(self._told.values()):
            self._report(told, at_s)

    # ------------------------------------------------------------ StreamObserver

    def arrived(self, stream: Stream, at_s: float) -> None:
        """A request is in the queue."""
        self.progress(at_s)
        seen = stream.view.cached(len(stream.prompt))
        known = 0 if stream.lease is None else min(stream.lease.valid, seen - 1)
        self._told[stream.id] = _Told(stream, seen - known)
        limited = stream.request.max_tokens is not None
        self._post(
            RequestArrived(
                at_s,
                stream.id,
                seen - known,
                stream.max_tokens if limited else None,
                self._weights.get(stream.request.priority, 1.0),
                waited_s=max(0.0, at_s - stream.arrived_s),
            )
        )

    def started(self, stream: Stream, at_s: float) -> None:
        """A worker has it, as the schedule wanted.

        What it has found since it came took the engine no time, and must not be taken for fast.
        """
        if stream.starts == 1 and stream.spent.cached:
            self._soon(partial(self._report_if_there, stream.id, at_s))

    def produced(self, stream: Stream, tokens: int, at_s: float) -> None:
        """It has new tokens."""
        told, count = self._told.get(stream.id), len(stream.generated)
        looked_for = stream.id == self._head and self._look is not None and count >= self._look
        if looked_for:
            self._look = None
        if told is not None and (looked_for or count == tokens):
            self._soon(partial(self._report_if_there, stream.id, at_s))

    def ended(self, stream: Stream, at_s: float) -> None:
        """It is done."""
        told = self._told.pop(stream.id, None)
        if told is None:
            return
        new = _since(told)
        complete = stream.reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._post(
            RequestEnded(
                at_s,
                stream.id,
                new.produced,
                new.prefill_s,
                new.decode_s,
                RequestEnd.DONE if complete else RequestEnd.GONE,
                new.together,
            )
        )

    def _report_if_there(self, number: int, at_s: float) -> None:
        told = self._told.get(number)
        if told is not None:
            self._report(told, at_s)

    def _report(self, told: _Told, at_s: float) -> None:
        new = _since(told)
        if (new.prefilled, new.produced) == (told.prefilled, told.produced):
            return
        told.prefilled, told.produced = new.prefilled, new.produced
        told.spent = replace(told.stream.spent)
        self._post(
            RequestProgress(
                at_s,
                told.stream.id,
                new.prefilled,
                new.produced,
                new.prefill_s,
                new.decode_s,
                new.together,
            )
        )


def _since(told: _Told) -> _News:
    """What there is to tell.

    What a window forgets while the prompt is read had been read, and what it forgot before never
    is. A prompt that was answered stays read, whatever a new worker has to read again: that time
    says nothing about how fast prompts are read.
    """
    stream, before = told.stream, told.spent
    spent = stream.spent
    left = 0 if stream.generated else stream.view.cached(len(stream.prompt)) - spent.cached
    read = max(0, told.whole - max(0, left))
    produced = max(0, len(stream.generated) - 1)
    written = produced - told.produced
    shared = spent.companions - before.companions
    return _News(
        read,
        produced,
        spent.prefill_s - before.prefill_s,
        spent.decode_s - before.decode_s,
        max(1.0, shared / written) if written else 1.0,
    )
