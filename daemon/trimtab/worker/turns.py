"""The engine's turns: a token for every stream that decodes, or a piece of a prompt.

One stream that decodes alone may be given several tokens in a turn: drafts are verified in one
pass of the model, and each token is chosen from the model's own logits with the stream's own
randomness. So drafts change how fast tokens come, never how likely each is; and never which, if the
answer is greedy or its seed was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter, thread_time

from trimtab.errors import EngineError
from trimtab.worker.decoder import Decoder, InterruptedRunError
from trimtab.worker.guides import CostlyFormError
from trimtab.worker.listening import Interrupt
from trimtab.worker.pace import Pacer, PieceSize, piece_of
from trimtab.worker.sampling import Guess, Logits
from trimtab.worker.speculation import MOST_DRAFTED, NO_ROUND, Acceptance, Costs
from trimtab.worker.stream import Stream
from trimtab.workers.protocol import DraftLost, FromWorker, Grow, Progress

_ASK_AHEAD = 64
_ASK_FOR = 256


class _Start:
    """When a run of the engine began.

    Args:
        judged: Whether its cost in the processor's time of this thread will be asked for, which
            the kernel has to be asked for each time.
    """

    def __init__(self, *, judged: bool = False) -> None:
        self.at_s = perf_counter()
        self._worked_s = thread_time() if judged else 0.0

    def worked_s(self) -> float:
        """Seconds that this thread has had the processor since then."""
        return thread_time() - self._worked_s


def _left(stream: Stream) -> int:
    """Tokens of its prompt, and of what it has of an answer, that aren't read yet."""
    done = 0 if stream.cache is None else stream.cache.length
    return stream.view.cached(len(stream.tokens)) - done


def _deaf(stream: int, interrupt: Interrupt) -> AbstractContextManager[None]:
    return nullcontext()


