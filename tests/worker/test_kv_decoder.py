"""The decoder that owns its KV cache, on the tiny model, beside the Generator."""

from __future__ import annotations

import dataclasses
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from quantized_kv import quantize_kv
from worker_peer import TINY

from trimtab.catalog.indices import write_indices_graph
from trimtab.errors import EngineError
from trimtab.worker import choice as choice_module
from trimtab.worker import kv_decoder, kv_graph
from trimtab.worker import weave as weave_module
from trimtab.worker.choice import choose_decoder
from trimtab.worker.decoder import Cache, Decoder, Place
from trimtab.worker.generator import GeneratorCache, GeneratorDecoder
from trimtab.worker.kv_cache import KvCache, new_segment
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.kv_graph import UnsuitableError, kv_type, refuse_ignored_window
from trimtab.worker.mapping import Mapping, reserve
from trimtab.worker.variant import (
    DecoderFacts,
    SessionOptions,
    SlidingWindow,
    VariantFacts,
    read_variant,
)
from trimtab.workers.protocol import Load

PROMPT = [(7 * n) % 500 + 4 for n in range(150)]
CONTEXT = 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fp32 variant with the second graph beside the first."""
    copy = tmp_path_factory.mktemp("indices") / "fp32"
    shutil.copytree(TINY / "fp32", copy)
    write_indices_graph(copy, "model.onnx", 16)
    return copy


@pytest.fixture(scope="module", params=["", "model.indices.onnx"], ids=["plain", "indices"])
def kv(folder: Path, request: pytest.FixtureRequest) -> KvDecoder:
    return KvDecoder(read_variant(folder), 1, CONTEXT, request.param)


@pytest.fixture(scope="module")
def generator() -> GeneratorDecoder:
    return GeneratorDecoder(read_variant(TINY / "fp32"), 1)


@pytest.fixture
def opened(kv: KvDecoder) -> Iterator[list[KvCache]]:
    """Caches to close after the test."""
    caches: list[KvCache] = []
    yield caches
    for cache in caches:
        kv.close(cache)


def prefilled(decoder: Decoder, prompt: list[int], place: Place) -> tuple[Cache, NDArray[Any]]:
    cache = decoder.open(place)
    for at in range(cache.length, len(prompt), 64):
        piece = prompt[at : at + 64]
        logits = decoder.prefill(cache, piece, last=at + 64 >= len(prompt))
    assert logits is not None
    return cache, logits.copy()


def greedy(decoder: Decoder, cache: Cache, token: int, count: int) -> list[int]:
    tokens = [token]
    for _ in range(count):
        (logits,) = decoder.step([(cache, tokens[-1])])
        assert not isinstance(logits, EngineError)
        tokens.append(int(logits.argmax()))
    return tokens


def test_both_decoders_say_the_same(kv: KvDecoder, generator: GeneratorDecoder) -> None:
    answers = []
    for decoder in (kv, generator):
        cache, logits = prefilled(decoder, PROMPT, Place(CONTEXT))
        answers.append((greedy(decoder, cache, int(logits.argmax()), 200), logits))
        decoder.close(cache)

    assert answers[0][0] == answers[1][0]
    np.testing.assert_allclose(answers[0][1], answers[1][1], atol=1e-4)


def test_only_the_last_piece_gives_logits(kv: KvDecoder, opened: list[KvCache]) -> None:
    cache = kv.open(Place(CONTEXT))
    opened.append(cache)

    assert kv.prefill(cache, PROMPT[:64], last=False) is None
    assert cache.length == 64


def test_a_batch_is_bit_equal_to_one_after_the_other(kv: KvDecoder, opened: list[KvCache]) -> None:
    prompts = [PROMPT[:20], PROMPT[:150], PROMPT[40:90]]

    def run(together: bool) -> list[list[NDArray[Any]]]:
        caches = []
        for prompt in prompts:
            cache, _ = prefilled(kv, prompt, Place(CONTEXT))
            caches.append(cache)
        steps = []
        for token in range(10, 40):
            batch = [(cache, token + row) for row, cache in enumerate(caches)]
            parts = [batch] if together else [[one] for one in batch]
            steps.append([np.array(answer) for part in parts for answer in kv.step(part)])
        for cache in caches:
            kv.close(cache)
        return steps

    for one, other in zip(run(together=True), run(together=False), strict=True):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)


def test_the_batch_may_be_another_one_at_each_step(kv: KvDecoder, opened: list[KvCache]) -> None:
    alone = []
    for prompt in (PROMPT[:20], PROMPT[:60], PROMPT[:100]):
        cache, logits = prefilled(kv, prompt, Place(CONTEXT))
        alone.append(greedy(kv, cache, int(logits.argmax()), 30))
        kv.close(cache)
    states: list[tuple[Cache, list[int]]] = []
    for prompt in (PROMPT[:20], PROMPT[:60], PROMPT[:100]):
        cache, logits = prefilled(kv, prompt, Place(CONTEXT))
        states.append((cache, [int(logits.argmax())]))
    who = [(0, 1), (0, 1, 2), (1, 2), (2,), (0, 2)]
    for turn in range(200):
        rows = [row for row in who[turn % len(who)] if len(states[row][1]) <= 30]
        answers = kv.step([(states[row][0], states[row][1][-1]) for row in rows])
        for row, logits in zip(rows, answers, strict=True):
            assert not isinstance(logits, EngineError)
            states[row][1].append(int(logits.argmax()))
    for cache, _ in states:
        kv.close(cache)

    assert [tokens for _, tokens in states] == alone


def test_caches_of_different_capacity_are_computed_apart(kv: KvDecoder) -> None:
    small, logits = prefilled(kv, PROMPT[:20], Place(CONTEXT))
    expected = greedy(kv, small, int(logits.argmax()), 8)
    kv.rewind(small, 20)
    large, _ = prefilled(kv, PROMPT[:20], Place(1500))
    tokens = [[expected[0]], [expected[0]]]
    for _ in range(8):
        pairs = [(small, tokens[0][-1]), (large, tokens[1][-1])]
        for row, answer in enumerate(kv.step(pairs)):
            assert not isinstance(answer, EngineError)
            tokens[row].append(int(answer.argmax()))
    kv.close(small)
    kv.close(large)

    assert tokens == [expected, expected]


def test_one_cache_at_its_end_does_not_stop_the_others(kv: KvDecoder) -> None:
    full, _ = prefilled(kv, PROMPT[:20], Place(CONTEXT))
    other, _ = prefilled(kv, PROMPT[:20], Place(CONTEXT))
    kv_full = full
    assert isinstance(kv_full, KvCache)
    kv_full.length = kv_full.capacity
    refused, logits = kv.step([(full, 5), (other, 5)])
    kv.close(full)
    kv.close(other)

    assert isinstance(refused, EngineError)
    assert not isinstance(logits, EngineError)


def test_going_back_is_lowering_a_number(kv: KvDecoder, opened: list[KvCache]) -> None:
    cache, logits = prefilled(kv, PROMPT, Place(CONTEXT))
    assert isinstance(cache, KvCache)
    opened.append(cache)
    first = greedy(kv, cache, int(logits.argmax()), 20)
    kv.rewind(cache, len(PROMPT))

    assert greedy(kv, cache, int(logits.argmax()), 20) == first
    with pytest.raises(EngineError):
        kv.rewind(cache, cache.length + 1)


def test_verifying_gives_the_logits_after_each_token(kv: KvDecoder) -> None:
    cache, _ = prefilled(kv, PROMPT, Place(CONTEXT))
    tokens = [9, 8, 7, 6]
    stepwise = [np.array(kv.step([(cache, token)])[0]) for token in tokens]
    kv.rewind(cache, len(PROMPT))
    at_once = kv.verify(cache, tokens).copy()
    kv.close(cache)

    np.testing.assert_allclose(at_once, stepwise, atol=1e-4)


def test_a_draft_writes_in_the_same_cache_and_leaves_no_trace(folder: Path) -> None:
    def choose(logits: NDArray[Any], ahead: int) -> int:
        return int(logits.argmax())

    decoder = KvDecoder(read_variant(folder), 1, CONTEXT, "model.indices.onnx")
    decoder.add_draft(decoder.load_draft(read_variant(TINY / "int4"), 1, ""))
    cache, logits = prefilled(decoder, PROMPT, Place(CONTEXT))
    token = int(logits.argmax())
    plain = greedy(decoder, cache, token, 12)
    decoder.rewind(cache, len(PROMPT))
    drafted = decoder.propose(cache, token, 5, choose)
    length = cache.length
    after = greedy(decoder, cache, token, 12)
    decoder.close(cache)

    assert decoder.speculation == ("off", "ngram", "draft")
    assert length == len(PROMPT)
    assert len(drafted) == 5
    assert after == plain


def test_a_draft_that_is_the_target_itself_is_always_right(folder: Path) -> None:
    decoder = KvDecoder(read_variant(folder), 1, CONTEXT)
    decoder.add_draft(decoder.load_draft(read_variant(folder), 1, ""))
    cache, logits = prefilled(decoder, PROMPT, Place(CONTEXT))
    token = int(logits.argmax())
    drafted = decoder.propose(cache, token, 8, lambda logits, ahead: int(logits.argmax()))
    said = [int(row.argmax()) for row in decoder.verify(cache, [token, *drafted])]
    decoder.close(cache)

    assert said[:8] == drafted


def test_another_process_could_go_on_from_the_segment(kv: KvDecoder) -> None:
    shape = kv.shape
    segment = new_segment(
        shape.segment_bytes(shape.aligned_capacity(CONTEXT, os.sysconf("SC_PAGE_SIZE")))
    )
    first, logits = prefilled(kv, PROMPT, Place(CONTEXT, segment))
    tokens = greedy(kv, first, int(logits.argmax()), 40)
    kv.close(first)
    second = kv.open(Place(CONTEXT, segment, valid=len(PROMPT) + 10))
    rest = greedy(kv, second, tokens[10], 30)
    kv.close(second)
    os.close(segment)

    assert tokens[10:] == rest


def test_another_variant_goes_on_from_the_segment(kv: KvDecoder) -> None:
    segment = new_segment(kv.shape.segment_bytes(CONTEXT))
    first, _ = prefilled(kv, PROMPT, Place(CONTEXT, segment))
    kv.close(first)
    other = KvDecoder(read_variant(TINY / "int8"), 1, CONTEXT)
    handed = other.open(Place(CONTEXT, segment, valid=len(PROMPT)))
    (carried,) = other.step([(handed, 9)])
    own, _ = prefilled(other, PROMPT, Place(CONTEXT))
    (recomputed,) = other.step([(own, 9)])
    other.close(handed)
    other.close(own)
    os.close(segment)
    assert not isinstance(carried, EngineError)
    assert not isinstance(recomputed, EngineError)
    difference = float(np.abs(carried - recomputed).max())

    assert int(carried.argmax()) == int(recomputed.argmax())
    assert difference < 0.2 * float(np.ptp(recomputed))


def test_memory_is_committed_as_the_conversation_grows(kv: KvDecoder) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    cache = kv.open(Place(2048))
    assert isinstance(cache, KvCache)
    before = cache.committed_bytes
    kv.prefill(cache, PROMPT, last=True)
    after = cache.committed_bytes
    expected = kv.shape.committed_bytes(len(PROMPT), cache.capacity, page)
    kv.close(cache)

    assert (before, after) == (0, expected)
    assert kv.committed_bytes == 0


def test_a_segment_may_be_a_file_on_a_disk(kv: KvDecoder, tmp_path: Path) -> None:
    expected, logits = prefilled(kv, PROMPT, Place(CONTEXT))
    tokens = greedy(kv, expected, int(logits.argmax()), 20)
    kv.close(expected)
    with (tmp_path / "segment").open("wb+") as file:
        size = kv.shape.segment_bytes(CONTEXT)
        os.posix_fallocate(file.fileno(), 0, size)
        cache, logits = prefilled(kv, PROMPT, Place(CONTEXT, file.fileno()))
        said = greedy(kv, cache, int(logits.argmax()), 20)
        memory = kv.committed_bytes
        kv.close(cache)

    assert said == tokens
    assert memory in (0, size)  # all of it where the folder is in memory itself


def test_a_closed_cache_leaves_nothing_mapped(kv: KvDecoder) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("trimtab-kv")

    caches = [prefilled(kv, PROMPT[:10], Place(CONTEXT))[0] for _ in range(3)]
    kv.step([(cache, 5) for cache in caches])
    during = mapped()
    for cache in caches:
        kv.close(cache)
        kv.close(cache)

    assert during > 3
    assert mapped() == 0
    with pytest.raises(EngineError, match="closed"):
        kv.prefill(caches[0], [5], last=True)


def test_a_segment_that_cannot_be_held_leaves_nothing_mapped(
    kv: KvDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> int:
        raise OSError(24, "Too many open files")

    before = Path("/proc/self/maps").read_text().count("trimtab-kv")
    monkeypatch.setattr(os, "dup", refused)
    with pytest.raises(EngineError, match="Too many open files"):
        kv.open(Place(CONTEXT))

    assert Path("/proc/self/maps").read_text().count("trimtab-kv") == before


def test_a_variant_for_other_hardware_is_left_to_the_generator(folder: Path) -> None:
    facts = read_variant(folder)
    options = SessionOptions([{"cuda": {"enable_cuda_graph": "0"}}, {"cpu": {}}])
    decoder = msgspec.structs.replace(facts.decoder, session_options=options)
    with pytest.raises(UnsuitableError, match="built for cuda"):
        KvDecoder(dataclasses.replace(facts, decoder=decoder), 1, CONTEXT)


@pytest.mark.parametrize(
    ("size", "valid", "says"),
    [
        (1000, 0, "another model"),
        (0, 0, "another model"),
        (512 * 64, 10, "not 512"),
        (512 * 512, 513, "512 positions, not 513"),
    ],
)
def test_a_segment_that_does_not_fit_is_refused(
    kv: KvDecoder, size: int, valid: int, says: str
) -> None:
    segment = new_segment(size)
    try:
        with pytest.raises(EngineError, match=says):
            kv.open(Place(CONTEXT, segment, valid))
    finally:
        os.close(segment)


def test_a_segment_cannot_be_resized_by_anybody() -> None:
    segment = new_segment(8192)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(segment, 4096)
    finally:
        os.close(segment)


def decoder_facts(**fields: Any) -> DecoderFacts:
    return msgspec.structs.replace(read_variant(TINY / "fp32").decoder, **fields)


def graph_inputs(**changes: Any) -> dict[str, Any]:
    inputs = {
        name: SimpleNamespace(type="tensor(int64)", shape=["batch", "n"])
        for name in ("input_ids", "attention_mask")
    }
    for layer in range(2):
        for side in ("key", "value"):
            inputs[f"past_key_values.{layer}.{side}"] = SimpleNamespace(
                type="tensor(float)", shape=["batch", 2, "past", "size"]
            )
    return {name: entry for name, entry in (inputs | changes).items() if entry is not None}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"position_ids": SimpleNamespace(type="tensor(int64)", shape=[1, "n"])}, "position_ids"),
        ({"past_key_values.1.key": None}, "lacks inputs"),
        (
            {"past_key_values.0.key": SimpleNamespace(type="tensor(float)", shape=[1, 3, "n", 9])},
            "differ",
        ),
        (
            {
                f"past_key_values.{n}.{side}": SimpleNamespace(
                    type="tensor(double)", shape=[1, 2, "n", 9]
                )
                for n in range(2)
                for side in ("key", "value")
            },
            "tensor.double.",
        ),
    ],
)
def test_a_graph_with_unknown_inputs_is_left_to_the_generator(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsuitableError, match=says):
        kv_type(decoder_facts(), graph_inputs(**changes))


@pytest.mark.parametrize(("bits", "token_bytes"), [(8, 128), (4, 64)])
def test_quantized_kv_is_served_with_the_tokens_of_the_generator(
    tmp_path: Path, bits: int, token_bytes: int
) -> None:
    quantize_kv(TINY / "int8", tmp_path / "v", PROMPT, bits)
    facts = read_variant(tmp_path / "v")
    own, theirs = KvDecoder(facts, 1, CONTEXT), GeneratorDecoder(facts, 1)
    answers = []
    for decoder in (own, theirs):
        cache, logits = prefilled(decoder, PROMPT, Place(CONTEXT))
        answers.append(greedy(decoder, cache, int(logits.argmax()), 100))
        decoder.close(cache)
    one, _ = prefilled(own, PROMPT, Place(CONTEXT))
    other, _ = prefilled(own, PROMPT[:50], Place(CONTEXT))
    (alone,) = own.step([(one, 9)])
    own.rewind(one, len(PROMPT))
    together, _ = own.step([(one, 9), (other, 9)])
    own.close(one)
    own.close(other)

    assert own.shape.token_bytes == token_bytes
    assert answers[0] == answers[1]
    np.testing.assert_array_equal(alone, together)


def test_quantized_kv_is_as_large_as_its_graph_says() -> None:
    packed = SimpleNamespace(type="tensor(uint8)", shape=["batch", 2, "past", 8])
    changes = {f"past_key_values.{n}.{side}": packed for n in range(2) for side in ("key", "value")}
    kv = kv_type(decoder_facts(), graph_inputs(**changes))

    assert (kv.heads, kv.size, kv.shape.token_bytes) == (2, 8, 2 * 2 * 2 * 8)


@pytest.mark.parametrize(
    ("window", "refused"),
    [
        (None, False),
        (SlidingWindow(window_size=4096), False),
        (SlidingWindow(window_size=100), True),
        (SlidingWindow(window_size=100, layers=[0, 2]), False),
    ],
)
def test_a_window_that_the_graph_ignores_is_refused(
    window: SlidingWindow | None, refused: bool
) -> None:
    facts = read_variant(TINY / "fp32")
    windowed = VariantFacts(
        folder=facts.folder,
        family=facts.family,
        vocabulary=facts.vocabulary,
        context=facts.context,
        eos=facts.eos,
        bos=facts.bos,
        decoder=decoder_facts(sliding_window=window),
    )
    if refused:
        with pytest.raises(UnsuitableError, match="window of 100"):
            refuse_ignored_window(windowed)
    else:
        refuse_ignored_window(windowed)


def test_what_the_kv_decoder_cannot_serve_goes_to_the_generator_with_the_reason(
    tmp_path: Path,
) -> None:
    shutil.copytree(TINY / "fp32", tmp_path / "v")
    path = tmp_path / "v/genai_config.json"
    config = msgspec.json.decode(path.read_bytes())
    config["model"]["decoder"]["sliding_window"] = {"window_size": 64, "layers": []}
    path.write_bytes(msgspec.json.encode(config))
    facts = read_variant(tmp_path / "v")
    for wanted in ("auto", "kv"):
        choice = choose_decoder(facts, Load(folder=str(tmp_path / "v"), threads=1, decoder=wanted))

        assert choice.decoder.name == "generator"
        assert "window of 64 tokens" in choice.reason


def test_what_was_loaded_in_vain_is_gone_before_the_generator_loads_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions: list[weakref.ref[Any]] = []
    made = kv_graph.ort.InferenceSession
    there_at_the_second_load: list[weakref.ref[Any]] = []

    def remembered(*given: Any, **named: Any) -> Any:
        session = made(*given, **named)
        sessions.append(weakref.ref(session))
        return session

    def unsuitable(*_: object) -> None:
        raise UnsuitableError("another cache")

    def generator(*given: Any) -> GeneratorDecoder:
        there_at_the_second_load.extend(one for one in sessions if one() is not None)
        return GeneratorDecoder(*given)

    monkeypatch.setattr(kv_graph.ort, "InferenceSession", remembered)
    monkeypatch.setattr(kv_graph, "kv_type", unsuitable)
    monkeypatch.setattr(choice_module, "GeneratorDecoder", generator)
    facts = read_variant(TINY / "fp32")
    chosen = choose_decoder(facts, Load(folder=str(TINY / "fp32"), threads=1))

    assert (chosen.decoder.name, chosen.reason) == ("generator", "another cache")
    assert len(sessions) == 1
    assert not there_at_the_second_load


def two_of(kv: KvDecoder, opened: list[KvCache]) -> list[tuple[Cache, int]]:
    """A batch of two conversations."""
    batch: list[tuple[Cache, int]] = []
    for at in (1, 2):
        cache, _ = prefilled(kv, [*range(5, 20 + at)], Place(CONTEXT))
        assert isinstance(cache, KvCache)
        opened.append(cache)
        batch.append((cache, 9))
    return batch


def test_where_memory_is_short_for_a_batch_each_goes_on_alone(
    kv: KvDecoder, opened: list[KvCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> None:
        raise MemoryError

    batch, alone = two_of(kv, opened), []
    for cache, token in batch:
        (logits,) = kv.step([(cache, token)])
        assert not isinstance(logits, EngineError)
        alone.append(logits.copy())
        kv.rewind(cache, cache.length - 1)
    monkeypatch.setattr(kv_decoder, "Weave", short)
    together = kv.step(batch)
    np.testing.assert_array_equal(np.array(together), np.array(alone))
    monkeypatch.setattr(kv, "_run", short)

    assert [type(one) for one in kv.step(batch)] == [EngineError, EngineError]


def test_a_batch_for_which_memory_is_short_leaves_nothing_mapped(
    kv: KvDecoder, opened: list[KvCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    arenas: list[Mapping] = []

    def recorded(size: int) -> Mapping:
        arenas.append(reserve(size))
        return arenas[-1]

    def short(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(weave_module, "reserve", recorded)
    monkeypatch.setattr(weave_module, "Mask", short)
    answers = kv.step(two_of(kv, opened))

    assert not [one for one in answers if isinstance(one, EngineError)]
    assert [arena.address for arena in arenas] == [0]


def test_where_memory_is_short_for_one_conversation_it_ends_alone(
    kv: KvDecoder, opened: list[KvCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short:
        def __array__(self, *_: object, **__: object) -> NDArray[Any]:
            raise MemoryError

    batch = two_of(kv, opened)
    runs: Iterator[list[Any]] = iter([[Short()], [np.ones(4, np.float32)]])

    def short(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kv_decoder, "Weave", short)
    monkeypatch.setattr(kv, "_run", lambda *_: next(runs))
    first, second = kv.step(batch)

    assert isinstance(first, EngineError)
    assert first.code == "out_of_memory"
    np.testing.assert_array_equal(np.asarray(second), np.ones(4, np.float32))


def test_where_memory_is_short_for_one_of_the_generators_it_ends_alone(
    generator: GeneratorDecoder,
) -> None:
    class Short:
        def append_tokens(self, _: object) -> None:
            raise MemoryError

    other, _ = prefilled(generator, PROMPT[:20], Place(CONTEXT))
    first, second = generator.step([(GeneratorCache(Short()), 9), (other, 9)])

    assert isinstance(first, EngineError)
    assert first.code == "out_of_memory"
    assert not isinstance(second, EngineError)
