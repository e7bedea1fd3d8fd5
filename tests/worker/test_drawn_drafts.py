"""Answers that are drawn at random: what a draft variant guesses changes no token's probability."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from worker_peer import TINY

from trimtab.worker.decoder import Place
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.sampling import Distribution, Guess, Sampler, uniform
from trimtab.worker.speculation import Acceptance, Experience, Experiences
from trimtab.worker.stream import Language, Stream
from trimtab.worker.tokenizer import Tokenizer
from trimtab.worker.turns import Turns
from trimtab.worker.variant import read_variant
from trimtab.workers.protocol import FromWorker, Sampling, Start

PROMPT = [(7 * n) % 500 + 4 for n in range(12)]
WORDS = 24
DRAWS = 20_000
STREAMS = 3000
LIKELY = 4.0  # standard deviations of a sum of squares, for which chance alone is one in 10,000


def sampler(**fields: float) -> Sampler:
    return Sampler(Sampling(**({"temperature": 1.0, "seeded": False} | fields)), [], WORDS)  # type: ignore[arg-type]


def logits_of(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 1.5, WORDS).astype(np.float32)


def probabilities(distribution: Distribution) -> NDArray[np.float64]:
    return np.array([distribution.probability(token) for token in range(WORDS)])


def surprise(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Pearson's chi-square, in standard deviations above what chance makes of it."""
    seen = expected > 0
    assert not counts[~seen].any()
    square = float((((counts - expected)[seen] ** 2) / expected[seen]).sum())
    freedom = int(seen.sum()) - 1
    return (square - freedom) / float(np.sqrt(2 * freedom))


@pytest.mark.parametrize(
    "fields",
    [{}, {"top_k": 6}, {"top_p": 0.8}, {"temperature": 0.6}, {"top_k": 12, "top_p": 0.9}],
    ids=["plain", "top-k", "top-p", "cooler", "both"],
)
def test_a_judged_guess_leaves_each_token_its_probability(fields: dict[str, float]) -> None:
    target, draft = logits_of(1), logits_of(2)
    exact = probabilities(sampler(**fields).distribution(target.copy()))
    counts, taken = np.zeros(WORDS, np.int64), 0
    for seed in range(DRAWS):
        one = sampler(seed=seed, **fields)
        token, drawn_from = one.guess(draft.copy(), 9)
        assert drawn_from is not None
        chosen = one.choose(target.copy(), 9, Guess(token, drawn_from))
        counts[chosen] += 1
        taken += chosen == token

    overlap = np.minimum(exact, probabilities(drawn_from)).sum()
    assert surprise(counts, exact * DRAWS) < LIKELY
    assert taken / DRAWS == pytest.approx(overlap, abs=0.015)  # as many as can be


def test_a_guess_from_the_same_distribution_is_always_taken() -> None:
    for seed in range(200):
        one = sampler(seed=seed)
        token, drawn_from = one.guess(logits_of(3), 0)
        assert drawn_from is not None

        assert one.choose(logits_of(3), 0, Guess(token, drawn_from)) == token


def test_what_the_client_may_ask_for_again_is_guessed_by_its_own_number() -> None:
    for seed in range(50):
        one = sampler(seed=seed, seeded=True)

        assert one.guess(logits_of(3), 5) == (one.choose(logits_of(3), 5), None)


def test_the_rest_of_two_distributions_over_different_tokens() -> None:
    few = Distribution(np.array([7, 2, 5]), np.array([4.0, 4.0, 2.0]))
    other = Distribution(np.array([2, 9]), np.array([3.0, 1.0]))

    assert few.beyond(other).weights == pytest.approx([0.4, 0.0, 0.2])
    assert other.beyond(few).weights == pytest.approx([0.35, 0.25])


class Drafting(Turns):
    """The draft variant always writes two tokens, whether that pays or not."""

    def _draft(self, stream: Stream, most: int) -> tuple[Acceptance, list[int]]:
        if self.mode == "off":
            return stream.draft, []
        return stream.draft, self._let_draft_write(stream, min(2, most))


