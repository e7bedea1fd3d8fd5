"""Heat in a closed loop: what a level brings is seen, and one that is needed isn't given back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import exp

from planner_world import MIB, World

from policies_for_tests import PLAIN, policy
from trimtab.domain.actions import SetPace, SwitchWorker
from trimtab.domain.decisions import Direction
from trimtab.domain.events import PinCleared, PinSet
from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.domain.readings import Reading, Snapshot
from trimtab.planner.foresight import ThermalFit
from trimtab.planner.heat import advance, given_back_celsius, ladder
from trimtab.planner.plan import waits_to_grow
from trimtab.planner.standing import heat_kept
from trimtab.planner.state import NEVER_S, Heat, Left, Pin, Quarantine, State
from trimtab.policy.compiled import Stability
from trimtab.telemetry.values import from_plain, to_plain

TAU_S = 180.0
STEPS = ladder(World(policy()).model, PLAIN.knobs, 2)
FIRST = "pace 1 to 0.8"

Ends = Callable[[OperatingPoint, float], float]


def by_pace(point: OperatingPoint, _: float) -> float:
    """85 °C at full pace, 70 one level down: the limit is 80, and 72 to leave it."""
    return 10 + 75 * point.pace_ratio


def closed_loop(ends: Ends, hours: float, tau_s: float = TAU_S, **changes: object) -> World:
    """A device whose temperature tends where pace and threads say, in force from the start."""
    world = World(policy(**changes), state=State(threads=2), celsius=40.0).start()
    heat(world, ends, hours, tau_s)
    return world


def heat(world: World, ends: Ends, hours: float, tau_s: float = TAU_S) -> None:
    for _ in range(round(hours * 3600)):
        assert world.celsius is not None
        end = ends(world.point, world.now)
        world.celsius = end + (world.celsius - end) * exp(-1 / tau_s)
        world.run(1)


def changes_by_hour(world: World, hours: int) -> list[int]:
    """How often pace or threads were changed, in each hour from the start on."""
    out = [0] * hours
    for one in world.decisions:
        if {Knob.PACE, Knob.THREADS} & set(one.source.changed(one.target)) and one.source.variant:
            out[min(hours - 1, int((one.at_s - 100) // 3600))] += 1
    return out


def test_a_level_without_which_the_limit_would_be_reached_again_is_kept() -> None:
    world = closed_loop(by_pace, 3)

    assert changes_by_hour(world, 3) == [1, 0, 0]
    assert world.point.pace_ratio == 0.8


def test_what_was_seen_of_heat_survives_a_recording() -> None:
    world = closed_loop(by_pace, 0.5)

    again = from_plain(json.loads(json.dumps(to_plain(world.state))))

    assert world.state.heat.left[FIRST].brought_celsius is not None
    assert again == world.state


def test_threads_that_are_needed_are_not_handed_over_to_and_fro() -> None:
    def ends(point: OperatingPoint, _: float) -> float:
        return 47.5 if point.threads == 1 else 85.0

    world = closed_loop(ends, 3, knobs=replace(PLAIN.knobs, pace_min_ratio=1.0))

    assert changes_by_hour(world, 3) == [1, 0, 0]
    assert world.point.threads == 1


def test_where_nothing_can_be_predicted_the_wait_grows_and_level_changes_die_down() -> None:
    def leaps(point: OperatingPoint, _: float) -> float:
        return 85.0 if point.pace_ratio == 1 else 70.0

    # It warms up so fast that where it tends isn't known before the limit is reached.
    world = closed_loop(leaps, 4, tau_s=3.0)
    by_hour = changes_by_hour(world, 4)

    assert by_hour[0] > by_hour[1] >= by_hour[2] >= by_hour[3]
    assert by_hour[3] <= 2
    assert world.state.heat.wait_s == 3600.0


def test_a_device_that_has_really_cooled_gets_its_speed_back() -> None:
    world = closed_loop(by_pace, 1)
    slow = world.point.pace_ratio

    heat(world, lambda point, at_s: by_pace(point, at_s) - 15, 0.5)

    assert slow == 0.8
    assert world.point.pace_ratio == 1.0
    assert world.celsius is not None
    assert world.celsius < 72


def test_a_device_that_was_cooled_while_a_level_settled_gets_its_speed_back_too() -> None:
    def fan(point: OperatingPoint, at_s: float) -> float:
        return by_pace(point, at_s) - (40 if point.pace_ratio < 1 or at_s > 700 else 0)

    world = closed_loop(fan, 1)

    assert world.point.pace_ratio == 1.0


def test_all_levels_come_back_after_a_hot_afternoon() -> None:
    world = closed_loop(lambda point, at_s: by_pace(point, at_s) + 30, 2)
    hot = world.point.pace_ratio
    heat(world, lambda point, at_s: by_pace(point, at_s) - 20, 3)

    assert hot < 0.8
    assert world.point.pace_ratio == 1.0


def test_the_wait_doubles_when_a_level_has_to_be_taken_again_and_is_forgotten_once_it_held() -> (
    None
):
    fit, wait_s = ThermalFit(), []
    heat_now = Heat(1, 0.0, wait_s=60.0)
    for gap_s in (100.0, 100.0, 4000.0):
        given = replace(heat_now, level=0, given=(10_000.0,), changed_s=10_000.0)
        heat_now = advance(given, 85.0, fit, PLAIN, STEPS, 10_000.0 + gap_s)
        wait_s.append(heat_now.wait_s)

    assert wait_s == [120.0, 240.0, 0.0]


def test_the_wait_never_exceeds_an_hour() -> None:
    given = Heat(0, 0.0, wait_s=3000.0, given=(0.0,))

    assert advance(given, 85.0, ThermalFit(), PLAIN, STEPS, 100.0).wait_s == 3600.0


def test_what_was_seen_of_a_level_is_forgotten_after_a_day() -> None:
    left = {FIRST: Left(0.0, 85.0, 15.0)}
    now = Heat(1, 0.0, left=left)

    assert given_back_celsius(now, 70.0, ThermalFit(), STEPS, 1000.0) == 85.0
    assert given_back_celsius(now, 70.0, ThermalFit(), STEPS, 90_000.0) is None


def test_what_was_seen_of_a_level_counts_for_no_other_under_other_bounds() -> None:
    now = Heat(1, 0.0, left={FIRST: Left(0.0, 85.0, 15.0)})
    other = ladder(World(policy()).model, replace(PLAIN.knobs, pace_min_ratio=1.0), 2)

    assert [STEPS.name(level) for level in range(STEPS.most + 2)] == [
        "",
        FIRST,
        "pace 0.8 to 0.6",
        "pace 0.6 to 0.4",
        "threads 2 to 1",
        "variant fp32",
        "variant int8",
        "",
    ]
    assert other.name(1) == "threads 2 to 1"
    assert given_back_celsius(now, 70.0, ThermalFit(), other, 1000.0) is None


def test_a_level_above_is_not_taken_to_be_warmer_than_its_power_can_make_it() -> None:
    now = Heat(1, 0.0, left={FIRST: Left(0.0, 85.0, 40.0)})

    predicted = given_back_celsius(now, 45.0, ThermalFit(), STEPS, 1000.0)

    assert predicted == 45 / 0.8


def test_the_model_of_heat_knows_soon_after_a_level_where_the_temperature_tends_now() -> None:
    fit, celsius = ThermalFit(), 40.0
    for second in range(300):
        celsius = 85 + (celsius - 85) * exp(-1 / TAU_S)
        fit = fit.seen(float(second), celsius)
    fit = fit.turned()
    for second in range(300, 325):
        celsius = 70 + (celsius - 70) * exp(-1 / TAU_S)
        fit = fit.seen(float(second), celsius)

    steady = fit.steady()

    assert steady is not None
    assert abs(steady[0] - 70) < 1
    assert abs(steady[1] - TAU_S) < 5


def test_pace_and_threads_leave_the_wait_of_memory_alone() -> None:
    here = OperatingPoint("int8", 2048, 2)
    world = closed_loop(by_pace, 0.5)

    assert any(isinstance(one, SetPace) for one in world.actions)
    assert (world.state.up_wait_s, world.state.last_up_s) == (0.0, NEVER_S)
    assert not waits_to_grow(here, replace(here, threads=1, pace_ratio=0.2))
    assert waits_to_grow(here, replace(here, variant="int4"))
    assert waits_to_grow(here, replace(here, context=1024, pace_ratio=0.2))


def test_a_pace_that_is_given_back_does_not_wait_for_what_memory_had_to_take_back() -> None:
    world = World(policy(), celsius=60.0).start()
    world.state = replace(world.state, up_wait_s=3600.0)
    world.celsius = 85.0
    world.run(2)
    world.celsius = 60.0
    world.run(40)

    assert world.point.pace_ratio == 1.0
    assert world.state.up_wait_s == 3600.0


def cooled(switches_per_hour: int) -> World:
    """One of two threads was taken for heat, and it is cool again."""
    world = World(
        policy(
            knobs=replace(PLAIN.knobs, pace_min_ratio=1.0),
            stability=Stability(30.0, 10.0, switches_per_hour),
        ),
        state=State(threads=2),
        celsius=60.0,
    ).start()
    world.celsius = 82.0
    world.run(4)
    assert world.point.threads == 1
    world.celsius = 60.0
    return world.run(120)


def test_going_back_to_more_threads_is_recorded_as_a_step_up() -> None:
    world = cooled(switches_per_hour=20)

    last = world.decisions[-1]
    assert (last.source.threads, last.target.threads) == (1, 2)
    assert last.direction is Direction.UP


def test_going_back_to_more_threads_counts_against_the_hours_budget() -> None:
    world = cooled(switches_per_hour=2)
    spent = world.point.threads
    world.run(3600)

    assert spent == 1
    assert world.point.threads == 2


def test_threads_that_a_person_pins_are_not_held_back_by_the_budget() -> None:
    world = cooled(switches_per_hour=2)
    world.post(PinSet(world.now, {Knob.THREADS: 2}, None, "a person"))
    world.run(3)

    assert world.point.threads == 2
    assert isinstance(world.actions[-1], SwitchWorker)


def test_a_pin_that_is_taken_off_leaves_more_threads_to_the_budget() -> None:
    world = World(
        policy(stability=Stability(30.0, 10.0, 2)), state=State(threads=2), celsius=60.0
    ).start()
    world.post(PinSet(world.now, {Knob.THREADS: 1}, None, "a person"))
    world.run(3)
    world.post(PinCleared(world.now, "a person"))
    world.run(60)
    held = world.point.threads
    world.free_bytes = 1000 * MIB
    world.run(5)

    assert held == 1
    assert world.point.variant == "int8"  # memory never waits for the budget


# ---------------------------------------------------------------- what people are told


def test_a_level_that_the_prediction_keeps_is_told_with_temperature_and_limit() -> None:
    world = closed_loop(by_pace, 0.5)

    assert heat_kept(world.state, world.policy, world.now) == (
        "the pace is kept at 80%: at 100% the hottest zone, now at 70 °C, is predicted to reach "
        "84 °C, over the limit of 80 °C"
    )


def test_threads_that_the_prediction_keeps_are_told_likewise() -> None:
    def ends(point: OperatingPoint, _: float) -> float:
        return 47.5 if point.threads == 1 else 85.0

    world = closed_loop(ends, 1, knobs=replace(PLAIN.knobs, pace_min_ratio=1.0))
    told = heat_kept(world.state, world.policy, world.now)

    assert told.startswith("the threads are kept at 1: with 2 the hottest zone, now at 48 °C, is ")
    assert told.endswith(" °C, over the limit of 80 °C")


def test_a_variant_that_the_prediction_keeps_out_is_named() -> None:
    model, limit = World(policy()).model, policy().temperature
    assert limit is not None
    hottest = ladder(model, PLAIN.knobs, 1)
    level = hottest.ends[Knob.PACE] + 1
    left = {hottest.name(level): Left(0.0, 79.2, None)}
    readings = {"temperature.max": Reading("temperature.max", 71.0, 10.0)}
    state = State(model=model, heat=Heat(level, 0.0, left=left), snapshot=Snapshot(10.0, readings))

    assert heat_kept(state, policy(), 10.0) == (
        "fp32 is kept out: with it the hottest zone, now at 71 °C, is predicted to reach 79 °C, "
        "too close to the limit of 80 °C"
    )


def test_a_predicted_temperature_that_is_only_just_over_the_limit_is_told_apart_from_it() -> None:
    world = closed_loop(lambda point, _: 30 + 50.2 * point.pace_ratio, 1)
    told = heat_kept(world.state, world.policy, world.now)

    assert "reach 80." in told
    assert told.endswith("the limit of 80.0 °C")


def test_nothing_is_told_of_heat_where_something_else_keeps_the_level_or_nothing_does() -> None:
    kept = closed_loop(by_pace, 0.5)
    hot = replace(kept.state, snapshot=Snapshot(kept.now, {"temperature.max": reading(75.0)}))
    blind = replace(kept.state, snapshot=Snapshot(kept.now, {}))
    pinned = replace(kept.state, pin=Pin({Knob.PACE: 0.8}, None, "uid 0"))
    rests = replace(kept.state, distrust={"pace": Quarantine(kept.now + 60, 60.0, "in vain")})
    cooled = closed_loop(by_pace, 0.5)
    heat(cooled, lambda point, at_s: by_pace(point, at_s) - 15, 0.5)

    told = [
        heat_kept(state, kept.policy, kept.now)
        for state in (hot, blind, pinned, rests, State(), cooled.state)
    ]

    assert told == [""] * 6
    assert heat_kept(kept.state, policy(temperature=None), kept.now) == ""


def reading(celsius: float) -> Reading:
    return Reading("temperature.max", celsius, 0.0)
