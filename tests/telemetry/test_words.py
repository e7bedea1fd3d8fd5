"""Numbers as people read them."""

from __future__ import annotations

import pytest

from trimtab.telemetry.metrics import RequestFigures
from trimtab.telemetry.words import amount, seconds, size


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (480 * 2**20, "bytes", "480 MiB"),
        (1.5 * 2**20, "bytes", "1.5 MiB"),
        (24 * 2**30, "bytes", "24.00 GiB"),
        (20 * 2**20, "bytes/s", "20 MiB/s"),
        (82.4, "celsius", "82 °C"),
        (0.145, "ratio", "14.5 %"),
        (41.55, "tokens/s", "41.5 tokens/s"),
        (1.0, "bool", "yes"),
        (3, None, "3"),
    ],
)
def test_an_amount_is_told_with_its_unit(value: float, unit: str | None, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.32, "320 ms"),
        (1.24, "1.2 s"),
        (5.0, "5 s"),
        (90, "90 s"),
        (300, "5 min"),
        (9000, "2.5 h"),
    ],
)
def test_a_duration_is_told_as_people_say_it(value: float, text: str) -> None:
    assert seconds(value) == text


def test_nothing_is_nothing() -> None:
    assert size(0) == "0 MiB"


def test_time_per_token_leaves_out_the_first_token() -> None:
    figures = RequestFigures("chat", "stop", "int8", 2.0, 0.5, 10, 4)
    lone = RequestFigures("chat", "stop", "int8", 2.0, 0.5, 10, 1)

    assert figures.tpot_s == pytest.approx(0.5)
    assert lone.tpot_s is None