class Pair:
    """The tiny model in fp32, with its int4 variant as the draft."""

    def __init__(self) -> None:
        facts = read_variant(TINY / "fp32")
        self.decoder = KvDecoder(facts, 1, 256, "model.indices.onnx")
        draft = read_variant(TINY / "int4")
        self.decoder.add_draft(self.decoder.load_draft(draft, 1, "model.indices.onnx"))
        self.language = Language(Tokenizer(facts).vocabulary, facts.vocabulary, facts.eos)
        self.turns = Drafting(self.decoder, self._said, self._over)
        self.drafted = self.accepted = 0

    def answers(
        self, mode: str, tokens: int, sampling: Sampling, streams: int = STREAMS
    ) -> Counter[tuple[int, ...]]:
        """What many streams that differ in nothing but their seeds say."""
        said: Counter[tuple[int, ...]] = Counter()
        self.drafted = self.accepted = 0
        for number in range(streams):
            # Seeds of one mode have nothing to do with those of the other.
            seed = int(2**53 * uniform(number, 0, len(mode)))
            drawn = Sampling(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                seed=seed,
                seeded=sampling.seeded,
            )
            start = Start(
                stream=1, prompt=PROMPT, max_tokens=tokens, ignore_eos=True, sampling=drawn
            )
            said[tuple(self._answer(start, mode))] += 1
        return said

    def _answer(self, start: Start, mode: str) -> list[int]:
        stream = Stream(start, self.language, Experience())
        stream.cache = self.decoder.open(Place(stream.capacity))
        self.turns.mode = mode
        while not stream.prefilled:
            self.turns.prefill([stream])
        while stream.ended is None:
            self.turns.decode([stream])
        self.decoder.close(stream.cache)
        self.drafted += stream.drafted
        self.accepted += stream.accepted
        return stream.tokens[len(PROMPT) :]

    def _said(self, message: FromWorker) -> None:
        """Nobody listens."""

    def _over(self, stream: Stream, error: Exception | None) -> None:
        assert error is None


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair()


def test_drafted_answers_come_as_often_as_those_without_drafts(pair: Pair) -> None:
    drawn = Sampling(temperature=1.5, top_k=3, seeded=False)
    plain = pair.answers("off", 4, drawn)
    drafted = pair.answers("draft", 4, drawn)
    assert pair.drafted > STREAMS  # two and one for each answer
    assert 0.3 < pair.accepted / pair.drafted < 0.98  # some were taken, and some weren't

    square, freedom = 0.0, -1
    for words in {words for words in (*plain, *drafted) if plain[words] + drafted[words] >= 10}:
        one, other = plain[words], drafted[words]
        square += (one - other) ** 2 / (one + other)
        freedom += 1
    assert freedom > 20
    assert (square - freedom) / np.sqrt(2 * freedom) < LIKELY


def test_more_guesses_are_taken_than_where_the_answer_must_be_the_same(pair: Pair) -> None:
    taken = {}
    for seeded in (True, False):
        pair.answers("draft", 8, Sampling(temperature=1.0, seeded=seeded), streams=400)
        taken[seeded] = pair.accepted / pair.drafted

    assert taken[False] > taken[True] + 0.1


def test_each_kind_of_answer_has_its_own_experience() -> None:
    experiences = Experiences()
    greedy = experiences.of(Sampling())
    drawn = experiences.of(Sampling(temperature=1.0, seeded=False))
    seeded = experiences.of(Sampling(temperature=1.0, seed=1))
    for _ in range(30):
        Acceptance(drawn.variant).judged(0, wrong=True)

    assert len({id(greedy), id(drawn), id(seeded)}) == 3
    assert experiences.of(Sampling(temperature=0.5, top_k=1)) is greedy
    believed = Acceptance(greedy.variant).expected_tokens(2)
    assert believed == Acceptance(Experience().variant).expected_tokens(2)
    assert Acceptance(drawn.variant).expected_tokens(2) < believed
    experiences.forget_variant()
    assert Acceptance(drawn.variant).expected_tokens(2) == believed
