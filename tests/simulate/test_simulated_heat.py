"""A simulated device that gets warm, and the controller in a closed loop with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp, inf

import numpy as np
import pytest

from trimtab.domain.knobs import OperatingPoint
from trimtab.simulate import heat
from trimtab.simulate.conditions import GIB, combine
from trimtab.simulate.heat import Board, Thermals
from trimtab.simulate.run import Result, Run
from trimtab.simulate.scenario_set import Scenario
from trimtab.simulate.stability import (
    HEAT_BOARD,
    back_and_forth,
    heat_cycles,
    heat_policies,
    hot_day,
)
from trimtab.simulate.traces import Trace

FULL = OperatingPoint("int8", 2048, threads=2)
BOARD = Board(ambient_celsius=20.0, rise_celsius=60.0, tau_s=100.0, trip_celsius=inf)
HOT_HOURS = 2.0


def one_long_answer(tokens: int = 30_000) -> Scenario:
    """One request that keeps the engine at work."""
    trace = Trace(np.array([0.0]), np.array([59]), np.array([tokens]))
    return replace(
        hot_day("smollm2", 1.0), trace=trace, conditions=combine([], [], GIB), length_s=0.0
    )


def hot(board: Board = HEAT_BOARD, **changes: float) -> list[Result]:
    """A few hours at a constant load, answered with pace, and with threads alone."""
    device = replace(board, **changes)
    return [
        Run(hot_day("llm8b", HOT_HOURS), policy, tick_s=heat.TICK_S, heat=device).run()
        for policy in heat_policies()
    ]


def test_temperature_follows_the_first_order_course() -> None:
    thermals = Thermals(BOARD)

    for _ in range(50):
        thermals.advance(2.0, 0.5)

    assert thermals.celsius == pytest.approx(50 - 30 * exp(-1))
    thermals.advance(1e5, 0.0)
    assert thermals.celsius == pytest.approx(20.0)


def test_power_follows_pace_and_threads_and_speed_follows_threads_less_than_that() -> None:
    thermals = Thermals(BOARD)

    assert thermals.power_ratio(FULL) == 1.0
    assert thermals.power_ratio(replace(FULL, pace_ratio=0.6)) == pytest.approx(0.6)
    assert thermals.power_ratio(replace(FULL, threads=1)) == pytest.approx(0.5)
    assert 0.5 < thermals.speed_ratio(replace(FULL, threads=1)) < 1.0
    assert thermals.speed_ratio(FULL) == 1.0


def test_a_trip_point_is_crossed_when_the_course_says() -> None:
    thermals = Thermals(replace(BOARD, trip_celsius=70.0))

    trip_s = thermals.trips_in_s(1.0)
    thermals.advance(trip_s, 1.0)

    assert trip_s == pytest.approx(100 * np.log(6.0))
    assert thermals.celsius == pytest.approx(70.0)


def test_throttling_halves_speed_and_power_and_ends_some_degrees_below() -> None:
    thermals = Thermals(replace(BOARD, trip_celsius=70.0, clear_celsius=10.0))
    thermals.advance(thermals.trips_in_s(1.0), 1.0)
    thermals.trip()

    power = thermals.power_ratio(FULL)
    clears_s = thermals.trips_in_s(power)
    thermals.advance(clears_s, power)

    assert (power, thermals.speed_ratio(FULL)) == (0.5, 0.5)
    assert thermals.celsius == pytest.approx(60.0)
    assert clears_s == pytest.approx(100 * np.log(2.0))


def test_a_temperature_that_never_reaches_the_trip_point_never_trips() -> None:
    assert Thermals(replace(BOARD, trip_celsius=81.0)).trips_in_s(1.0) == inf


def test_the_sensor_shows_steps() -> None:
    thermals = Thermals(replace(BOARD, step_celsius=1.0))
    thermals.advance(30.0, 1.0)

    assert thermals.read() == round(thermals.celsius)


def test_a_run_without_heat_has_no_sensor_and_one_with_it_reads_it_on_each_tick() -> None:
    cold, warm = Run(one_long_answer()), Run(one_long_answer(), heat=BOARD)
    cold.run()
    result = warm.run()

    assert cold.state.snapshot is not None
    assert cold.state.snapshot.value("temperature.max") is None
    assert warm.state.snapshot is not None
    assert warm.state.snapshot.value("temperature.max") == pytest.approx(79.0, abs=5.0)
    assert result.hottest_celsius <= 80.0


def test_a_device_that_throttles_takes_longer() -> None:
    scenario = one_long_answer()
    cool = Run(scenario, only="fp32", heat=BOARD).run()
    throttling = Run(scenario, only="fp32", heat=replace(BOARD, trip_celsius=60.0)).run()

    assert cool.throttled_s == 0.0
    assert throttling.throttled_s > 60.0
    lost_s = throttling.served[0].ended_s - cool.served[0].ended_s
    assert lost_s == pytest.approx(throttling.throttled_s / 2, rel=0.02)
    assert throttling.hottest_celsius == pytest.approx(60.0)


def test_one_thread_of_two_is_slower_and_cooler() -> None:
    scenario = one_long_answer()
    policy = heat_policies()[0]
    fewer = replace(policy, knobs=replace(policy.knobs, threads_max=1))
    two = Run(scenario, policy, heat=replace(BOARD, rise_celsius=40.0)).run()
    one = Run(scenario, fewer, heat=replace(BOARD, rise_celsius=40.0)).run()

    assert one.served[0].ended_s > 1.5 * two.served[0].ended_s
    assert one.hottest_celsius < 41.0 < 59.0 < two.hottest_celsius


def test_under_a_constant_load_the_limit_is_kept_without_a_limit_cycle() -> None:
    for result in hot():
        assert heat_cycles(result) == 0
        assert result.over_limit_s == 0.0
        assert result.hottest_celsius > 79.0


@pytest.mark.parametrize(
    "changes",
    [{"step_celsius": 1.0}, {"tau_s": 60.0}, {"ambient_celsius": -15.0, "rise_celsius": 97.0}],
)
def test_neither_a_coarse_sensor_nor_a_light_board_nor_frost_makes_a_cycle(
    changes: dict[str, float],
) -> None:
    for result in hot(**changes):
        assert heat_cycles(result) == 0


def test_regular_back_and_forth_counts_and_what_dies_out_does_not() -> None:
    regular = [(250.0 * turn, 1.0 - 0.2 * (turn % 2)) for turn in range(20)]
    stairs = [(60.0 * turn, (1.0, 0.8, 0.6, 0.8)[turn % 4]) for turn in range(24)]
    times = np.cumsum([0.0] + [30.0 * 2 ** (turn // 2) for turn in range(20)])
    growing = [(at_s, 1.0 - 0.2 * (turn % 2)) for turn, at_s in enumerate(times)]

    assert back_and_forth(regular) == 8
    assert back_and_forth(stairs) == 4
    assert back_and_forth(growing) == 0
    assert back_and_forth(regular[:5]) == 0


def test_moves_tell_every_change_of_a_knob() -> None:
    moves = hot()[0].moves

    assert any(here.pace_ratio < before.pace_ratio for (_, before), (_, here) in pairwise(moves))
