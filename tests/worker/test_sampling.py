from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.errors import EngineError
from trimtab.worker.sampling import (
    Distribution,
    Logits,
    Sampler,
    best_ids,
    log_probabilities,
    uniform,
)
from trimtab.workers.protocol import Sampling

SIZES = (512, 1000, 49152, 151_936 // 8)


def logits_of(size: int, seed: int = 1, scale: float = 3.0) -> Logits:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def reference(logits: Logits, sampling: Sampling) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The obvious way: softmax, sort, cut."""
    scores = logits.astype(np.float64) / sampling.temperature
    order = np.argsort(-scores, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = np.exp(scores[order] - scores.max())
    weights /= weights.sum()
    keep = int(np.searchsorted(np.cumsum(weights), sampling.top_p)) + 1
    probabilities = np.zeros(len(logits))
    kept = weights[:keep]
    probabilities[order[:keep]] = kept / kept.sum()
    return probabilities


def dense(distribution: Distribution, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    weights = distribution.weights.astype(np.float64)
    if distribution.ids is None:
        return weights / weights.sum()
    probabilities = np.zeros(size)
    probabilities[distribution.ids] = weights / weights.sum()
    return probabilities


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7),
        Sampling(temperature=1.0, top_k=40),
        Sampling(temperature=0.8, top_k=300),
        Sampling(temperature=0.8, top_p=0.9),
        Sampling(temperature=2.5, top_p=0.97),
        Sampling(temperature=1.2, top_k=50, top_p=0.8),
        Sampling(temperature=0.01, top_p=0.5),
    ],
    ids=str,
)
def test_the_fast_way_gives_the_distribution_of_the_obvious_way(
    size: int, sampling: Sampling
) -> None:
    logits = logits_of(size)
    found = dense(Sampler(sampling, [], size).distribution(logits.copy()), size)

    np.testing.assert_allclose(found, reference(logits, sampling), atol=2e-6)


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.0), Sampling(temperature=1, top_p=0.9)]
)
def test_draws_come_as_often_as_the_distribution_says(sampling: Sampling) -> None:
    size, draws = 600, 20_000
    logits = logits_of(size, scale=2.0)
    distribution = Sampler(sampling, [], size).distribution(logits)
    counts = np.bincount(
        [distribution.draw(uniform(7, position)) for position in range(draws)], minlength=size
    )
    expected = dense(distribution, size) * draws
    common = expected >= 8
    chi_square = float((((counts - expected) ** 2)[common] / expected[common]).sum())
    freedom = int(common.sum()) - 1

    assert not counts[expected == 0].any()
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_the_same_seed_and_position_draw_the_same_and_others_do_not() -> None:
    logits = logits_of(512)
    first = Sampler(Sampling(temperature=1.0, seed=5), [], 512)
    second = Sampler(Sampling(temperature=1.0, seed=6), [], 512)
    tokens = [first.choose(logits.copy(), position) for position in range(60)]

    assert tokens == [first.choose(logits.copy(), position) for position in range(60)]
    assert tokens != [second.choose(logits.copy(), position) for position in range(60)]
    assert len(set(tokens)) > 20


def test_uniform_numbers_are_uniform_and_take_any_seed() -> None:
    numbers = np.array([uniform(-3, position) for position in range(20_000)])
    counts, _ = np.histogram(numbers, bins=50, range=(0, 1))

    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(float(((counts - 400) ** 2 / 400).sum()) - 49) < 5 * np.sqrt(98)
    assert uniform(2**64 + 1, 3) == uniform(1, 3)
    assert uniform(1, 3, draw=1) != uniform(1, 3)


@settings(max_examples=80)
@given(
    st.integers(1, 3000),
    st.integers(1, 400),
    st.integers(0, 10_000),
    st.booleans(),
)
def test_the_best_ids_are_those_of_a_full_sort(
    size: int, count: int, seed: int, ties: bool
) -> None:
    logits = logits_of(size, seed)
    if ties:
        logits = np.round(logits)
    expected = np.argsort(-logits, kind="stable")[: min(count, size)]

    assert best_ids(logits, count).tolist() == expected.tolist()


def test_greedy_takes_the_best_and_the_first_of_equals() -> None:
    logits = np.zeros(512, np.float32)
    logits[[7, 99]] = 4

    assert Sampler(Sampling(), [], 512).choose(logits, 0) == 7
    assert Sampler(Sampling(temperature=1.0, top_k=1), [], 512).choose(logits, 0) == 7


def test_repetition_is_punished_in_prompt_and_answer_alike() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0), [3], 8)
    sampler.observe(4)
    sampler.observe(4)
    logits = np.array([1, 1, 1, 4, -4, 1, 1, 1], np.float32)
    sampler.adjust(logits)

    assert logits.tolist() == [1, 1, 1, 2, -8, 1, 1, 1]


def test_a_top_p_of_0_keeps_the_best_token_alone() -> None:
    logits = logits_of(512)
    for top_k in (0, 40):
        sampler = Sampler(Sampling(temperature=5.0, top_p=0, top_k=top_k), [], 512)

        assert {sampler.choose(logits.copy(), n) for n in range(50)} == {int(logits.argmax())}


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 7), max_size=40),
    at=st.integers(0, 40),
    window=st.integers(1, 12),
)
def test_a_repetition_window_has_the_last_tokens_in_it(
    tokens: list[int], at: int, window: int
) -> None:
    sampling = Sampling(repetition_penalty=2.0, repetition_window=window)
    sampler = Sampler(sampling, tokens[:at], 8)
    for token in tokens[at:]:
        sampler.observe(token)
    logits = np.ones(8, np.float32)
    sampler.adjust(logits)

    assert set(np.flatnonzero(logits == 0.5)) == set(tokens[-window:])


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    sampler = Sampler(Sampling(presence_penalty=0.5, frequency_penalty=0.25), [3], 8)
    for token in (4, 4, 5):
        sampler.observe(token)
    logits = np.zeros(8, np.float32)
    sampler.adjust(logits)

    assert logits.tolist() == [0, 0, 0, 0, -1.0, -0.75, 0, 0]


def test_a_bias_forbids_or_forces_a_token() -> None:
    logits = logits_of(512)
    best = int(logits.argmax())
    forbidden = Sampler(Sampling(logit_bias={best: -100}), [], 512).choose(logits.copy(), 0)
    forced = Sampler(Sampling(logit_bias={11: 100}), [], 512).choose(logits.copy(), 0)

    assert forbidden != best
    assert forced == 11


def test_log_probabilities_are_the_models_own() -> None:
    logits = logits_of(1000)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    value, best = log_probabilities(logits, 5, 3)

    assert value == pytest.approx(exact[5], abs=1e-5)
    assert [token for token, _ in best] == np.argsort(-logits)[:3].tolist()
    assert [at for _, at in best] == pytest.approx(np.sort(exact)[::-1][:3].tolist(), abs=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=str)
def test_logits_that_are_no_numbers_are_an_error(sampling: Sampling) -> None:
    logits = logits_of(512)
    logits[3] = np.nan

    with pytest.raises(EngineError) as refused:
        Sampler(sampling, [], 512).choose(logits, 0)

    assert refused.value.code == "logits_not_finite"


def test_the_probability_of_a_token_is_its_share() -> None:
    sparse = Distribution(np.array([4, 9]), np.array([3.0, 1.0]))

    assert sparse.probability(4) == 0.75
    assert sparse.probability(5) == 0
    assert Distribution(None, np.array([1.0, 3.0])).probability(1) == 0.75


def test_rounding_never_leads_to_a_token_of_weight_zero() -> None:
    distribution = Distribution(None, np.array([0.0, 1e-30, 0.0], np.float32))

    assert {distribution.draw(u) for u in (0.0, 0.5, 1 - 2**-53)} == {1}


def test_sampling_takes_a_fraction_of_what_sorting_takes() -> None:
    logits = logits_of(49_152)
    sampling = Sampling(temperature=0.8, top_k=40, top_p=0.95)
    sampler = Sampler(sampling, [], 49_152)

    def best_of(repeats: int, way: str) -> float:
        times = []
        for position in range(repeats):
            copy = logits.copy()
            begun = perf_counter()
            if way == "fast":
                sampler.choose(copy, position)
            else:
                reference(copy, sampling)
            times.append(perf_counter() - begun)
        return min(times)

    assert best_of(30, "fast") * 5 < best_of(10, "obvious")
