"""Why a point that could be taken isn't in force, in the words of the rule that holds it back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_world import LADDER, MIB, World

from policies_for_tests import policy
from trimtab.domain.events import PausedSet, PinCleared, PinSet
from trimtab.domain.knobs import Knob
from trimtab.planner.assess import assess
from trimtab.planner.choose import is_out
from trimtab.planner.requests import Queue
from trimtab.planner.shadow import Shadow
from trimtab.planner.standing import passed_over
from trimtab.policy.combine import combine
from trimtab.policy.compiled import Stability


def told(world: World) -> dict[str, str]:
    """For each variant with a point that could be taken: why its best isn't in force."""
    bounds = combine(world.state.rules.verdicts, world.policy.knobs).knobs
    judged = assess(world.state, world.policy, bounds, world.model, world.now)
    found = passed_over(world.state, world.policy, judged, world.now)
    best = sorted((one for one in judged if one.point in found), key=lambda one: one.rank)
    return {one.point.variant or "": found[one.point] for one in reversed(best)}


def squeezed(seconds: float) -> World:
    """A world that had to step down from fp32, and has had room for it again for a while."""
    world = World(policy()).start().run(60)
    world.free_bytes = 1000 * MIB
    world.run(3)
    world.free_bytes = 8192 * MIB
    return world.run(seconds)


def test_every_point_is_either_in_force_or_out_or_passed_over_with_a_reason() -> None:
    world = squeezed(5)
    bounds = combine(world.state.rules.verdicts, world.policy.knobs).knobs
    judged = assess(world.state, world.policy, bounds, world.model, world.now)
    found = passed_over(world.state, world.policy, judged, world.now)

    for one in judged:
        silent = one.point == world.point or is_out(one)
        assert bool(found.get(one.point)) is not silent
    assert found


def test_a_worse_variant_lost_by_its_quality() -> None:
    world = World(policy()).start().run(60)

    assert told(world)["int8"] == "its quality is 0.90 against 1.00"


def test_what_comes_before_a_point_is_named_where_it_isnt_in_force_yet() -> None:
    world = squeezed(5)
    world.post(PinSet(world.now, ((Knob.VARIANT, "int4"),), None, "somebody"))
    world.run(3)
    world.post(PinCleared(world.now, "somebody"))

    assert world.point.variant == "int4"
    assert told(world)["int8"] == "fp32 comes first: its quality is 0.90 against 1.00"


def test_a_better_one_has_to_last_and_says_for_how_long() -> None:
    world = squeezed(5)

    assert world.point.variant == "int8"
    assert told(world)["fp32"].startswith("has to last 30 s (dwell), ")


def test_what_is_left_to_wait_is_what_is_waited() -> None:
    world = squeezed(5)
    left_s = int(told(world)["fp32"].split(", ")[1].split()[0])

    world.run(left_s - 1)
    before = world.point.variant
    world.run(2)

    assert before == "int8"
    assert world.decisions[-1].target.variant == "fp32"


def test_a_step_back_up_that_failed_once_waits_longer_and_says_so() -> None:
    world = squeezed(3)
    world.state = replace(world.state, up_wait_s=120.0)

    assert "has to last 120 s (an earlier step up was taken back)" in told(world)["fp32"]


def test_a_budget_of_switches_that_is_used_up_is_the_reason() -> None:
    world = squeezed(20)
    world.policy = replace(world.policy, stability=Stability(1.0, 1.0, switches_per_hour=2))

    assert told(world)["fp32"] == "the policy's 2 switches an hour are used up"


def test_paused_steps_are_the_reason() -> None:
    world = squeezed(3)
    world.post(PausedSet(world.now, True, "somebody"))

    assert set(told(world).values()) == {"steps are paused"}


def test_room_that_would_not_keep_the_leave_threshold_is_the_reason() -> None:
    world = squeezed(1)
    world.free_bytes = 1400 * MIB
    world.run(2)

    assert told(world)["fp32"] == "it would not keep 768 MiB available"


@pytest.mark.parametrize(
    ("earned", "words"),
    [
        ((0.4, 0.8), "requests would earn 0.40 each on it, 0.80 on int8"),
        (
            (0.81, 0.8),
            "requests would earn 0.81 each on it, 0.80 on int8: too little more to move for",
        ),
    ],
)
def test_what_requests_would_earn_is_the_reason(earned: tuple[float, float], words: str) -> None:
    world = squeezed(3)
    shadows = tuple(
        (name, Shadow(earned=value, count=50.0))
        for name, value in zip(("fp32", "int8"), earned, strict=True)
    )
    world.state = replace(world.state, queue=Queue(shadows=shadows, home="int8"))

    assert told(world)["fp32"] == words


def test_a_step_under_way_holds_all_others_back() -> None:
    world = World(policy()).start().run(60)
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "somebody"))

    assert world.state.waiting_for
    assert set(told(world).values()) == {"a step is under way"}
    assert world.model is LADDER