class Turns:
    """Computes for streams, and says what comes of it.

    Args:
        decoder: Runs the variant.
        say: Takes messages for the controller.
        over: Is told that a stream is complete, or of the error that ends it.
        listening: Listens for what ends the run that is made for a stream (`Listener.during`).

    Attributes:
        pacer: When the engine may run.
        mode: Which drafts may be used, as `Speculate` has it.
        tokens: Tokens decoded since the start.
        busy_s: Seconds spent in the engine since the start.
    """

    def __init__(
        self,
        decoder: Decoder,
        say: Callable[[FromWorker], None],
        over: Callable[[Stream, Exception | None], None],
        listening: Callable[[int, Interrupt], AbstractContextManager[None]] = _deaf,
    ) -> None:
        self.pacer = Pacer()
        self.mode = "off"
        self.tokens = 0
        self.busy_s = 0.0
        self._decoder = decoder
        self._say = say
        self._over = over
        self._listening = listening
        self._piece = PieceSize()
        self._eldest_next = True
        self._costs = Costs()

    def decode(self, streams: Iterable[Stream]) -> None:
        """One token, or more if drafts are right, for each stream that decodes."""
        able = [stream for stream in streams if stream.prefilled and self.can_go_on(stream)]
        if len(able) == 1 and self.mode != "off" and self._speculate(able[0]):
            return
        batch = [(stream.cache, stream.tokens[-1]) for stream in able if stream.cache]
        if not batch:
            return
        judged = len(batch) == 1 and self.mode != "off"
        begun = _Start(judged=judged)
        answers = self._decoder.step(batch)
        seconds = self._ran(begun)
        if judged:
            self._costs.passed(1, begun.worked_s())
        for stream, logits in zip(able, answers, strict=True):
            self._decoded(stream, seconds, len(batch))
            if isinstance(logits, EngineError):
                self._over(stream, logits)
            else:
                self._advance(stream, logits)

    def forget_draft_costs(self) -> None:
        """What the draft variant costs is to be measured anew: it will be another one."""
        self._costs.forget_drafts()

    def prefill(self, streams: Iterable[Stream]) -> None:
        """A piece of a prompt: in turn of the one that came first, and of that with least left."""
        running = [stream for stream in streams if self.can_go_on(stream)]
        stream = self._reads([stream for stream in running if not stream.prefilled])
        if stream is None or stream.cache is None:
            return
        shared = len(running) > 1 or not self.pacer.full
        seen = stream.view.of(stream.tokens)
        at, total = stream.cache.length, len(seen)
        most = min(self._piece.tokens(shared=shared), self._room(stream))
        size = piece_of(total - at, most)
        piece = seen[at : at + size]
        last = at + len(piece) == total
        begun = _Start()
        try:
            with self._listening(stream.id, self._decoder.interrupt):
                logits = self._decoder.prefill(stream.cache, piece, last=last)
        except InterruptedRunError:
            self._ran(begun)  # what ends it is the next message
            return
        except (EngineError, MemoryError) as error:
            self._over(stream, error)
            return
        seconds = self._ran(begun)
        stream.prefill_s += seconds
        self._piece.observe(len(piece), seconds)
        self._say(Progress(stream.id, at + len(piece), total, self.pacer.with_rest(seconds)))
        if logits is not None:
            stream.prefilled = True
            self._advance(stream, logits)

    def _reads(self, reading: Sequence[Stream]) -> Stream | None:
        """Whose piece is next; a short prompt behind a long one takes hardly longer than alone."""
        if len(reading) < 2:
            return reading[0] if reading else None
        self._eldest_next = not self._eldest_next
        return reading[0] if self._eldest_next else min(reading, key=_left)

    def can_go_on(self, stream: Stream) -> bool:
        """True if there is something to compute for the stream now."""
        return not stream.paused and self._room(stream) > 0

    def _room(self, stream: Stream) -> int:
        """Tokens that may still go into the stream's cache; asks for more before they run out."""
        if stream.cache is None or stream.journey is not None:
            return 0
        granted = stream.granted
        if granted == 0:
            return stream.room
        length = stream.cache.length
        if granted < stream.capacity and stream.asked <= granted < length + _ASK_AHEAD:
            needed = max(granted, stream.view.cached(len(stream.tokens)))
            stream.asked = min(stream.capacity, needed + _ASK_FOR)
            self._say(Grow(stream=stream.id, tokens=stream.asked))
        return max(0, min(granted - length, stream.room))

    def _advance(self, stream: Stream, logits: Logits) -> None:
        """The next token, which may be the stream's last."""
        if self._next(stream, logits) and stream.ended:
            self._over(stream, None)

    def _next(self, stream: Stream, logits: Logits, guess: Guess | None = None) -> bool:
        """Choose, say and count the next token; False if an error has ended the stream."""
        try:
            tokens = stream.advance(logits, guess)
        except Exception as error:  # whatever it is, the other streams go on
            self._over(stream, error)
            return False
        self.tokens += 1
        self._say(tokens)
        return True

    def _decoded(self, stream: Stream, seconds: float, together: int = 1) -> None:
        """The engine has decoded for a stream and ``together - 1`` others."""
        stream.decode_s += seconds / together
        stream.unsaid_s += self.pacer.with_rest(seconds)
        stream.together = together

    def _ran(self, begun: _Start) -> float:
        """A run of the engine is over; its seconds."""
        now_s = perf_counter()
        seconds = now_s - begun.at_s
        self.busy_s += seconds
        self.pacer.ran(seconds, now_s)
        return seconds

    # ------------------------------------------------------------ drafts

    def _speculate(self, stream: Stream) -> bool:
        """A round of drafting and verifying; False if plain decoding is better now."""
        most = min(MOST_DRAFTED, self._room(stream) - 1, stream.left - 1)
        if most < 1 or stream.cache is None:
            return False
        try:
            source, draft = self._draft(stream, most)
            if not draft:
                return False
            self._verify(stream, source, draft)
        except (EngineError, MemoryError) as error:
            self._over(stream, error)
        return True

    def _draft(self, stream: Stream, most: int) -> tuple[Acceptance, list[int]]:
        """The draft that promises most: from the text itself, or by the draft variant."""
        guesses = stream.guesses(most)
        if not guesses:
            stream.ngram.missed()
        if self._costs.outdated:
            return stream.ngram, []
        copied = stream.ngram.best_round(self._costs, len(guesses), free=True)
        written = NO_ROUND
        may_write = self.mode == "draft" and stream.foreseeable
        if may_write:
            written = stream.draft.best_round(self._costs, most, free=False)
        if copied.gain >= written.gain and copied.length:
            stream.ngram.paid()
            return stream.ngram, guesses[: copied.length]
        if written.length:
            stream.draft.paid()
            return stream.draft, self._let_draft_write(stream, written.length)
        return self._probe(stream, guesses, most if may_write else 0)

    def _probe(self, stream: Stream, guesses: list[int], most: int) -> tuple[Acceptance, list[int]]:
        """No draft, or now and then one to see whether that is still right.

        Args:
            stream: Whose.
            guesses: What its own text says.
            most: Tokens that the draft variant may write.
        """
        if guesses and (length := stream.ngram.probe(len(guesses))):
            return stream.ngram, guesses[:length]
        if most and (length := stream.draft.probe(most)):
            return stream.draft, self._let_draft_write(stream, length)
        return stream.ngram, []

    def _let_draft_write(self, stream: Stream, count: int) -> list[int]:
        assert stream.cache is not None
        begun, draft = _Start(judged=True), []
        try:
            draft = self._decoder.propose(stream.cache, stream.tokens[-1], count, stream.guess)
            self._costs.drafted(count, begun.worked_s())
        except CostlyFormError:
            stream.foreseeable = False  # whether the target gets there is another question
        except (EngineError, MemoryError) as error:
            self._lose_draft(error)
        self._decoded(stream, self._ran(begun))
        return draft

    def _lose_draft(self, error: EngineError | MemoryError) -> None:
        """The draft variant has failed: streams go on without it, as their target is whole."""
        self._decoder.drop_draft()
        self.mode = "ngram"
        reason = error.message if isinstance(error, EngineError) else "it has not enough memory"
        self._say(DraftLost(reason))

    def _verify(self, stream: Stream, source: Acceptance, draft: list[int]) -> None:
        cache = stream.cache
        assert cache is not None
        guesses: list[Guess | None] = [None] * (len(draft) + 1)
        if source is stream.ngram:
            stream.forecast = None  # the whole draft is judged below
        elif stream.guessed_from:
            guesses[:-1] = map(Guess, draft, stream.guessed_from)
            stream.guessed_from = []  # whole vocabularies, which nobody needs any more
        before = cache.length
        begun = _Start(judged=True)
        rows = self._decoder.verify(cache, [stream.tokens[-1], *draft])
        self._decoded(stream, self._ran(begun))
        self._costs.passed(len(rows), begun.worked_s())
        right, alive = 0, self._next(stream, rows[0], guesses[0])
        while alive and right < len(draft) and stream.tokens[-1] == draft[right]:
            right += 1
            if stream.ended:
                break
            alive = self._next(stream, rows[right], guesses[right])
        goes_on = alive and stream.ended is None
        source.judged(right, wrong=goes_on and right < len(draft))
        stream.drafted += len(draft)
        stream.accepted += right
        if goes_on:
            self._decoder.rewind(cache, before + right + 1)
        elif alive:
            self._over(stream, None)
