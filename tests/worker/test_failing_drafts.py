"""A draft that fails while a stream is served: the stream goes on, and the draft is let go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from worker_peer import TINY

from trimtab.errors import EngineError
from trimtab.worker.decoder import Cache, Place
from trimtab.worker.guides import CostlyFormError, GuidedAnswer, Guides
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.sampling import Logits
from trimtab.worker.speculation import Experience
from trimtab.worker.stream import EndReason, Language, Stream
from trimtab.worker.tokenizer import Tokenizer
from trimtab.worker.turns import Turns
from trimtab.worker.variant import read_variant
from trimtab.workers.protocol import DraftLost, FromWorker, Guide, Sampling, Start

FACTS = read_variant(TINY / "fp32")
VOCABULARY = Tokenizer(FACTS).vocabulary
LANGUAGE = Language(VOCABULARY, FACTS.vocabulary, FACTS.eos)
START = Start(
    stream=1,
    prompt=[(7 * n) % 500 + 4 for n in range(60)],
    max_tokens=200,
    ignore_eos=True,
    sampling=Sampling(temperature=3.0, seed=1),
)


class Drafting(KvDecoder):
    """fp32 with int4 as its draft, which may have a fault."""

    def __init__(self) -> None:
        super().__init__(FACTS, 1, 2048, "model.indices.onnx")
        self.add_draft(self.load_draft(read_variant(TINY / "int4"), 1, "model.indices.onnx"))
        self.fault: Exception | None = None
        self.numberless = False
        self.proposals = 0

    def propose(
        self, cache: Cache, token: int, count: int, choose: Callable[[Logits, int], int]
    ) -> list[int]:
        self.proposals += 1
        if self.fault is not None:
            raise self.fault
        seen = np.float32(np.nan if self.numberless else 1)
        return super().propose(cache, token, count, lambda row, n: choose(row * seen, n))


@dataclass
class Served:
    """What came of one stream."""

    stream: Stream
    turns: Turns
    said: list[FromWorker] = field(default_factory=list)
    ends: list[Exception | None] = field(default_factory=list)

    @property
    def lost(self) -> list[str]:
        return [one.reason for one in self.said if isinstance(one, DraftLost)]


def serve(decoder: Drafting, mode: str, guided: GuidedAnswer | None = None) -> Served:
    said: list[FromWorker] = []
    ends: list[Exception | None] = []
    turns = Turns(decoder, said.append, lambda stream, error: ends.append(error))
    turns.mode = mode
    stream = Stream(START, LANGUAGE, Experience(), guided=guided)
    stream.cache = decoder.open(Place(stream.capacity))
    while not ends:
        turns.decode([stream])
        turns.prefill([stream])
    decoder.close(stream.cache)
    return Served(stream, turns, said, ends)


@pytest.mark.parametrize(
    "fault", [None, MemoryError(), EngineError("the engine failed: bad allocation")]
)
def test_a_draft_that_fails_ends_no_stream_and_is_not_asked_again(fault: Exception | None) -> None:
    plain = serve(Drafting(), "off").stream.tokens
    decoder = Drafting()
    decoder.fault, decoder.numberless = fault, fault is None
    first = serve(decoder, "draft")
    second = serve(decoder, first.turns.mode)

    for served in (first, second):
        assert served.ends == [None]
        assert served.stream.ended is EndReason.LENGTH
        assert served.stream.tokens == plain
    assert len(first.lost) == 1
    assert decoder.proposals == 1
    assert decoder.speculation == ("off", "ngram")
    assert first.turns.mode == "ngram"


def test_a_form_that_is_too_costly_to_foresee_is_no_fault_of_the_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_costly(_: int) -> None:
        raise CostlyFormError("the answer can't be held to its form: too many states")

    guides = Guides(VOCABULARY, FACTS.vocabulary, FACTS.eos)
    form = Guide(schema='{"type": "string", "minLength": 400}')
    plain = serve(Drafting(), "off", guides.follow(form))
    costly = guides.follow(form)
    monkeypatch.setattr(costly, "foresee", too_costly)
    decoder = Drafting()
    served = serve(decoder, "draft", costly)

    assert served.ends == [None]
    assert served.stream.tokens == plain.stream.tokens
    assert served.lost == []
    assert decoder.proposals == 1
    assert decoder.speculation == ("off", "ngram", "draft")
