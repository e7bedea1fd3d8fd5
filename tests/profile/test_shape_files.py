"""Shapes from files: config.json and GGUF headers, whole and broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import UsageError
from trimtab.profile.known_models import KNOWN
from trimtab.profile.shape_readers import parse_config, read_shape

LLAMA: dict[str, Any] = {  # the fields of Llama-3.1-8B's config.json that count here
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}


def gguf(fields: dict[str, Any], tokens: int = 0, tensors: tuple[str, ...] = ()) -> bytes:
    """A GGUF header as llama.cpp writes it (version 3, little endian)."""
    count = len(fields) + (1 if tokens else 0)
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), count)]
    for key, value in fields.items():
        parts.append(struct.pack("<Q", len(key)) + key.encode())
        if isinstance(value, str):
            parts.append(struct.pack("<IQ", 8, len(value)) + value.encode())
        else:
            parts.append(struct.pack("<II", 4, value))
    if tokens:
        key = "tokenizer.ggml.tokens"
        parts.append(struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", 9))
        parts.append(struct.pack("<IQ", 8, tokens) + struct.pack("<Q", 1) * 0)
        parts += [struct.pack("<Q", 1) + b"x"] * tokens
    for name in tensors:
        parts.append(struct.pack("<Q", len(name)) + name.encode())
        parts.append(struct.pack("<IQQIQ", 2, 576, 49152, 8, 0))
    return b"".join(parts)


SMOLLM = {
    "general.architecture": "llama",
    "general.name": "SmolLM2 135M",
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.context_length": 8192,
}


def test_a_config_gives_the_shape_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))

    shape = read_shape(tmp_path)

    known = KNOWN["llama-3.1-8b"]
    assert shape.parameters == known.parameters
    assert shape.kv_bytes_per_token("float16") == known.kv_bytes_per_token("float16")
    assert shape.assumed == ()


def test_a_gguf_header_gives_the_shape_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "smol.gguf"
    path.write_bytes(gguf(SMOLLM, tokens=49152))

    shape = read_shape(path)

    assert shape.parameters == KNOWN["smollm2-135m"].parameters
    assert shape.name == "SmolLM2 135M"


@pytest.mark.parametrize(
    ("tensors", "tied", "told"),
    [
        (("token_embd.weight", "output.weight"), False, 0),
        (("token_embd.weight",), True, 0),
        ((), True, 1),
    ],
)
def test_a_gguf_says_by_its_tensors_whether_the_output_has_weights_of_its_own(
    tmp_path: Path, tensors: tuple[str, ...], tied: bool, told: int
) -> None:
    path = tmp_path / "smol.gguf"
    path.write_bytes(gguf(SMOLLM, tokens=49152, tensors=tensors))

    shape = read_shape(path)

    assert shape.tied is tied
    assert len(shape.assumed) == told


def test_the_first_part_of_a_gguf_in_parts_says_what_is_assumed(tmp_path: Path) -> None:
    path = tmp_path / "smol-00001-of-00002.gguf"
    header = gguf(SMOLLM | {"split.count": 2}, tokens=9, tensors=("token_embd.weight",))
    path.write_bytes(header)

    shape = read_shape(path)

    assert shape.assumed == ("this file doesn't say whether the output is tied: taken as tied",)


def test_the_text_part_of_a_model_that_sees_is_what_counts() -> None:
    shape = parse_config({"model_type": "gemma3", "text_config": LLAMA}, "config.json")

    assert shape.layers == 32


def test_experts_are_read_with_those_at_work() -> None:
    values = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}

    shape = parse_config(values, "config.json")

    assert shape.experts is not None
    assert (shape.experts.count, shape.experts.active) == (8, 2)
    assert shape.active_parameters < shape.parameters / 3


def test_a_window_that_the_configuration_doesnt_use_is_none() -> None:
    values = LLAMA | {"sliding_window": 4096}

    assert parse_config(values, "c").window == 4096
    assert parse_config(values | {"use_sliding_window": False}, "c").window == 0


def test_an_unknown_architecture_says_what_is_assumed() -> None:
    shape = parse_config(LLAMA | {"model_type": "zebra"}, "config.json")

    assert shape.gated
    assert any("zebra" in text and "llama" in text for text in shape.assumed)


def test_missing_kv_heads_mean_full_attention_and_that_is_said() -> None:
    values = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}

    shape = parse_config(values, "config.json")

    assert shape.kv_heads == shape.heads
    assert any("full attention" in text for text in shape.assumed)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden_size", None, "hidden_size: is missing"),
        ("vocab_size", None, "vocab_size: is missing"),
        ("num_hidden_layers", 10**9, "no size that a model has"),
        ("num_hidden_layers", -3, "no size that a model has"),
        ("num_attention_heads", "many", "must be a whole number"),
        ("hidden_size", 4096.5, "must be a whole number"),
        ("num_key_value_heads", 7, "can't share 7 KV heads"),
    ],
)
def test_a_bad_field_is_named_with_its_file(field: str, value: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(LLAMA | {field: value}, "models/x/config.json")

    assert words in caught.value.message
    assert "models/x/config.json" in caught.value.message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "nor JSON"),
        (b"[1, 2]", "no JSON object"),
        (b"\xff\xfe\x00", "nor JSON"),
        (b"{}", "is missing"),
        (b"GGUF", "damaged or cut off"),
        (gguf(SMOLLM)[:60], "damaged or cut off"),
        (gguf(SMOLLM, 9, ("output.weight",))[:-4], "damaged or cut off"),
        (gguf({"general.name": "x"}), "general.architecture: is missing"),
        (gguf(SMOLLM), "vocab_size: is missing"),
        (gguf(SMOLLM | {"llama.block_count": 4_000_000_000}, 4), "no size that a model has"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_words(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)

    with pytest.raises(UsageError) as caught:
        read_shape(path)

    assert words in caught.value.message


def test_a_file_that_isnt_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_shape(tmp_path / "nothing.json")
