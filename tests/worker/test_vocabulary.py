from __future__ import annotations

import json
from typing import Any

import onnxruntime_genai as og
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_peer import TINY

from trimtab.errors import LoadError
from trimtab.worker.detokenize import Detokenizer
from trimtab.worker.vocabulary import Vocabulary, parse_vocabulary

_TOKENIZER = og.Tokenizer(str(TINY / "fp32"))
_TINY = parse_vocabulary((TINY / "fp32/tokenizer.json").read_bytes(), "tokenizer.json")


def file(**fields: Any) -> bytes:
    whole = {"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}} | fields
    return json.dumps(whole).encode()


def text_of(vocabulary: Vocabulary, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(vocabulary)
    return [detokenizer.feed(token) for token in tokens]


@settings(max_examples=60)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30))
def test_tokens_of_a_text_give_the_text_back_token_by_token(text: str) -> None:
    tokens = [int(token) for token in _TOKENIZER.encode(text)]

    assert "".join(text_of(_TINY, tokens)) == text


def test_a_character_appears_whole_with_its_last_token() -> None:
    tokens = [int(token) for token in _TOKENIZER.encode("☃")]
    pieces = text_of(_TINY, tokens)

    assert len(tokens) > 1
    assert pieces == [""] * (len(tokens) - 1) + ["☃"]


def test_bytes_that_cannot_become_a_character_turn_into_a_replacement() -> None:
    first = int(_TOKENIZER.encode("☃")[0])
    letter = int(_TOKENIZER.encode("a")[0])

    assert text_of(_TINY, [first, letter]) == ["", "\ufffda"]


def test_special_and_unknown_tokens_add_no_text() -> None:
    assert text_of(_TINY, [0, 1, 2, 511_000]) == ["", "", "", ""]
    assert _TINY.name(2) == "<|im_end|>"


def test_a_sentencepiece_vocabulary_falls_back_to_bytes() -> None:
    data = file(
        model={"vocab": {"▁Hi": 0, "<0xE2>": 1, "<0x98>": 2, "<0x83>": 3, "<s>": 4, "<0xZZ>": 5}},
        added_tokens=[{"id": 4, "content": "<s>", "special": True}],
        decoder={"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]},
    )
    pieces = text_of(parse_vocabulary(data, "tokenizer.json"), [4, 0, 1, 2, 3, 5])

    assert pieces == ["", " Hi", "", "", "☃", "<0xZZ>"]


def test_a_unigram_vocabulary_is_a_list() -> None:
    data = file(model={"vocab": [["▁a", -1.0], ["b", -2.0]]}, decoder={"type": "Metaspace"})
    vocabulary = parse_vocabulary(data, "tokenizer.json")

    assert (len(vocabulary), vocabulary.text_bytes(0), vocabulary.text_bytes(1)) == (2, b" a", b"b")


def test_added_tokens_that_are_not_special_stand_for_themselves() -> None:
    data = file(added_tokens=[{"id": 7, "content": "<tool>", "special": False}])
    vocabulary = parse_vocabulary(data, "tokenizer.json")

    assert vocabulary.text_bytes(7) == b"<tool>"
    assert len(vocabulary) == 8


def test_runs_of_spaces_that_were_added_to_sentencepiece_are_spaces() -> None:
    data = file(
        model={"vocab": {"▁a": 0}},
        decoder={"type": "Replace"},
        added_tokens=[
            {"id": 1, "content": "▁▁▁▁", "special": False},
            {"id": 2, "content": "<▁>", "special": True},
        ],
    )
    vocabulary = parse_vocabulary(data, "tokenizer.json")

    assert text_of(vocabulary, [0, 1, 0]) == [" a", "    ", " a"]
    assert vocabulary.name(2) == "<▁>"


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"{", "model_damaged", "tokenizer.json is damaged"),
        (b'{"decoder": null}', "model_damaged", "model"),
        (file(decoder={"type": "WordPiece"}), "tokenizer_unsupported", "WordPiece"),
        (file(decoder=None), "tokenizer_unsupported", "none"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused_with_the_reason(
    data: bytes, code: str, says: str
) -> None:
    with pytest.raises(LoadError) as refused:
        parse_vocabulary(data, "tokenizer.json")

    assert refused.value.code == code
    assert says in refused.value.message
