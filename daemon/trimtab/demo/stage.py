"""What is going on in the demo: filled by the recorder, the chats and the director, read by all."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from trimtab.demo.plan import Plan
from trimtab.domain.clock import Clock

RATE_WINDOW_S: Final = 1.0


class Phase(StrEnum):
    """The acts, in order."""

    STARTING = "starting"
    CALM = "calm"
    SQUEEZING = "squeezing"
    HOLDING = "holding"
    RELEASING = "releasing"
    ENDING = "ending"


class ChatState(StrEnum):
    """Where a chat is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    BROKEN = "broken"


class Timeline:
    """Seconds since the demo began, on the clock that the daemon's records use too.

    Args:
        clock: The machine's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_s = clock.monotonic_s()

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._clock.monotonic_s() - self._start_s

    def of(self, monotonic_s: float) -> float:
        """Where a monotonic time lies; negative before the beginning."""
        return monotonic_s - self._start_s


@dataclass(slots=True)
class Chat:
    """One chat over the real socket.

    Attributes:
        number: Counts up from 1.
        prompt: What was asked.
        max_tokens: How many tokens were asked for at most.
        text: The answer so far.
        state: Where it is.
        tokens: The daemon's own count once it is done; events with text until then.
        variants: Which variants served it, in order, as disclosed at its end.
        problem: Why it is broken.
        started_s: When it was sent.
        ended_s: When its terminal event came.
    """

    number: int
    prompt: str
    max_tokens: int
    text: str = ""
    state: ChatState = ChatState.WAITING
    tokens: int = 0
    variants: tuple[str, ...] = ()
    problem: str = ""
    started_s: float = 0.0
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, five times a second.

    Attributes:
        at_s: Since the demo began.
        variant: Which one serves; None while none is loaded.
        coming: Which one is being loaded; None if none is.
        available_bytes: The daemon's signal ``memory.available``; None if it can't be known.
        tokens_per_s: All chats together, as the clients saw it.
        held: Streams that are held between two workers.
        squeeze_bytes: What the squeezing process holds.
    """

    at_s: float
    variant: str | None
    coming: str | None
    available_bytes: float | None
    tokens_per_s: float
    held: int
    squeeze_bytes: int


@dataclass(frozen=True, slots=True)
class Told:
    """A decision, as people read it.

    Attributes:
        at_s: Since the demo began.
        direction: ``start``, ``down``, ``up``, ``park`` or ``hold``.
        source: The variant before; None if nothing was loaded.
        target: The variant after.
        sentence: Why, in a sentence.
        clock: Time of the day.
    """

    at_s: float
    direction: str
    source: str | None
    target: str | None
    sentence: str
    clock: str


@dataclass(frozen=True, slots=True)
class Move:
    """The variant that serves has changed: seen, not only decided."""

    at_s: float
    source: str
    target: str
    down: bool


@dataclass(slots=True)
class Stage:
    """The state of the show. One loop changes it, so nothing is locked.

    Attributes:
        plan: The limits.
        title: The model's name for people.
        phase: The act.
        line: What is going on, in a sentence.
        now_s: Since the demo began.
        status: The daemon's last status.
        samples: All looks.
        chats: All chats, oldest first.
        told: All decisions, oldest first.
        moves: All changes of the variant that served.
        closing: True once no new chats are begun.
    """

    plan: Plan
    title: str
    phase: Phase = Phase.STARTING
    line: str = ""
    now_s: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    chats: list[Chat] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    closing: bool = False
    _arrivals: deque[float] = field(default_factory=deque)

    @property
    def last(self) -> Sample | None:
        """The newest look."""
        return self.samples[-1] if self.samples else None

    @property
    def variant(self) -> str | None:
        """The variant that serves now."""
        return self.samples[-1].variant if self.samples else None

    def token_came(self, at_s: float) -> None:
        """A client received a piece of text."""
        self._arrivals.append(at_s)

    def rate_tps(self, at_s: float) -> float:
        """Pieces that clients received in the last second."""
        while self._arrivals and self._arrivals[0] <= at_s - RATE_WINDOW_S:
            self._arrivals.popleft()
        return len(self._arrivals) / RATE_WINDOW_S

    def look(self, sample: Sample) -> None:
        """Take in a look, and notice if another variant serves than at the last one."""
        before = self.serving
        self.samples.append(sample)
        if before is not None and sample.variant is not None and sample.variant != before:
            down = rank(self.plan.ladder, sample.variant) > rank(self.plan.ladder, before)
            self.moves.append(Move(sample.at_s, before, sample.variant, down))

    @property
    def serving(self) -> str | None:
        """The variant that serves, or served last if none is loaded at the moment."""
        return next((one.variant for one in reversed(self.samples) if one.variant), None)

    def downs(self) -> int:
        """Steps down that were seen."""
        return sum(move.down for move in self.moves)

    def ups(self) -> int:
        """Steps up that were seen."""
        return sum(not move.down for move in self.moves)


def rank(ladder: Sequence[str], variant: str) -> int:
    """The place of a variant on the ladder, 0 for the best; one that isn't on it is last."""
    return ladder.index(variant) if variant in ladder else len(ladder)
