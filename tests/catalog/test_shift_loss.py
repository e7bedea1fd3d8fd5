"""What a shift of the window costs, measured on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
import pytest
from click.testing import CliRunner

from trimtab.catalog.own_session import OwnSession
from trimtab.catalog.proof import evaluation_text
from trimtab.catalog.shift_loss import shift_loss
from trimtab.cli.root import root

TINY = Path(__file__).resolve().parent.parent / "tiny"
ROPE = {"theta": 10000.0, "rotary_dim": 16, "interleaved": False}


def request(variant: str = "fp32", **changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "folder": str(TINY / variant),
        "graph": "model.onnx",
        "threads": 1,
        "context": 2048,
        "kv": [2, 2, 16],
        "kv_dtype": "float32",
        "rope": ROPE,
    }
    return whole | changes


@pytest.fixture(scope="module")
def ids() -> np.ndarray[Any, np.dtype[np.int64]]:
    text = evaluation_text().read_text()
    return np.asarray(og.Tokenizer(str(TINY / "fp32")).encode(text), np.int64)[:3000]


def test_a_shift_with_turned_keys_costs_about_as_much_as_reading_again(ids: Any) -> None:
    turned = shift_loss(request(), ids)
    again = shift_loss(request(rope=None), ids)

    assert turned is not None
    assert again is not None
    assert (turned["shift_by"], again["shift_by"]) == ("turned", "read again")
    assert 0 < float(turned["shift_mean_kl"]) < 0.5
    assert float(turned["shift_mean_kl"]) < 2 * float(again["shift_mean_kl"])


def test_keys_that_are_turned_by_a_wrong_base_cost_much_more(ids: Any) -> None:
    right = shift_loss(request(), ids)
    wrong = shift_loss(request(rope=ROPE | {"theta": 500.0}), ids)

    assert right is not None
    assert wrong is not None
    assert float(wrong["shift_mean_kl"]) > 2 * float(right["shift_mean_kl"])


def test_a_text_that_is_too_short_says_nothing(ids: Any) -> None:
    assert shift_loss(request(), ids[:150]) is None


def test_a_session_reads_on_from_where_its_length_says(ids: Any) -> None:
    session = OwnSession(request(), "model.onnx", 128)
    session.read(ids[:60])
    first = session.read(ids[60:64])
    session.length = 60
    second = session.read(ids[60:64])

    assert np.array_equal(first, second)
    assert session.unknown_inputs == []


def test_verify_tells_what_a_shift_costs() -> None:
    told = CliRunner().invoke(root, ["models", "verify", "--models", str(TINY), "--json"])
    verdicts = json.loads(told.stdout)["variants"]

    assert told.exit_code == 0
    assert all(one["shift"]["shift_by"] == "turned" for one in verdicts)
    assert all(one["shift"]["shift_window"] == 1024 for one in verdicts)
