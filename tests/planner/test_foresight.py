"""Looking ahead: heat by a fitted model, memory by its trend, and relief that doesn't come."""

from __future__ import annotations

from math import exp

import pytest
from planner_world import MIB, World

from policies_for_tests import policy
from trimtab.domain.actions import ReleaseIdleKv
from trimtab.domain.events import Demand
from trimtab.planner.foresight import ThermalFit


def heated(end: float, tau_s: float, seconds: int, start: float = 40.0) -> ThermalFit:
    fit = ThermalFit()
    for at_s in range(0, seconds, 5):
        fit = fit.seen(float(at_s), end + (start - end) * exp(-at_s / tau_s))
    return fit


def test_the_model_of_heat_finds_where_temperature_tends_and_how_fast() -> None:
    fit = heated(end=90.0, tau_s=60.0, seconds=120)

    steady = fit.steady()

    assert steady is not None
    assert steady[0] == pytest.approx(90.0, abs=1.0)
    assert steady[1] == pytest.approx(60.0, rel=0.1)


def test_time_to_the_limit_is_what_the_curve_says() -> None:
    fit = heated(end=90.0, tau_s=60.0, seconds=60)

    seconds = fit.time_to_s(80.0, 71.6)  # after 60 s of 1 − 1/e

    assert seconds == pytest.approx(36.6, rel=0.1)


def test_a_temperature_that_settles_below_the_limit_never_reaches_it() -> None:
    assert heated(end=75.0, tau_s=60.0, seconds=120).time_to_s(80.0, 74.0) == float("inf")


def test_without_enough_readings_nothing_is_foreseen() -> None:
    assert heated(end=90.0, tau_s=60.0, seconds=20).time_to_s(80.0, 55.0) == float("inf")


def test_pace_is_taken_back_before_the_limit_when_it_is_about_to_be_reached() -> None:
    celsius = 50.0
    world = World(policy=policy(), celsius=celsius)
    world.start()
    while len(world.decisions) < 2:
        celsius = 100 + (celsius - 100) * exp(-1 / 50)
        world.celsius = celsius
        world.run(1)

    decision = world.decisions[-1]
    assert decision.trigger.signal == "temperature.max"
    assert celsius < 80.0
    assert "would be reached in" in decision.trigger.text


def test_memory_that_keeps_falling_is_answered_before_the_limit_is_crossed() -> None:
    world = World(policy=policy())
    world.start()
    while world.state.point.variant == "fp32":
        world.free_bytes -= 100 * MIB
        world.run(1)
        assert world.available_bytes > 512 * MIB  # never crossed

    assert world.moves[-1].startswith("down")


def test_relief_that_frees_nothing_is_not_tried_again_and_the_next_means_is_used() -> None:
    world = World(policy=policy(), free_bytes=2000 * MIB, stuck=True)
    world.start()
    world.demand = Demand(idle_bytes=200 * MIB)
    world.free_bytes = 1000 * MIB

    world.run(8)

    releases = [one for one in world.actions if isinstance(one, ReleaseIdleKv)]
    assert len(releases) == 1
    assert world.state.point.variant != "fp32"
    assert "idle KV" in world.state.distrust


def test_memory_that_trembles_within_its_band_moves_nothing() -> None:
    world = World(policy=policy(), free_bytes=(768 + 700 + 64 - 100) * MIB)
    world.start()
    before = len(world.decisions)

    for turn in range(200):
        world.free_bytes = (768 + 700 + 64 - 100 + 300 * (turn * 0.618034 % 1.0 - 0.5)) * MIB
        world.run(1)

    assert world.decisions[before:] == []
