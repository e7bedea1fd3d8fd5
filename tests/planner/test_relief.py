"""Means that bring nothing measurable: the next one is used, and they rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner_world import LADDER, MIB, World

from policies_for_tests import PLAIN, policy
from trimtab.domain.actions import SetContext, SetPace
from trimtab.domain.events import Demand
from trimtab.domain.knobs import Knob
from trimtab.planner.predict import loaded_bytes
from trimtab.planner.state import State

HOT = 80.1
REST_S = 60


def hot(**kwargs: Any) -> World:
    """A world whose heat comes from elsewhere: nothing that the model does changes it."""
    world = World(policy(**kwargs), celsius=HOT - 0.2).start().run(60)
    world.celsius = HOT
    world.run(1)
    assert world.state.heat.level == 1
    return world


def test_a_pace_that_cools_nothing_is_given_back_and_a_smaller_variant_is_next() -> None:
    world = hot().run(33)

    assert world.point.pace_ratio == 1.0
    assert world.point.variant == "int8"
    assert "a slower pace rests (nothing got cooler in 30 s)" in world.decisions[-1].trigger.text


def test_a_pace_that_slows_the_rise_counts_as_cooling_though_it_gets_warmer() -> None:
    world = World(policy(), celsius=60.0).start()
    for _ in range(75):
        end = 100.0 if world.point.pace_ratio == 1 else 84.0
        world.celsius += (end - world.celsius) / 40
        world.run(1)

    assert world.celsius > 80
    assert world.point.pace_ratio < 1
    assert Knob.PACE not in world.state.distrust


def test_when_nothing_cools_the_best_variant_serves_at_full_pace_again() -> None:
    world = hot(knobs=replace(PLAIN.knobs, pace_min_ratio=0.8)).run(75)

    assert set(world.state.distrust) == {Knob.PACE, Knob.VARIANT}
    assert world.point.pace_ratio == 1.0


def test_what_rests_is_tried_again_and_rests_twice_as_long_if_it_brings_nothing_again() -> None:
    world = hot().run(33)
    first = world.state.distrust[Knob.PACE]
    count = len([one for one in world.actions if isinstance(one, SetPace)])
    world.run(REST_S + 2)
    again = len([one for one in world.actions if isinstance(one, SetPace)])
    world.run(40)
    second = world.state.distrust[Knob.PACE]

    assert again > count
    assert second.wait_s == 2 * first.wait_s


def test_a_means_that_cools_when_it_is_tried_again_is_trusted() -> None:
    world = hot().run(33)
    world.run(REST_S - 30)
    world.celsius = 83.0
    world.run(25)
    for _ in range(45):
        world.celsius = max(80.0, world.celsius - 0.03)
        world.run(1)

    assert Knob.PACE not in world.state.distrust
    assert world.point.pace_ratio == 0.4


def test_fewer_threads_come_before_a_smaller_variant() -> None:
    world = World(policy(), state=State(threads=4), celsius=60.0).start()
    seen = []
    for second in range(60):
        world.celsius = 85.0 - 0.03 * second
        world.run(1)
        seen.append((world.point.variant, world.point.threads))

    assert list(dict.fromkeys(seen)) == [("fp32", 4), ("fp32", 2), ("fp32", 1), ("int8", 1)]


def test_a_variant_that_frees_nothing_is_quarantined_and_the_next_one_is_taken() -> None:
    as_much = loaded_bytes(LADDER.variants[0], {})
    world = World(policy(), free_bytes=2000 * MIB, really={"int8": as_much}).start()
    world.free_bytes = 1100 * MIB
    world.run(8)

    assert world.point.variant == "int4"
    assert "freed nothing" in world.state.quarantine["int8"].reason


def test_a_variant_that_freed_what_it_should_is_not_quarantined_if_others_take_the_rest() -> None:
    world = World(policy(), free_bytes=2000 * MIB).start()
    world.free_bytes = 1100 * MIB
    world.run(2)
    world.free_bytes = 800 * MIB
    world.run(8)

    assert world.point.variant == "int4"
    assert world.state.quarantine == {}


def test_a_context_that_the_worker_does_not_keep_to_is_no_way_out() -> None:
    world = World(policy(), free_bytes=2000 * MIB).start()
    world.demand = Demand(running=1)
    # A conversation of 2048 tokens would no longer fit; one of 1024 would.
    world.free_bytes = (512 + 700 + 40) * MIB
    world.run(1)
    world.leak_bytes = 60 * MIB  # more than a whole conversation of the new size
    world.free_bytes += world.leak_bytes
    world.run(3)

    assert any(isinstance(one, SetContext) for one in world.actions)
    assert Knob.CONTEXT in world.state.distrust
    assert world.point.variant == "fp32"

    world.free_bytes = world.free_bytes - world.available_bytes + (512 + 20) * MIB
    world.run(3)  # there would be room for a context of 512 tokens

    assert world.point.variant == "int8"
