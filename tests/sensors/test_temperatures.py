"""Zones that lie, move, vanish, glitch and hang."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from sensor_trees import Ticker, Tree

from trimtab.domain.readings import Quality
from trimtab.sensors import SensorConfig
from trimtab.sensors.zones import doubt, parse_millidegrees

Start = Callable[[SensorConfig], Ticker]


def test_the_hottest_of_the_zones_that_share_one_type_counts(tree: Tree, start: Start) -> None:
    tree.zone(0, "cpu-thermal", 50000)
    tree.zone(1, "cpu-thermal", 61000)
    tree.zone(2, "cpu-thermal", 40000)

    readings = start(tree.config()).readings()

    assert readings["temperature.zone.cpu_thermal"].value == 61.0
    assert readings["temperature.max"].value == 61.0


def test_zones_that_are_renumbered_between_two_ticks_keep_their_meaning(
    tree: Tree, start: Start
) -> None:
    tree.zone(0, "cpu-thermal", 50000)
    tree.zone(1, "pmic-thermal", 100000)
    ticker = start(tree.config())
    before = ticker.readings()

    tree.zone(1, "cpu-thermal", 51000)
    tree.zone(0, "pmic-thermal", 100000)
    after = ticker.readings()

    assert (before["temperature.max"].value, after["temperature.max"].value) == (50.0, 51.0)
    assert after["temperature.zone.pmic_thermal"].quality is Quality.SUSPECT


def test_a_zone_that_vanishes_and_comes_back_is_followed(tree: Tree, start: Start) -> None:
    tree.zone(0, "cpu-thermal", 50000)
    tree.zone(1, "soc-thermal", 70000)
    ticker = start(tree.config())
    values = [ticker.readings()["temperature.max"].value]

    shutil.rmtree(tree.sys / "class/thermal/thermal_zone1")
    gone = ticker.readings()
    tree.zone(1, "soc-thermal", 72000)
    values += [gone["temperature.max"].value, ticker.readings()["temperature.max"].value]

    assert values == [70.0, 50.0, 72.0]
    assert "temperature.zone.soc_thermal" not in gone


@pytest.mark.parametrize("raw", ["-274000", "-273150", "-2147483648", "999000", "45", "1"])
def test_an_impossible_temperature_is_suspect_and_does_not_count(
    tree: Tree, start: Start, raw: str
) -> None:
    tree.zone(0, "cpu-thermal", raw)
    tree.zone(1, "cpu1-thermal", 48000)

    readings = start(tree.config()).readings()

    assert readings["temperature.zone.cpu_thermal"].quality is Quality.SUSPECT
    assert readings["temperature.max"].value == 48.0
    assert "1 can't be trusted" in readings["temperature.max"].reason


def test_trip_points_that_mean_nothing_are_refused(tree: Tree, start: Start) -> None:
    tree.zone(0, "cpu-thermal", 50000, passive=-274000, hot=0, critical=95000, active=40000)

    headroom = start(tree.config()).readings()["temperature.headroom"]

    assert headroom.value == 45.0
    assert headroom.reason == "cpu-thermal: critical trip at 95 °C"


def test_a_driver_that_writes_whole_degrees_is_scaled_by_a_profile(
    tree: Tree, start: Start
) -> None:
    tree.zone(0, "sunxi-thermal", 45)
    profile = tree.put("mine.yaml", "name: mine\nzones: {degrees: [sunxi*]}\n")

    readings = start(tree.config(board=str(profile))).readings()

    assert readings["temperature.max"].value == 45.0


def test_a_single_glitch_is_not_believed_and_a_second_reading_confirms_a_jump(
    tree: Tree, start: Start
) -> None:
    tree.zone(0, "cpu-thermal", 45000)
    ticker = start(tree.config())
    ticker.readings()

    tree.zone(0, "cpu-thermal", 127000)
    ticker.tick()
    glitch = ticker.tick().readings["temperature.max"]
    confirmed = ticker.tick().readings["temperature.max"]

    assert glitch.quality is Quality.SUSPECT
    assert (confirmed.value, confirmed.quality) == (127.0, Quality.GOOD)


def test_a_glitch_that_goes_away_was_none(tree: Tree, start: Start) -> None:
    tree.zone(0, "cpu-thermal", 45000)
    ticker = start(tree.config())
    ticker.readings()
    tree.zone(0, "cpu-thermal", 127000)
    ticker.tick()

    tree.zone(0, "cpu-thermal", 46000)
    ticker.tick()
    after = ticker.tick().readings["temperature.max"]

    assert (after.value, after.quality) == (46.0, Quality.GOOD)


def test_a_zone_that_never_moves_and_is_far_hotter_than_the_rest_is_found_out(
    tree: Tree, start: Start
) -> None:
    tree.zone(0, "cpu-thermal", 45000)
    tree.zone(1, "cpu-board", 100000)
    ticker = start(tree.config())

    for step in range(70):
        tree.zone(0, "cpu-thermal", 45000 + step * 10)
        snapshot = ticker.tick()

    assert snapshot.readings["temperature.zone.cpu_board"].quality is Quality.SUSPECT
    assert snapshot.value("temperature.max") == pytest.approx(45.68, abs=0.02)


def test_ten_thousand_zones_delay_no_tick_and_are_cut_with_a_word(tree: Tree, start: Start) -> None:
    for number in range(300):
        tree.zone(number, f"cpu{number % 7}-thermal", 40000 + number)
    for number in range(300, 10_000):
        (tree.sys / f"class/thermal/thermal_zone{number}").mkdir()
    ticker = start(tree.config(deadline_s=60.0))

    readings = ticker.readings()

    assert readings["temperature.max"].value == 40.255
    assert "9744 more zones than can be read" in readings["temperature.max"].reason


def test_an_unreadable_zone_fails_with_its_reason_and_the_others_go_on(
    tree: Tree, start: Start
) -> None:
    tree.zone(0, "cpu-thermal", 50000)
    tree.zone(1, "gpu-thermal", 50000)
    temp = tree.sys / "class/thermal/thermal_zone1/temp"
    temp.unlink()
    temp.mkdir()  # reading it gives EISDIR

    readings = start(tree.config()).readings()

    assert readings["temperature.zone.gpu_thermal"].quality is Quality.FAILED
    assert "EISDIR" in readings["temperature.zone.gpu_thermal"].reason
    assert readings["temperature.max"].value == 50.0


def test_one_hanging_zone_silences_no_other_and_delays_no_tick(tree: Tree, start: Start) -> None:
    tree.zone(0, "cpu-thermal", 50000)
    tree.zone(1, "gpu-thermal", 50000)
    temp = tree.sys / "class/thermal/thermal_zone1/temp"
    temp.unlink()
    os.mkfifo(temp)  # a read of it hangs for good
    ticker = start(tree.config(deadline_s=2.0))

    for _ in range(6):
        ticker.suite.snapshot(ticker.at_s, ticker.wall_s)
        ticker.suite.settle(timeout_s=0.2)
        ticker.at_s += 1.0
    readings = ticker.suite.snapshot(ticker.at_s, ticker.wall_s).readings

    assert ticker.suite.hung == (str(temp),)
    assert readings["temperature.zone.cpu_thermal"].value == 50.0
    assert readings["temperature.zone.gpu_thermal"].quality is Quality.FAILED
    assert "doesn't answer" in readings["temperature.zone.gpu_thermal"].reason
    assert readings["temperature.max"].value == 50.0


def test_a_zone_that_stops_hanging_is_taken_in_again(tree: Tree, start: Start) -> None:
    tree.zone(0, "cpu-thermal", 50000)
    temp = tree.sys / "class/thermal/thermal_zone0/temp"
    temp.unlink()
    os.mkfifo(temp)
    ticker = start(tree.config(deadline_s=2.0))
    for _ in range(4):
        ticker.suite.snapshot(ticker.at_s, ticker.wall_s)
        ticker.suite.settle(timeout_s=0.1)
        ticker.at_s += 1.0
    hung = ticker.suite.hung

    with temp.open("w") as fifo:  # the hanging read comes back with this
        fifo.write("51000\n")
    temp.unlink()
    tree.put("sys/class/thermal/thermal_zone0/temp", "52000\n")
    while ticker.suite.hung:  # until its thread has gone
        ticker.tick()
    after = ticker.tick(3)

    assert hung == (str(temp),)
    assert after.value("temperature.max") == 52.0


def test_millidegrees_are_integers() -> None:
    assert parse_millidegrees("61450\n") == 61.45
    assert parse_millidegrees("-5000") == -5.0
    with pytest.raises(ValueError, match="invalid literal"):
        parse_millidegrees("61.45")


def test_a_cold_board_is_believed() -> None:
    assert doubt(-25.0) == ""
    assert doubt(0.0) == ""
