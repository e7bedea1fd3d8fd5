"""Which attention kernels a graph runs with, and in which pieces."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from worker_peer import TINY

from trimtab.worker import attention
from trimtab.worker.attention import Attention
from trimtab.worker.decoder import Place
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.memory import Held
from trimtab.worker.variant import read_variant

FLASH_OFF = "ORT_GQA_DISABLE_FLASH_ATTENTION"
FOLDER = Path(TINY / "fp32")
MARKED = FOLDER / "model.indices.onnx"
PROMPT = [(7 * n) % 500 + 4 for n in range(600)]
LONG = 1984


def test_a_marked_graph_runs_without_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FLASH_OFF, raising=False)
    with Attention(read_variant(FOLDER), MARKED, 2048).chosen():
        assert os.environ[FLASH_OFF] == "1"

    assert FLASH_OFF not in os.environ


def test_what_the_user_set_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLASH_OFF, "0")
    with Attention(read_variant(FOLDER), MARKED, 2048).chosen():
        assert os.environ[FLASH_OFF] == "1"

    assert os.environ[FLASH_OFF] == "0"


@pytest.mark.parametrize(
    ("graph", "context"),
    [("model.onnx", 2048), ("model.indices.onnx", 100_000_000), ("none.onnx", 2048)],
    ids=["not made for it", "scores too large", "no graph"],
)
def test_others_keep_it(graph: str, context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FLASH_OFF, raising=False)
    chosen = Attention(read_variant(FOLDER), FOLDER / graph, context)
    with chosen.chosen():
        assert FLASH_OFF not in os.environ

    assert chosen.longest_piece(10_000, 20_000) is None


def test_scores_of_a_piece_stay_within_their_bytes() -> None:
    facts = read_variant(FOLDER)
    heads = facts.decoder.num_attention_heads
    chosen = Attention(facts, MARKED, 2048)
    for length in (1, 64, 1000, 50_000, 180_000):
        piece = chosen.longest_piece(length, 2048)
        assert piece is not None
        assert piece % 16 == 0
        assert piece == 16 or piece * heads * length * 4 <= attention.SCORES_BYTES


def test_a_large_cache_is_read_into_in_small_pieces_however_little_is_in_it() -> None:
    chosen = Attention(read_variant(FOLDER), MARKED, 2048)

    assert chosen.longest_piece(64, 100_000_000) == 16


def test_a_prompt_in_smaller_pieces_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = KvDecoder(read_variant(FOLDER), 1, 1024, "model.indices.onnx")

    def read() -> np.ndarray:
        cache = decoder.open(Place(1024))
        logits = None
        for at in range(0, len(PROMPT), 64):
            piece = PROMPT[at : at + 64]
            logits = decoder.prefill(cache, piece, last=at + 64 >= len(PROMPT))
        assert cache.length == len(PROMPT)
        decoder.close(cache)
        assert logits is not None
        return np.array(logits)

    whole = read()
    monkeypatch.setattr(attention, "SCORES_BYTES", 200_000)

    np.testing.assert_allclose(read(), whole, atol=1e-4)


def held_around_the_last_piece() -> tuple[int, int]:
    """Memory that a process holds before the last piece of a long prompt, and after it."""
    decoder = KvDecoder(read_variant(FOLDER), 1, 2048, "model.indices.onnx")
    cache = decoder.open(Place(2048))
    prompt = (PROMPT * 4)[:LONG]
    for at in range(0, LONG - 64, 64):
        decoder.prefill(cache, prompt[at : at + 64], last=False)
    held = Held()
    before = held.resident_bytes()
    decoder.prefill(cache, prompt[-64:], last=True)
    return before, held.resident_bytes()


def test_the_scores_of_a_prompt_are_given_back_with_its_last_piece() -> None:
    context = multiprocessing.get_context("spawn")  # in this process others have left holes
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        before, after = executor.submit(held_around_the_last_piece).result()

    scores = 64 * read_variant(FOLDER).decoder.num_attention_heads * LONG * 4
    assert before - after > scores / 2
