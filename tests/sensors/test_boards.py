"""Every described board: its profile, and what its sensors say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sensor_trees import Ticker, board_names, describe_board, grow_board

from trimtab.domain.readings import Quality
from trimtab.errors import ConfigError
from trimtab.sensors import SensorConfig
from trimtab.sensors.board import (
    Identity,
    choose_board,
    find_board,
    load_board,
    shipped_boards,
)
from trimtab.sensors.source import Roots

Start = Callable[[SensorConfig], Ticker]


@pytest.mark.parametrize("name", board_names())
def test_a_board_is_recognised_and_its_sensors_say_what_is_true_there(
    name: str, tmp_path: Path, start: Start
) -> None:
    expected = describe_board(name)["expect"]
    ticker = start(grow_board(name, tmp_path).config())

    readings = ticker.readings()

    assert ticker.suite.board.name == expected.pop("board")
    for signal, value in expected.items():
        reading = readings[signal]
        if isinstance(value, str):
            assert reading.quality is Quality(value), reading
        else:
            assert reading.quality is Quality.GOOD, reading
            assert reading.value == pytest.approx(value), reading


@pytest.mark.parametrize("name", board_names())
def test_no_board_makes_the_daemon_say_more_than_once_what_is_wrong(
    name: str, tmp_path: Path
) -> None:
    from trimtab.sensors import SensorSuite

    told = []
    suite = SensorSuite(grow_board(name, tmp_path).config(), on_change=told.append)
    ticker = Ticker(suite)

    ticker.tick(50)
    suite.close()

    assert len({change.signal for change in told}) == len(told)
    assert {change.after for change in told} <= {Quality.FAILED, Quality.SUSPECT}


def test_the_most_specific_device_tree_name_decides() -> None:
    boards = shipped_boards()
    identity = Identity(compatible=("raspberrypi,5-compute-module", "brcm,bcm2712"))

    assert choose_board(identity, boards).name == "raspberry-pi-5"
    assert choose_board(Identity(compatible=("acme,unknown",)), boards).name == "generic"


def test_a_named_profile_overrides_what_is_recognised(tmp_path: Path) -> None:
    roots = Roots(tmp_path, tmp_path)

    assert find_board("rk3588", roots).name == "rk3588"
    with pytest.raises(ConfigError, match="no board profile 'rk3599'") as caught:
        find_board("rk3599", roots)
    assert "raspberry-pi-5" in caught.value.hint


def test_a_profile_of_ones_own_is_taken_from_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nzones: {use: [weird], degrees: [weird]}\n")

    board = find_board(str(file), Roots())

    assert board.zones.used("Weird")
    assert board.degrees == ("weird",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a board profile is a mapping"),
        ("zones: {use: [a]}", "name is missing"),
        ("name: a\nzonez: {}", "zonez is unknown"),
        ("name: a\nzones: {usw: [a]}", "zones.usw is unknown"),
        ("name: a\nzones: {use: cpu}", "zones.use is no list of names"),
        ("name: a\nzones: [a]", "zones is a mapping of use, ignore, degrees"),
        ("name: a\ntrips: {passive: '80'}", "trips.passive is '80', not a temperature"),
        ("name: a\ndefaults: {temperature: {enter: 80F}}", "not a temperature such as 80C"),
        ("name: [", "mine.yaml"),
        ("name: a\nname: b", "duplicate key"),
        ("a" * 70000, "larger than 64 KiB"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_file_and_field(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"mine\.yaml") as caught:
        load_board(file)
    assert message in caught.value.message


def test_a_profile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_board(tmp_path / "none.yaml")
