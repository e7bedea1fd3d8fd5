"""Signals that the owner brings."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from sensor_trees import Ticker, Tree

from trimtab.domain.readings import Quality, Unit
from trimtab.errors import UsageError
from trimtab.sensors import NumberFile, SensorConfig
from trimtab.sensors.custom import PushedSignals

Start = Callable[[SensorConfig], Ticker]


def test_a_number_in_a_file_becomes_a_signal_in_its_unit(tree: Tree, start: Start) -> None:
    file = tree.put("sys/room", "21500 since noon\n")
    entry = NumberFile("room", file, Unit.CELSIUS, scale=0.001, low=-20, high=60)
    ticker = start(tree.config(files=(entry,)))

    reading = ticker.readings()["custom.room"]

    assert (reading.value, reading.quality) == (21.5, Quality.GOOD)
    assert ticker.suite.unit_of("custom.room") is Unit.CELSIUS


@pytest.mark.parametrize(
    ("text", "quality", "reason"),
    [
        ("99000\n", Quality.SUSPECT, "99 is above the declared most of 60"),
        ("warm\n", Quality.FAILED, "begins with 'warm', no number"),
        ("\n", Quality.FAILED, "is empty"),
        ("nan\n", Quality.FAILED, "nan is no number"),
        ("-inf\n", Quality.FAILED, "-inf is no number"),
    ],
)
def test_a_file_without_a_sound_number_says_what_is_wrong(
    tree: Tree, start: Start, text: str, quality: Quality, reason: str
) -> None:
    file = tree.put("sys/room", text)
    entry = NumberFile("room", file, Unit.CELSIUS, scale=0.001, low=-20, high=60)

    reading = start(tree.config(files=(entry,))).readings()["custom.room"]

    assert reading.quality is quality
    assert reason in reading.reason


def test_a_file_that_is_not_there_is_an_absent_signal(tree: Tree, start: Start) -> None:
    entry = NumberFile("room", tree.sys / "none", Unit.COUNT)

    assert start(tree.config(files=(entry,))).readings()["custom.room"].quality is Quality.ABSENT


def test_a_wrong_name_is_refused_when_the_suite_is_made(tree: Tree, start: Start) -> None:
    entry = NumberFile("Room 1", tree.sys / "none", Unit.COUNT)

    with pytest.raises(UsageError, match="'Room 1' can't be a signal's name"):
        start(tree.config(files=(entry,)))


def test_a_pushed_value_counts_until_its_time_is_over_and_is_then_forgotten(
    tree: Tree, start: Start
) -> None:
    ticker = start(tree.config())
    ticker.suite.push("visitors", 3, Unit.COUNT, at_s=ticker.at_s, ttl_s=5)

    seen = [ticker.tick().readings.get("custom.visitors") for _ in range(12)]

    qualities = [reading.quality if reading else None for reading in seen]
    assert qualities == [Quality.GOOD] * 6 + [Quality.STALE] * 5 + [None]
    assert seen[0] is not None
    assert seen[0].value == 3
    assert seen[8] is not None
    assert "ran out 3 s ago" in seen[8].reason


def test_a_pushed_value_outside_its_range_is_suspect() -> None:
    pushed = PushedSignals()

    reading = pushed.push("load", 1.5, Unit.RATIO, 0.0, 60, low=0, high=1)

    assert reading.quality is Quality.SUSPECT


@pytest.mark.parametrize(
    ("name", "value", "ttl_s", "message"),
    [
        ("", 1.0, 5.0, "can't be a signal's name"),
        ("../etc", 1.0, 5.0, "can't be a signal's name"),
        ("a" * 65, 1.0, 5.0, "can't be a signal's name"),
        ("a", math.nan, 5.0, "is no number"),
        ("a", 1.0, 0.0, "time to live of 0 s"),
        ("a", 1.0, 1e9, "time to live of 1e\\+09 s"),
    ],
)
def test_a_push_that_makes_no_sense_is_refused(
    name: str, value: float, ttl_s: float, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        PushedSignals().push(name, value, Unit.COUNT, 0.0, ttl_s)


def test_a_unit_cannot_change_while_the_signal_lives() -> None:
    pushed = PushedSignals()
    pushed.push("a", 1.0, Unit.COUNT, 0.0, 5.0)

    with pytest.raises(UsageError, match=r"custom\.a is in count, not in bytes"):
        pushed.push("custom.a", 1.0, Unit.BYTES, 1.0, 5.0)
    with pytest.raises(UsageError, match="range 2 to 1 is empty"):
        pushed.push("b", 1.0, Unit.BYTES, 1.0, 5.0, low=2, high=1)


def test_pushed_signals_are_bounded_in_number() -> None:
    pushed = PushedSignals()
    for number in range(64):
        pushed.push(f"s{number}", 1.0, Unit.COUNT, 0.0, 5.0)

    with pytest.raises(UsageError, match="64 signals are pushed already"):
        pushed.push("one.more", 1.0, Unit.COUNT, 0.0, 5.0)
    pushed.push("s1", 2.0, Unit.COUNT, 1.0, 5.0)
