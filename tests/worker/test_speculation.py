"""Drafts: which tokens come never depends on them, and they are only used while they pay."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantized_kv import quantize_kv
from worker_peer import TINY, Answer, WorkerProcess

from trimtab.worker.decoder import Place
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.ngram import NgramIndex
from trimtab.worker.speculation import MOST_DRAFTED, Acceptance, Costs, Experience
from trimtab.worker.stream import Language, Stream
from trimtab.worker.tokenizer import Tokenizer
from trimtab.worker.turns import Turns
from trimtab.worker.variant import read_variant
from trimtab.workers.protocol import (
    DraftLost,
    Finished,
    FromWorker,
    Ping,
    Pong,
    Ready,
    Sampling,
    Speculate,
    Start,
    Tokens,
)

PROMPT = [(7 * n) % 500 + 4 for n in range(60)]


@pytest.fixture(scope="module")
def drafting() -> Iterator[WorkerProcess]:
    """fp32 with int4 as its draft."""
    process = WorkerProcess()
    try:
        ready = process.load(decoder="kv", draft=str(TINY / "int4"))
        assert ready.speculation == ("off", "ngram", "draft")
        yield process
    finally:
        process.close()


def past(first: int) -> Callable[[FromWorker], bool]:
    return lambda message: isinstance(message, Tokens) and message.first >= first


def answer(worker: WorkerProcess, mode: str, **fields: Any) -> Answer:
    worker.send(Speculate(mode=mode))
    whole: dict[str, Any] = {"stream": 1, "prompt": PROMPT, "max_tokens": 400, "ignore_eos": True}
    return worker.run(Start(**(whole | fields)))


@pytest.mark.parametrize("mode", ["ngram", "draft"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.0, seed=3),
        Sampling(temperature=0.8, top_p=0.9, seed=8),
        Sampling(temperature=0.9, top_k=30, repetition_penalty=1.1, top_logprobs=1, seed=5),
    ],
    ids=["greedy", "plain", "top-p", "penalties"],
)
def test_drafts_change_nothing_but_the_speed(
    drafting: WorkerProcess, mode: str, sampling: Sampling
) -> None:
    plain = answer(drafting, "off", sampling=sampling)
    answer(drafting, mode)  # repeats itself, so that the next stream begins with drafts
    fast = answer(drafting, mode, sampling=sampling)
    assert isinstance(plain.last, Finished)
    assert isinstance(fast.last, Finished)

    assert fast.tokens == plain.tokens
    assert fast.text == plain.text
    assert [piece.first for piece in fast.pieces] == list(range(400))
    assert plain.last.drafted == 0
    assert fast.last.drafted > 0
    assert fast.last.accepted <= fast.last.drafted


def test_the_draft_variant_is_tried_where_no_ngram_helps(drafting: WorkerProcess) -> None:
    # Tokens drawn nearly at random hardly ever repeat three in a row.
    last = answer(drafting, "draft", sampling=Sampling(temperature=3.0, seed=1)).last
    assert isinstance(last, Finished)

    assert last.drafted > 0


def test_a_stream_may_end_in_the_middle_of_a_draft(drafting: WorkerProcess) -> None:
    plain = answer(drafting, "off")
    answer(drafting, "ngram")  # repeats itself, so that the next stream begins with drafts
    for length in range(380, 395):
        short = answer(drafting, "ngram", max_tokens=length)

        assert short.tokens == plain.tokens[:length]
        assert short.reason == "length"
        assert isinstance(short.last, Finished)
        assert short.last.accepted > 0


class Foreseeing(Turns):
    """Draws up drafts of what is known to come."""

    coming: list[int]

    def _draft(self, stream: Stream, most: int) -> tuple[Acceptance, list[int]]:
        at = len(stream.tokens)
        return stream.ngram, self.coming[at : at + most]


def test_the_round_that_ends_a_stream_is_counted_too() -> None:
    facts = read_variant(TINY / "fp32")
    decoder = KvDecoder(facts, 1, 2048, "model.indices.onnx")
    language = Language(Tokenizer(facts).vocabulary, facts.vocabulary, facts.eos)
    told: list[Finished] = []

    def over(stream: Stream, error: Exception | None) -> None:
        assert error is None
        assert stream.ended is not None
        told.append(stream.finished(stream.ended))

    turns = Foreseeing(decoder, lambda _: None, over)
    start = Start(stream=1, prompt=PROMPT, max_tokens=6, ignore_eos=True)
    tokens: list[int] = []
    for mode in ("off", "ngram"):
        stream = Stream(start, language, Experience())
        stream.cache = decoder.open(Place(stream.capacity))
        turns.mode, turns.coming = mode, tokens
        while not stream.prefilled:
            turns.prefill([stream])
        while stream.ended is None:
            turns.decode([stream])
        tokens = list(stream.tokens)

    assert [(one.drafted, one.accepted) for one in told] == [(0, 0), (4, 4)]


def test_a_stop_string_in_a_draft_ends_the_stream_there(drafting: WorkerProcess) -> None:
    plain = answer(drafting, "off")
    stop = plain.text[-30:-20]
    expected = plain.text[: plain.text.index(stop)]

    assert answer(drafting, "draft", stop=[stop]).text == expected


def test_drafting_is_switched_between_tokens(drafting: WorkerProcess) -> None:
    plain = answer(drafting, "off", max_tokens=1500)
    drafting.send(Start(stream=1, prompt=PROMPT, max_tokens=1500, ignore_eos=True))
    said = []
    for at, mode in ((200, "ngram"), (500, "off"), (800, "draft")):
        said += drafting.until(past(at))
        drafting.send(Speculate(mode=mode))
    whole = Answer(said + drafting.end_of(1)[1])
    assert isinstance(whole.last, Finished)

    assert whole.tokens == plain.tokens
    assert whole.last.drafted > 0


def test_streams_that_decode_together_are_not_given_drafts(drafting: WorkerProcess) -> None:
    drafting.send(Speculate(mode="ngram"))
    for stream in (1, 2):
        drafting.send(Start(stream=stream, prompt=PROMPT, max_tokens=300, ignore_eos=True))
    said = drafting.end_of(1, 2)
    lasts = [said[stream][-1] for stream in (1, 2)]
    drafted = [last.drafted for last in lasts if isinstance(last, Finished)]

    assert min(drafted) == 0
    assert max(drafted) < 100


def test_a_mode_that_is_not_to_be_had_means_off(worker: WorkerProcess) -> None:
    worker.send(Speculate(mode="draft"))
    worker.send(Speculate(mode="telepathy"))
    worker.send(Ping(id=1))
    assert isinstance(worker.next(), Pong)
    last = worker.run(Start(stream=1, prompt=PROMPT, max_tokens=100, ignore_eos=True)).last

    assert isinstance(last, Finished)
    assert last.drafted == 0


def nowhere(folder: Path) -> Path:
    return folder / "nowhere"


def damaged(folder: Path) -> Path:
    """All of its files are there, and its graph is none."""
    shutil.copytree(TINY / "int4", folder / "damaged")
    for graph in (folder / "damaged").glob("*.onnx"):
        graph.write_bytes(b"\xff" * 1000)
    return folder / "damaged"


def of_other_kv(folder: Path) -> Path:
    quantize_kv(TINY / "int4", folder / "int4_kv8", PROMPT, 8)
    return folder / "int4_kv8"


def that_computes_nothing(folder: Path) -> Path:
    """It loads, and its logits are no numbers."""
    shutil.copytree(TINY / "int4", folder / "numberless")
    weights = folder / "numberless" / "model.onnx.data"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    return folder / "numberless"


@pytest.mark.parametrize("broken", [nowhere, damaged, of_other_kv, that_computes_nothing])
def test_a_draft_that_does_not_load_leaves_the_target_to_serve(
    tmp_path: Path, broken: Callable[[Path], Path]
) -> None:
    draft = broken(tmp_path)
    process = WorkerProcess()
    try:
        process.ask_to_load(decoder="kv", draft=str(draft))
        lost, ready = process.next(), process.next()
        last = answer(process, "ngram").last
    finally:
        process.close()

    assert isinstance(lost, DraftLost)
    assert isinstance(ready, Ready)
    assert ready.speculation == ("off", "ngram")
    assert draft.name in lost.reason
    assert isinstance(last, Finished)
    assert last.drafted > 0


def test_a_target_that_only_the_generator_serves_is_served_without_its_draft(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "with_positions"
    shutil.copytree(TINY / "fp32", folder)
    graph: Any = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    shape = ["batch_size", "sequence_length"]
    more = onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, shape)
    graph.graph.input.append(more)
    onnx.save(graph, str(folder / "model.onnx"))
    process = WorkerProcess()
    try:
        process.ask_to_load(folder=str(folder), decoder="auto", draft=str(TINY / "int4"))
        lost, ready = process.next(), process.next()
    finally:
        process.close()

    assert isinstance(lost, DraftLost)
    assert isinstance(ready, Ready)
    assert (ready.decoder, ready.speculation) == ("generator", ("off",))
    assert "Generator" in lost.reason


@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 9))
def test_ngram_drafts_are_what_followed_the_last_three_tokens_before(
    tokens: list[int], count: int
) -> None:
    growing: list[int] = []
    index = NgramIndex(growing)
    for token in tokens:
        growing.append(token)
        index.propose(1)
    expected: list[int] = []
    for end in range(3, len(tokens)):
        if tokens[end - 3 : end] == tokens[-3:]:
            expected = tokens[end : end + count]

    assert index.propose(count) == expected


def costs(slope: float, draft_ratio: float) -> Costs:
    measured = Costs()
    for _ in range(100):
        measured.passed(1, 0.01)
        measured.passed(5, 0.01 * (1 + 4 * slope))
        measured.drafted(2, 0.02 * draft_ratio)
    return measured


def acceptance(rate: float) -> Acceptance:
    judged = Acceptance(Experience().variant)
    rng = np.random.default_rng(0)
    for _ in range(300):
        right = rng.random() < rate
        judged.judged(int(right), wrong=not right)
    return judged


def test_drafts_that_are_mostly_right_grow_long_and_bad_ones_stop() -> None:
    cheap = costs(slope=0.1, draft_ratio=0.3)
    rounds = [acceptance(r).best_round(cheap, MOST_DRAFTED, free=True) for r in (0, 0.5, 0.98)]
    lengths = [one.length for one in rounds]

    assert lengths[0] == 0
    assert 0 < lengths[1] < lengths[2] <= MOST_DRAFTED


def test_a_draft_variant_pays_on_fp32_and_loses_where_it_is_nearly_as_dear() -> None:
    good = acceptance(0.8)

    assert good.best_round(costs(slope=0.13, draft_ratio=0.33), 8, free=False).gain > 1.04
    assert good.best_round(costs(slope=0.22, draft_ratio=0.8), 8, free=False).length == 0


def test_a_draft_is_never_longer_than_there_is_room_for() -> None:
    assert acceptance(0.99).best_round(costs(0.05, 0.1), 3, free=True).length == 3


def test_a_source_that_lost_is_tried_again_more_and_more_rarely() -> None:
    bad = acceptance(0.0)
    tried = [turn for turn in range(2000) if bad.probe(8)]
    gaps = np.diff(tried).tolist()

    assert 2 <= len(tried) <= 8
    assert gaps == sorted(gaps)


def test_a_source_that_is_wrong_from_the_beginning_is_left_after_a_few_tokens() -> None:
    usual = costs(slope=0.2, draft_ratio=0.9)
    ngrams, wasted = Acceptance(Experience().ngrams), 0.0
    while (length := ngrams.best_round(usual, 8, free=True).length) > 0:
        wasted += usual.round_ratio(length, free=True) - 1
        ngrams.judged(0, wrong=True)

    assert wasted < 3.5  # passes over one token, of an answer of a hundred or more


def test_each_length_of_a_draft_has_a_cost_of_its_own() -> None:
    measured = Costs()
    unknown = [measured.round_ratio(length, free=True) for length in (0, 1, 4, 8)]
    for _ in range(10):  # kernels go in steps: two tokens are cheap, five aren't
        measured.passed(1, 0.01)
        measured.passed(2, 0.011)
        measured.passed(5, 0.023)

    assert unknown == pytest.approx([1.0, 1.2, 1.8, 2.6])
    assert measured.round_ratio(0, free=True) == 1.0
    assert measured.round_ratio(1, free=True) == pytest.approx(1.1)
    assert measured.round_ratio(2, free=True) == pytest.approx(1.5)  # between its neighbours
    assert measured.round_ratio(4, free=True) == pytest.approx(2.3)
    assert measured.round_ratio(8, free=True) == pytest.approx(3.6)  # on the line through the last


def test_a_longer_draft_never_costs_less_nor_more_than_its_tokens_alone() -> None:
    measured = Costs()
    measured.passed(1, 0.01)
    for _ in range(5):
        measured.passed(3, 0.5)
        measured.passed(4, 0.001)
    found = [measured.round_ratio(length, free=True) for length in range(MOST_DRAFTED + 1)]

    assert found == sorted(found)
    assert all(ratio <= 1 + length for length, ratio in enumerate(found))


def test_what_a_length_cost_long_ago_is_forgotten() -> None:
    measured = costs(slope=0.2, draft_ratio=0.5)
    for _ in range(30):
        measured.passed(1, 0.01)
        measured.passed(9, 0.06)
    for _ in range(60):
        measured.passed(1, 0.01)
        measured.passed(2, 0.011)

    assert measured.round_ratio(8, free=True) == pytest.approx(1.8)


def test_passes_that_something_disturbed_change_nothing() -> None:
    measured = costs(slope=0.2, draft_ratio=0.5)
    before = measured.round_ratio(4, free=False)
    for _ in range(5):
        measured.passed(5, 0.2)

    assert measured.round_ratio(4, free=False) == pytest.approx(before, rel=0.01)


def test_a_machine_that_got_slower_does_not_make_drafts_look_dear() -> None:
    measured = costs(slope=0.2, draft_ratio=0.5)
    for _ in range(60):  # as a hot processor does: every pass takes twice as long
        if measured.outdated:
            measured.passed(1, 0.02)
        measured.passed(5, 0.02 * 1.8)
    for _ in range(9 * 60):
        measured.passed(1 if measured.outdated else 5, 0.02 if measured.outdated else 0.02 * 1.8)

    assert measured.round_ratio(4, free=True) == pytest.approx(1.8, rel=0.02)


def test_a_draft_after_a_gap_is_not_taken_for_the_rest_of_a_copy() -> None:
    copying = Acceptance(Experience().variant)
    for _ in range(6):
        copying.judged(4, wrong=False)
        copying.missed()
        copying.judged(0, wrong=True)
    copying.judged(4, wrong=False)
    inside = copying.expected_tokens(4)
    copying.missed()

    assert copying.expected_tokens(4) < inside - 1


def test_the_index_tells_how_much_of_the_text_before_agrees() -> None:
    index = NgramIndex([9, 1, 2, 3, 4, 5, 6, 8, 1, 2, 3, 4])
    index.propose(2)
    four = index.agreed
    copied = NgramIndex([*range(20), *range(15)])
    copied.propose(2)
    new = NgramIndex([1, 2, 3, 4])
    new.propose(2)

    assert (four, copied.agreed, new.agreed) == (4, 9, 0)


def test_a_long_copy_promises_more_than_three_tokens_that_agree_by_chance() -> None:
    ngrams = Acceptance(Experience().ngrams)
    for _ in range(30):
        ngrams.agreed = 3
        ngrams.judged(0, wrong=True)
    ngrams.agreed = 3
    by_chance = ngrams.expected_tokens(4)
    ngrams.agreed = 9

    assert ngrams.expected_tokens(4) > by_chance + 1  # what chance loses says nothing of copies


def test_a_stream_begins_with_what_the_streams_before_it_taught() -> None:
    experience = Experience()
    fresh = Acceptance(experience.ngrams).expected_tokens(4)
    for _ in range(20):
        copying = Acceptance(experience.ngrams)
        for _ in range(5):
            copying.judged(4, wrong=False)

    assert Acceptance(experience.ngrams).expected_tokens(4) > fresh + 0.5
    assert Acceptance(Experience().ngrams).expected_tokens(4) == fresh


def test_one_stream_alone_does_not_turn_the_belief_of_all() -> None:
    experience = Experience()
    for _ in range(50):
        copying = Acceptance(experience.ngrams)
        copying.judged(1, wrong=False)
    before = Acceptance(experience.ngrams).expected_tokens(1)
    unlucky = Acceptance(experience.ngrams)
    for _ in range(10):
        unlucky.judged(0, wrong=True)

    assert unlucky.expected_tokens(1) < before - 0.3
    assert Acceptance(experience.ngrams).expected_tokens(1) > before - 0.2
