"""Throttling, whoever does it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sensor_trees import Ticker, Tree

from trimtab.domain.readings import Quality
from trimtab.sensors import SensorConfig
from trimtab.sensors.throttle import parse_throttled

Start = Callable[[SensorConfig], Ticker]


@pytest.mark.parametrize(
    ("text", "undervoltage", "cause"),
    [
        ("0", False, ""),
        ("50000", False, ""),
        ("f0000", False, ""),
        ("1", True, ""),
        ("0x50005", True, "firmware: throttled"),
        ("throttled=0x8", False, "firmware: soft temperature limit"),
        ("6", False, "firmware: frequency capped, throttled"),
    ],
)
def test_only_the_low_bits_of_the_firmwares_flags_mean_now(
    text: str, undervoltage: bool, cause: str
) -> None:
    flags = parse_throttled(text)

    assert (flags.undervoltage, flags.cause) == (undervoltage, cause)


def test_a_throttle_count_that_rises_means_throttled_until_it_stops(
    tree: Tree, start: Start
) -> None:
    base = "sys/devices/system/cpu"
    for cpu in range(2):
        tree.put(f"{base}/cpu{cpu}/thermal_throttle/core_throttle_count", "100\n")
    ticker = start(tree.config())
    ticker.readings()

    seen = []
    for count in (100, 107, 107, 107):
        tree.put(f"{base}/cpu1/thermal_throttle/core_throttle_count", f"{count}\n")
        seen.append(ticker.tick().readings["cpu.throttled"])

    assert [reading.value for reading in seen] == [0.0, 0.0, 1.0, 0.0]
    assert seen[2].reason == "core throttle count rises"


def test_a_frequency_cap_that_comes_down_is_throttling_and_a_standing_one_is_not(
    tree: Tree, start: Start
) -> None:
    base = "sys/devices/system/cpu/cpufreq/policy0"
    tree.put(f"{base}/cpuinfo_max_freq", "2000000\n")
    tree.put(f"{base}/scaling_max_freq", "1600000\n")
    tree.put(f"{base}/scaling_cur_freq", "1500000\n")
    ticker = start(tree.config())
    standing = ticker.readings()

    tree.put(f"{base}/scaling_max_freq", "1000000\n")
    lowered = ticker.readings()["cpu.throttled"]

    assert standing["cpu.throttled"].value == 0.0
    assert standing["cpu.frequency_cap"].value == 0.8
    assert standing["cpu.frequency"].value == 1.5e9
    assert (lowered.value, lowered.reason) == (1.0, "frequency limited to 50% of its top")


def test_a_cooling_device_that_takes_speed_away_is_named(tree: Tree, start: Start) -> None:
    tree.put("sys/class/thermal/cooling_device0/type", "pwm-fan\n")
    tree.put("sys/class/thermal/cooling_device0/cur_state", "4\n")
    tree.put("sys/class/thermal/cooling_device1/type", "thermal-cpufreq-0\n")
    tree.put("sys/class/thermal/cooling_device1/cur_state", "2\n")

    throttled = start(tree.config()).readings()["cpu.throttled"]

    assert (throttled.value, throttled.reason) == (1.0, "thermal-cpufreq-0 at 2")


def test_a_machine_that_nobody_can_slow_down_has_no_such_signal(tree: Tree, start: Start) -> None:
    tree.put("sys/class/thermal/cooling_device0/type", "pwm-fan\n")
    tree.put("sys/class/thermal/cooling_device0/cur_state", "4\n")

    assert start(tree.config()).readings()["cpu.throttled"].quality is Quality.ABSENT


def test_undervoltage_is_read_from_hwmon_where_the_flags_are_hidden(
    tree: Tree, start: Start
) -> None:
    tree.chip(0, "rpi_volt", in0_lcrit_alarm=1)

    assert start(tree.config()).readings()["power.undervoltage"].value == 1.0
