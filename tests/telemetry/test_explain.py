"""Decisions in sentences."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from trimtab.domain.decisions import (
    Decision,
    Direction,
    Grounds,
    Outcome,
    Prediction,
    Rejected,
    Source,
    Trigger,
)
from trimtab.domain.knobs import KvPlacement, OperatingPoint
from trimtab.errors import StateError
from trimtab.telemetry.explain import explain
from trimtab.telemetry.words import speed_words

MIB = 2**20
INT8, INT4 = OperatingPoint("int8", 4096), OperatingPoint("int4", 4096)
BASE = Decision(
    id=7,
    at_s=1.0,
    direction=Direction.DOWN,
    trigger=Trigger("memory.available", 480 * MIB, 512 * MIB),
    source=INT8,
    target=INT4,
    predicted=None,
    runner_up=None,
    excluded=(),
    policy="balanced",
    revision="abc",
)
AT_S = datetime.datetime(2026, 3, 1, 14, 2, 31, tzinfo=datetime.UTC).timestamp()


def told(**changes: Any) -> str:
    record = msgspec.to_builtins(replace(BASE, **changes)) | {"wall_s": AT_S}
    return explain(record, datetime.UTC)


def test_a_step_down_tells_when_what_and_why() -> None:
    assert told() == (
        "14:02:31 Stepped down from int8 to int4: 480 MiB of memory were available, "
        "under the limit of 512 MiB."
    )


def test_how_long_a_condition_held_is_told() -> None:
    trigger = Trigger("temperature.max", 82.4, 80.0, for_s=5.0)

    assert told(trigger=trigger).endswith(
        "the hottest zone stood at 82 °C, over the limit of 80 °C, for 5 s."
    )


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (replace(INT8, context=2048), "the context from 4096 to 2048 tokens"),
        (replace(INT8, pace_ratio=0.5), "the pace from 100% to 50%"),
        (replace(INT8, threads=2), "the threads from 1 to 2"),
        (
            replace(INT8, kv_placement=KvPlacement.DISK),
            "the place of KV from memory to disk",
        ),
        (replace(INT4, context=2048), "from int8, 4096 tokens to int4, 2048 tokens"),
    ],
)
def test_what_moved_is_named(target: OperatingPoint, words: str) -> None:
    assert f"Stepped down {words}:" in told(target=target)


def test_prediction_runner_up_and_outcome_follow() -> None:
    text = told(
        predicted=Prediction(300 * MIB, 400 * MIB, 730 * MIB, 21.4, None, 0.97),
        runner_up=Rejected(replace(INT8, context=1024), "it would leave 90 MiB"),
        outcome=Outcome("done", 1.24, 480 * MIB, 731 * MIB),
    )

    assert (
        "Expected: a worker of 300 MiB, 730 MiB left available, "
        "21 tokens/s (first principles, ± 50 %), quality 0.970" in text
    )
    assert "Next best was int8, 1024 tokens: it would leave 90 MiB." in text
    assert text.endswith("It took 1.2 s; available memory went from 480 MiB to 731 MiB.")


def test_what_the_worker_turned_out_to_hold_and_do_stands_beside_what_was_expected() -> None:
    outcome = Outcome("done", 1.2, 480 * MIB, 731 * MIB, worker_bytes=310 * MIB, decode_tps=19.4)

    assert told(outcome=outcome).endswith(
        "It took 1.2 s; available memory went from 480 MiB to 731 MiB; "
        "the worker holds 310 MiB and writes 19 tokens/s."
    )


def test_the_outcome_of_a_step_for_heat_speaks_of_temperature() -> None:
    trigger = Trigger("temperature.max", 82.0, 80.0)
    outcome = Outcome(
        "done", 0.01, 480 * MIB, 481 * MIB, celsius_before=82.0, celsius_after=78.6, settled_s=30.0
    )
    paced = replace(INT8, pace_ratio=0.8)

    cooler = told(trigger=trigger, target=paced, outcome=outcome)
    same = told(trigger=trigger, target=paced, outcome=replace(outcome, celsius_after=82.1))

    assert cooler.endswith("It took 10 ms; the hottest zone went from 82 °C to 79 °C within 30 s.")
    assert same.endswith("It took 10 ms; the hottest zone stayed at 82 °C.")


def test_an_outcome_that_was_cut_short_says_so() -> None:
    outcome = Outcome("done", 0.1, 480 * MIB, 500 * MIB, settled_s=0.2)

    assert told(direction=Direction.RELIEF, target=INT8, outcome=outcome).endswith(
        "available memory went from 480 MiB to 500 MiB; the next decision came 200 ms later."
    )
    assert told(outcome=Outcome("superseded", 0.0)).endswith("A later decision took its place.")


def test_a_failure_tells_its_reason() -> None:
    outcome = Outcome("failed", 0.2, reason="the worker ran out of memory")

    assert told(outcome=outcome).endswith("It failed after 200 ms: the worker ran out of memory.")


def test_starts_parks_and_holds_have_their_own_words() -> None:
    parked = OperatingPoint(None, 0, 0)
    words = Trigger("demand", text="a request is waiting")

    assert "Started int8, 4096 tokens: a request is waiting." in told(
        direction=Direction.START, source=parked, target=INT8, trigger=words
    )
    assert "Parked int8, nothing is loaded:" in told(direction=Direction.PARK, target=parked)
    assert "Kept int8, 4096 tokens:" in told(direction=Direction.HOLD, target=INT8)
    assert "Had the youngest conversations wait and kept int8, 4096 tokens:" in told(
        direction=Direction.GIVE_WAY, target=INT8
    )
    assert "wait and kept parked" in told(
        direction=Direction.GIVE_WAY, source=parked, target=parked
    )


@pytest.mark.parametrize("record", [{}, {"id": "x"}, {"id": 1, "direction": "sideways"}])
def test_what_is_no_record_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="no decision record"):
        explain(record)


@pytest.mark.parametrize(
    ("grounds", "told"),
    [
        (Grounds(Source.FITTED, 0.05), "(from the profile, ± 5 %)"),
        (Grounds(Source.ASSUMED, 0.5), "(first principles, ± 50 %)"),
        (
            Grounds(Source.BUILD, 0.3, seen_ratio=0.5),
            "(as seen at its build, ± 30 %; corrected to 50 % by what was seen)",
        ),
    ],
)
def test_a_predicted_speed_says_what_it_rests_on(grounds: Grounds, told: str) -> None:
    predicted = Prediction(300 * MIB, 400 * MIB, 730 * MIB, 21.4, None, 0.97, grounds=grounds)

    assert speed_words(predicted) == f"21 tokens/s {told}"


@pytest.mark.parametrize(
    ("count", "reason", "sentence"),
    [
        (1.0, "it is late", "14:02:31 Refused a request: it is late."),
        (3.0, "as for the last one, it is late", "14:02:31 Refused 3 requests: as for the last "),
    ],
)
def test_refused_requests_are_told_with_how_many_and_why(
    count: float, reason: str, sentence: str
) -> None:
    trigger = Trigger("requests.shed", count, text=reason)

    assert told(direction=Direction.SHED, target=INT8, trigger=trigger).startswith(sentence)
