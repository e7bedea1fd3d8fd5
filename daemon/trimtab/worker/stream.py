"""One stream's state, all of it derived from its prompt and the tokens generated so far.

A stream that goes on from another worker is made with the tokens that the controller has
acknowledged and folds over them, so detokenizer, stop strings and penalties are what they were in
the first worker: nothing at the seam can differ.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum

from trimtab.domain.view import View
from trimtab.worker.decoder import Cache, Moving
from trimtab.worker.detokenize import Detokenizer
from trimtab.worker.guides import GuidedAnswer
from trimtab.worker.ngram import NgramIndex
from trimtab.worker.sampling import Distribution, Guess, Logits, Sampler, log_probabilities
from trimtab.worker.speculation import Acceptance, Experience
from trimtab.worker.stop import StopScanner
from trimtab.worker.vocabulary import Vocabulary
from trimtab.workers.protocol import Finished, Logprob, Start, Tokens


class EndReason(StrEnum):
    """Why a stream is complete."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Language:
    """What the model's tokens mean.

    Attributes:
        vocabulary: Bytes of each token.
        size: Number of token ids that the graph knows.
        eos: Token ids that end an answer.
    """

    vocabulary: Vocabulary
    size: int
    eos: frozenset[int]


@dataclass(frozen=True, slots=True)
class Journey:
    """A stream's way into another segment.

    Attributes:
        move: What is moved.
        descriptor: Of the new segment.
        dropped: Tokens that are forgotten once it is there.
        granted: Tokens that it may have there.
    """

    move: Moving
    descriptor: int
    dropped: int
    granted: int


