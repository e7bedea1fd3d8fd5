"""The record of one answer on its way: what it was asked, what it has, who serves it.

The record is the truth. A worker only computes on from it: prompt, generated tokens and limits are
enough to go on anywhere, and a token counts once it is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from trimtab.domain.view import WHOLE, View
from trimtab.errors import TrimtabError
from trimtab.serving.claims import Lease, kv_bytes
from trimtab.serving.requests import (
    Delta,
    Disclosure,
    Ended,
    FinishReason,
    GenerationRequest,
    Usage,
)
from trimtab.serving.said import keys
from trimtab.signals.latency import EngineTimes
from trimtab.workers.protocol import FromWorker, Logprob, Moved, Progress, Start, Stayed, Tokens
from trimtab.workers.worker import Worker


@dataclass(slots=True)
class Spent:
    """What the engine has done for a stream so far, in whatever worker.

    Attributes:
        cached: Tokens that are in its cache.
        prefill_s: Engine time on its prompt, up to its first token; without what it was to begin
            with and lost.
        decode_s: Engine time of the decoding steps that it was in.
        companions: Streams in those steps, itself included, added up token by token.
    """

    cached: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    companions: int = 0


@dataclass(slots=True)
class Patience:
    """What a stream whose turn has come waits for before it begins: KV for its prompt.

    Attributes:
        until_s: When it waits no longer, whatever it has then.
        behind: Who is reading what it shares with it; None if nobody is.
        positions: How much of that it waits for.
        copying: The claim into which a thread copies for it; None if none does.
        last: True once it takes no further copy.
    """

    until_s: float
    behind: Stream | None = None
    positions: int = 0
    copying: Lease | None = None
    last: bool = False

    def end(self) -> None:
        """It waits no longer."""
        self.behind, self.copying, self.last = None, None, True


class StreamState(StrEnum):
    """Where a stream is in its life."""

    WAITING = "waiting"  # in the queue
    RUNNING = "running"  # in a worker
    HELD = "held"  # it had begun, and no worker has it at the moment
    DONE = "done"


class Stream:
    """One answer. Changed only by `Streams`, read by the API through `StreamHandle`.

    Args:
        number: The controller's number for it.
        request: What was asked.
        prompt: Its token ids.
        max_tokens: How many may be generated, already clipped to the context.
        context: The context that it is admitted with.
        revision: The policy's revision at admission.
        at_s: When the request was received.
        on_cancel: Called when the client is gone.
        view: What is seen of its tokens, and whether it may go on past its context.
    """

    def __init__(
        self,
        number: int,
        request: GenerationRequest,
        prompt: list[int],
        max_tokens: int,
        context: int,
        revision: str,
        at_s: float,
        on_cancel: Callable[[Stream], None],
        view: View = WHOLE,
    ) -> None:
        self._id = number
        self.request = request
        self.prompt = prompt
        self.generated: list[int] = []
        self.max_tokens = max_tokens
        self.context = context
        self.revision = revision
        self.state = StreamState.WAITING
        self.worker: Worker | None = None
        self.view = self.first_view = view
        self.promised = 0  # tokens that it was to begin with, and that are computed after all
        self.shifts = 0
        self.lease: Lease | None = None  # of a KV segment; None where the worker has its own KV
        self.source: Lease | None = None  # of the conversation that its KV came from
        self.patience: Patience | None = None  # with its prefix; None if it never waited for one
        self.moving: Lease | None = None  # of the segment that its KV is being moved into
        self.not_moved = ""  # why the last move into another segment wasn't made
        self.wanted_tokens = 0  # room in its segment that the worker asked for in vain
        self.waits_for_room = False  # its KV gave way, or found no room when it was to go on
        self.gave_way = 0  # how often it did
        self.losses = 0  # workers that died on it in a row, none of which decoded two steps for it
        self.detaching = False
        self.doubtful = False  # its KV may be wrong: it is computed again wherever it goes on
        self.paused = False  # its worker computes nothing for it until it is its turn
        self.reading = True  # its worker hasn't come to the next token yet
        self.turn_s: float | None = None  # when it was last read a piece of, or moved
        self.heard_s = at_s  # its worker's last word on it, or when it last had none to say
        self.spent = Spent()
        self.arrived_s = at_s
        self.since_s = at_s  # of the state
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.variants: list[str] = []
        self.switches = 0
        self.resumed = 0
        self.cached_tokens = 0
        self.starts = 0  # how often a worker has begun with it
        self.engine: EngineTimes | None = None  # told by the worker that did all of it
        self._texts: list[str] = []
        self._answer: list[str] = []  # all of it, what was fetched too
        self._fresh = 0  # generated[self._fresh:] has not been fetched
        self._logprobs: list[Logprob] = []
        self._end: Ended | TrimtabError | None = None
        self._news = asyncio.Event()
        self._on_cancel = on_cancel

    # ------------------------------------------------------------ for the API

    @property
    def id(self) -> int:
        """The controller's number for it."""
        return self._id

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt)

    @property
    def variant(self) -> str:
        """The variant that serves it, or did last; empty before any."""
        return self.variants[-1] if self.variants else ""

    @property
    def disclosure(self) -> Disclosure:
        """Which operating point serves it, as of now."""
        return Disclosure(
            variant=self.variant,
            context=self.context,
            policy_revision=self.revision,
            switches=self.switches,
            variants=tuple(dict.fromkeys(self.variants)),
            resumed=self.resumed,
            shifts=self.shifts,
            dropped_tokens=self.view.dropped,
        )

    async def next(self, timeout_s: float) -> Delta | Ended | None:
        """What came next, or None after ``timeout_s`` without news (see `StreamHandle`)."""
        if not self._news.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return None
        if self._texts or self._fresh < len(self.generated):
            return self._take()
        if isinstance(self._end, Ended):
            return self._end
        if self._end is not None:
            raise self._end
        return None

    def cancel(self) -> None:
        """The client is gone."""
        if not self.done:
            self._on_cancel(self)

    def _take(self) -> Delta:
        delta = Delta(
            "".join(self._texts), tuple(self.generated[self._fresh :]), tuple(self._logprobs)
        )
        self._texts.clear()
        self._logprobs.clear()
        self._fresh = len(self.generated)
        if self._end is None:
            self._news.clear()
        return delta

    # ------------------------------------------------------------ for serving

    @property
    def done(self) -> bool:
        """True after the end."""
        return self.state is StreamState.DONE

    @property
    def starved(self) -> bool:
        """True if it can't go on for want of room in the KV pool."""
        lease = self.lease
        return bool(self.wanted_tokens) and lease is not None and lease.valid >= lease.granted

    @property
    def kv_bytes(self) -> int:
        """Memory that its KV takes as far as it counts; 0 if it is on disk or within a worker."""
        return 0 if self.lease is None else kv_bytes(self.lease, self.lease.valid)

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer."""
        return self.prompt + self.generated

    @property
    def positions(self) -> int:
        """What it takes in its KV cache once its newest token is in it."""
        return self.view.cached(len(self.prompt) + len(self.generated))

    @property
    def most_positions(self) -> int:
        """What it can ever take there, as it is seen now."""
        return min(self.context, self.view.cached(len(self.prompt) + self.max_tokens))

    @property
    def said(self) -> tuple[str, ...]:
        """Keys of what was said in it, its answer included; none for a completion."""
        messages = self.request.messages
        return () if messages is None else keys(messages, "".join(self._answer))

    @property
    def reason(self) -> FinishReason | None:
        """Why it came to its end; None if it hasn't, or failed."""
        return self._end.reason if isinstance(self._end, Ended) else None

    def start_message(self) -> Start:
        """What a worker needs to begin, or to go on."""
        lease = self.lease
        return Start(
            stream=self._id,
            prompt=self.prompt,
            generated=self.generated,
            max_tokens=self.max_tokens,
            context=self.context,
            sampling=self.request.sampling,
            stop=list(self.request.stop),
            ignore_eos=self.request.ignore_eos,
            segment=lease is not None,
            valid=lease.valid if lease is not None else 0,
            granted=lease.granted if lease is not None else 0,
            keep=self.view.keep,
            dropped=self.view.dropped,
            guide=self.request.guide,
        )

    def enter(self, state: StreamState, at_s: float) -> None:
        """Change the state."""
        self.state = state
        self.since_s = at_s

    def served_by(self, worker: Worker, at_s: float) -> None:
        """A worker has it now."""
        self._begins_with(self.lease.valid if self.lease is not None else 0)
        name = worker.variant.name
        if self.variants and self.variants[-1] != name:
            self.switches += 1
        if not self.variants or self.variants[-1] != name:
            self.variants.append(name)
        self.worker = worker
        self.starts += 1
        self.detaching = self.paused = self.waits_for_room = False
        self.reading, self.turn_s, self.heard_s = True, None, at_s
        self.spent.cached = self.lease.valid if self.lease is not None else 0
        self.enter(StreamState.RUNNING, at_s)

    def read_again(self, view: View) -> None:
        """The worker reads what is seen of it again, but for what never moves."""
        self.view = view
        self.reading = True
        self.spent.cached = min(self.spent.cached, view.keep)
        self._begins_with(view.keep)
        if self.lease is not None:
            self.lease.rewind(view.keep)

    def heard(self, message: FromWorker, at_s: float) -> None:
        """Its worker has said something of it."""
        self.heard_s = at_s
        if isinstance(message, Progress | Moved | Stayed):
            self.turn_s = at_s

    def prefilled(self, message: Progress) -> None:
        """A piece of prompt or answer has been read into the cache."""
        self.spent.cached = message.done
        if not self.generated and message.done > self.promised:
            self.spent.prefill_s += message.engine_s
        if self.lease is not None:
            self.lease.valid = message.done

    def take_tokens(self, message: Tokens, at_s: float) -> None:
        """Acknowledge tokens; the caller has checked that none is lost or doubled."""
        self.generated += message.tokens
        self.spent.decode_s += message.engine_s
        if self.first_token_s is not None:
            self.spent.companions += message.together * len(message.tokens)
        if not self.reading:  # the first one may come of reading it all again
            self.losses = 0
        self.reading = False
        if self.lease is not None:
            # The newest token is not in the cache yet: all before it are, since it was computed
            # from them.
            self.lease.valid = self.positions - 1
        self._add(message.text)
        self._logprobs += message.logprobs
        if self.first_token_s is None:
            self.first_token_s = at_s
        self.last_token_s = at_s
        self._news.set()

    def computed(self, engine: EngineTimes) -> None:
        """What its last worker says that it has computed: all of it, if there was no other."""
        if self.starts == 1:
            self.engine = engine

    def finish(self, reason: FinishReason, text: str, at_s: float) -> None:
        """The answer came to its end."""
        self._add(text)
        self._close(
            Ended(reason, Usage(len(self.prompt), len(self.generated), self.cached_tokens)), at_s
        )

    def fail(self, error: TrimtabError, at_s: float) -> None:
        """The answer can't go on."""
        self._close(error, at_s)

    def _begins_with(self, positions: int) -> None:
        """So much of its KV is there as it begins, or begins again before its first token."""
        if not self.variants:
            self.cached_tokens = positions
        elif not self.generated:
            self.cached_tokens = min(self.cached_tokens, positions)

    def _add(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._answer.append(text)

    def _close(self, end: Ended | TrimtabError, at_s: float) -> None:
        if self._end is None:
            self._end = end
            self.worker = None
            self.enter(StreamState.DONE, at_s)
            self._news.set()
