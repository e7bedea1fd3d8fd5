"""The worker's turns without a process around them: for benchmarks of what they choose to do.

It imports the engine, so only children of benchmarks import it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from trimtab.domain.models import VariantSpec
from trimtab.worker.decoder import Place
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.speculation import NO_ROUND, Acceptance, Belief, Costs, Experience, Round
from trimtab.worker.stream import EndReason, Language, Stream
from trimtab.worker.tokenizer import Tokenizer
from trimtab.worker.turns import Turns
from trimtab.worker.variant import read_variant
from trimtab.workers.protocol import Finished, FromWorker, Render, Start

_CONTEXT = 1024


class _Always(Acceptance):
    """Drafts as much as it is told, whatever comes of it."""

    def __init__(self, tokens: int) -> None:
        super().__init__(Belief((1.0,), (), counts_for=1))
        self._tokens = tokens

    def best_round(self, costs: Costs, most: int, *, free: bool) -> Round:
        # What costs nothing comes first; the draft variant writes where the text has nothing.
        return Round(min(self._tokens, most), 3.0 if free else 2.0) if most else NO_ROUND


class _Dictated(Stream):
    """Says what it is told to: what the model would have said is computed and thrown away."""

    text: Sequence[int] = ()

    def _take(self, token: int) -> str:
        return super()._take(self.text[self.produced] if self.text else token)


class TurnsAlone:
    """One variant, perhaps with a draft, and one stream at a time.

    Turns that choose know only what they did themselves: those that always draft are others.

    Args:
        variant: The target.
        draft: Drafts in the target's KV cache.
    """

    def __init__(self, variant: VariantSpec, draft: VariantSpec | None) -> None:
        facts = read_variant(Path(variant.folder))
        self._decoder = KvDecoder(facts, 1, _CONTEXT, variant.indices_graph)
        if draft is not None:
            spec = read_variant(Path(draft.folder))
            loaded = self._decoder.load_draft(spec, 1, draft.indices_graph)
            self._decoder.add_draft(loaded)
        self._tokenizer = Tokenizer(facts)
        self._language = Language(self._tokenizer.vocabulary, facts.vocabulary, facts.eos)
        self._choosing = Turns(self._decoder, self._say, self._over)
        self._fixed = Turns(self._decoder, self._say, self._over)
        self._experience = Experience()
        self._numbers = itertools.count(1)
        self._error: Exception | None = None

    def render(self, question: str) -> list[int]:
        """A question in the model's chat template, as token ids."""
        message = {"role": "user", "content": question}
        return self._tokenizer.render(Render(id=0, messages=[message]))

    def write(self, prompt: list[int], tokens: int) -> list[int]:
        """Answer greedily and without drafts; returns the answer's token ids."""
        return self._answer(prompt, tokens, "off", 0, ()).tokens[len(prompt) :]

    def answer(self, prompt: list[int], text: Sequence[int], mode: str, always: int) -> Finished:
        """Say a text token by token, as if the model had chosen it.

        Args:
            prompt: Token ids.
            text: Token ids of the answer.
            mode: Which drafts may be used, as `Speculate` has it.
            always: Draft so many tokens whenever there are any; 0 for the worker's choice.

        Raises:
            EngineError: The engine failed.
        """
        return self._answer(prompt, len(text), mode, always, text).finished(EndReason.LENGTH)

    def _answer(
        self, prompt: list[int], tokens: int, mode: str, always: int, text: Sequence[int]
    ) -> Stream:
        number = next(self._numbers)
        start = Start(stream=number, prompt=prompt, max_tokens=tokens, ignore_eos=True)
        stream = _Dictated(start, self._language, self._experience)
        stream.text = text
        stream.cache = self._decoder.open(Place(stream.capacity))
        if always:
            stream.ngram, stream.draft = _Always(always), _Always(always)
        turns = self._fixed if always else self._choosing
        turns.mode = mode
        while stream.ended is None and self._error is None:
            turns.decode([stream])
            turns.prefill([stream])
        self._decoder.close(stream.cache)
        if self._error is not None:
            raise self._error
        return stream

    def _say(self, message: FromWorker) -> None:
        """Nobody listens."""

    def _over(self, stream: Stream, error: Exception | None) -> None:
        self._error = error