class Stream:
    """A stream that this worker computes.

    Args:
        start: The request; its fields have been checked.
        language: Of the model.
        experience: What earlier streams taught of drafts; it learns from this one.
        descriptor: Of the KV segment that came with the request; closed by `release`.
        guided: Holds the answer to its form, from its beginning; None for free text.
        shown: Special tokens that are text in this answer.

    Attributes:
        id: The controller's number for it.
        tokens: Prompt and answer.
        cache: Its KV cache, once it has one.
        ended: Why it is complete; None while it isn't.
        paused: True while nothing is to be computed for it.
        prefilled: True once all tokens but the newest are in the cache.
        cached_tokens: Prompt tokens whose KV was there already.
        prefill_s: Engine time spent on its prefill.
        decode_s: Engine time spent on its decoding.
        unsaid_s: Engine time of its decoding since its last token: whole steps, rests included.
        together: How many streams advanced in the last step that it was in.
        granted: Tokens that it may have in its cache; 0 for no bound.
        asked: Tokens that the controller was last asked for.
        view: Which of its tokens are in the cache, or will be.
        journey: Its way into another segment; nothing is computed for it meanwhile.
        asked_to_move: True once the controller has been asked for more room in the window.
        ngram: How good n-gram drafts are in it.
        draft: How good the draft variant's drafts are in it.
        foreseeable: False once its form is too costly to follow along a draft.
        drafted: Tokens that were drafted and verified.
        accepted: How many of them were right.
        forecast: What the n-gram index expects next; judged when the next token is known.
        guessed_from: What the draft variant's last draft was drawn from, token by token; empty if a
            drafted token is right only where it is the one that would have been chosen.
    """

    def __init__(
        self,
        start: Start,
        language: Language,
        experience: Experience,
        descriptor: int | None = None,
        guided: GuidedAnswer | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self.id = start.stream
        self.tokens = list(start.prompt)
        self.cache: Cache | None = None
        self.ended: EndReason | None = None
        self.paused = False
        self.prefilled = False
        self.cached_tokens = 0
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.unsaid_s = 0.0
        self.together = 1
        self.granted = start.granted
        self.asked = 0
        self.view = View(start.keep, start.dropped)
        self.journey: Journey | None = None
        self.asked_to_move = False
        self.ngram = Acceptance(experience.ngrams)
        self.draft = Acceptance(experience.variant)
        self.foreseeable = True
        self.drafted = 0
        self.accepted = 0
        self._index: NgramIndex | None = None
        self.forecast: int | None = None
        self.guessed_from: list[Distribution] = []
        self._start = start
        self._language = language
        self._descriptor = descriptor
        self._guided = guided
        self._shown = shown
        self._detokenizer = Detokenizer(language.vocabulary, shown)
        self._stops = StopScanner(start.stop)
        self._sampler = Sampler(start.sampling, start.prompt, language.size)
        for token in start.generated:
            self._take(token)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self._start.prompt)

    @property
    def produced(self) -> int:
        """Tokens generated so far, in whatever worker."""
        return len(self.tokens) - self.prompt_length

    @property
    def capacity(self) -> int:
        """The most positions that its cache ever needs."""
        return min(self._start.context, self._longest - self.view.dropped)

    @property
    def room(self) -> int:
        """Positions that its window has left; its last one belongs to the newest token."""
        used = self.cache.length if self.cache is not None else 0
        most = self._start.context - 1 if self.view.shifts else self.capacity
        return max(0, most - used)

    @property
    def full(self) -> bool:
        """True if its window has to be shifted before it can go on."""
        return self.view.shifts and self.journey is None and self.room == 0

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        longest = self._longest if self.view.shifts else self.capacity
        return longest - len(self.tokens)

    @property
    def _longest(self) -> int:
        return self.prompt_length + self._start.max_tokens

    @property
    def descriptor(self) -> int | None:
        """The KV segment that came with it."""
        return self._descriptor

    @property
    def valid(self) -> int:
        """Tokens in that segment whose KV counts; the newest token must be computed anyway."""
        return min(self._start.valid, self.view.cached(len(self.tokens)) - 1)

    def advance(self, logits: Logits, guess: Guess | None = None) -> Tokens:
        """Choose the next token; `ended` says afterwards whether it was the last.

        Args:
            logits: For the next token; changed in place.
            guess: What the draft variant drew for it.

        Raises:
            EngineError: The logits aren't numbers, or the answer's form is too costly to follow.
        """
        wanted = self._start.sampling.top_logprobs
        raw = logits.copy() if wanted >= 0 else logits
        if self._guided is not None:
            self._guided.forget_foreseen()
            self._guided.mask(logits)
        token = self._sampler.choose(logits, len(self.tokens), guess)
        logprobs = [self._logprob(raw, token, wanted)] if wanted >= 0 else []
        first = self.produced
        text = self._take(token)
        spent_s, self.unsaid_s = self.unsaid_s, 0.0
        return Tokens(self.id, first, [token], text, logprobs, spent_s, self.together)

    def finished(self, reason: EndReason) -> Finished:
        """The last message, with the text that was held back."""
        return Finished(
            stream=self.id,
            reason=reason.value,
            text=self._stops.rest(),
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            cached_tokens=self.cached_tokens,
            drafted=self.drafted,
            accepted=self.accepted,
        )

    def guesses(self, most: int) -> list[int]:
        """What may come next, judging by what came after the same tokens before.

        Each is also a forecast: when the next token is known, it is judged even if nobody used it.
        """
        if self._index is None:
            self._index = NgramIndex(self.tokens)
        found = self._index.propose(most)
        self.ngram.agreed = self._index.agreed
        if self._guided is not None:
            found = self._guided.likely(found)
        self.forecast = found[0] if found else None
        return found

    def guess(self, logits: Logits, ahead: int) -> int:
        """What this stream would choose from a draft's logits, ``ahead`` tokens after the next."""
        guided = self._guided
        if ahead == 0:
            self.guessed_from = []
            if guided is not None:
                guided.forget_foreseen()
        if guided is not None:
            guided.mask(logits)
        token, drawn_from = self._sampler.guess(logits, len(self.tokens) + ahead)
        if drawn_from is not None:
            self.guessed_from.append(drawn_from)
        if guided is not None:
            guided.foresee(token)
        return token

    def settle(self, journey: Journey) -> None:
        """It has arrived in another segment."""
        self.release()
        self._descriptor = journey.descriptor
        self.view = replace(self.view, dropped=journey.dropped)
        self.granted = journey.granted
        self.asked = 0
        self.journey = None
        self.asked_to_move = False

    def release(self) -> None:
        """Close the segment's descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self, token: int) -> str:
        """Fold one generated token into the state; returns the text that became certain."""
        if self.forecast is not None:
            self.ngram.judged(int(token == self.forecast), wrong=token != self.forecast)
            self.forecast = None
        self.tokens.append(token)
        self._sampler.observe(token)
        if self._guided is not None:
            self._guided.accept(token)
        end_of_answer = token in self._language.eos and not self._start.ignore_eos
        silent = end_of_answer and token not in self._shown  # whether marked as special or not
        cut = self._stops.feed("" if silent else self._detokenizer.feed(token))
        complete = self._guided is not None and self._guided.complete
        if cut.stopped or end_of_answer or complete:
            self.ended = EndReason.STOP
        elif self.left <= 0:
            self.ended = EndReason.LENGTH
        return cut.text

    def _logprob(self, logits: Logits, token: int, top: int) -> Logprob:
        name = self._language.vocabulary.name
        value, best = log_probabilities(logits, token, top)
        return Logprob(value, name(token), [(other, name(other), at) for other, at in best])
