"""Workers that die, or are late, while they load: the variant may be whole, and streams wait."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from planner_world import MIB, World, model

from policies_for_tests import policy
from trimtab.domain.actions import HandoverMode, SwitchWorker
from trimtab.domain.events import Demand, PinSet, WorkerLost
from trimtab.domain.knobs import PARKED, Knob
from trimtab.planner.faults import BARREN_ALLOWED, TRIES_WHILE_HELD

HOLD_MAX_S = policy().handover.hold_max_s
ONE = model(int4=140)


def lose_the_worker(world: World, tokens: int = 50) -> None:
    """The serving worker is killed; two streams are held."""
    variant = world.point.variant or ""
    world.loaded = PARKED
    world.demand = Demand(held=2)
    world.post(WorkerLost(world.now, variant, "killed by SIGKILL", tokens))


def starts(world: World, variant: str) -> list[float]:
    """When a variant was told to load."""
    return [one.at_s for one in world.decisions if one.target.variant == variant]


def test_a_variant_whose_worker_is_killed_once_while_it_loads_is_loaded_again_at_once() -> None:
    world = World(policy(), model=ONE).start()
    lose_the_worker(world)
    world.dying = {"int4"}
    world.run(1)
    world.dying = set()
    world.run(3)

    assert world.point.variant == "int4"
    assert world.state.quarantine == {}


def test_one_that_keeps_dying_while_it_loads_is_tried_ever_more_rarely_then_left_out() -> None:
    world = World(policy(), dying={"fp32"}, action_s=0.0).start()
    for _ in range(100):
        world.run(0.25, 0.25)
    tries = starts(world, "fp32")
    rests = [later - earlier for earlier, later in pairwise(tries)]

    assert len(tries) == BARREN_ALLOWED + 1
    for rest_s, least_s in zip(rests, [0.0, 0.5, 1.0, 2.0, 4.0], strict=True):
        assert least_s <= rest_s <= least_s + 1.0
    assert world.point.variant == "int8"
    assert (
        "6 of its workers in a row have produced nothing" in world.state.quarantine["fp32"].reason
    )


@pytest.mark.parametrize(("load_s", "tries"), [(25.0, 1), (9.0, 3)])
def test_loads_that_take_long_are_given_up_sooner(load_s: float, tries: int) -> None:
    world = World(policy(), dying={"fp32"}, action_s=load_s).start()
    for _ in range(240):
        world.run(0.25, 0.25)

    assert len(starts(world, "fp32")) == tries
    assert world.state.quarantine["fp32"].reason.startswith("loading takes long")


def test_deaths_while_it_loads_and_while_it_serves_count_together() -> None:
    world = World(policy()).start()
    for _ in range(BARREN_ALLOWED):
        lose_the_worker(world, tokens=0)
        world.run(12)
    before = world.point.variant
    world.loaded, world.dying = PARKED, {"fp32"}
    lose_the_worker(world, tokens=1)  # one that has served: the count begins anew
    world.run(1)
    once = dict(world.state.quarantine)
    world.run(60)

    assert before == "fp32"
    assert once == {}
    assert "fp32" in world.state.quarantine


def test_what_the_worker_refuses_to_load_is_left_out_at_once() -> None:
    world = World(policy(), failing={"fp32"}).start().run(10)

    assert len(starts(world, "fp32")) == 1
    assert world.point.variant == "int8"


# ---------------------------------------------------------------- while another one serves


def test_a_pinned_variant_that_keeps_dying_rests_between_its_tries_while_another_serves() -> None:
    world = World(policy(), dying={"int8"}, action_s=0.0).start()
    served = world.point
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    for _ in range(100):
        world.run(0.25, 0.25)
    tries = starts(world, "int8")

    assert world.point == served
    assert len(tries) == BARREN_ALLOWED + 1
    assert tries[-1] - tries[0] >= 7.5
    assert "int8" in world.state.quarantine


def test_what_had_to_go_for_a_step_up_whose_worker_dies_is_loaded_again_first() -> None:
    both = model(fp32=640, int8=500)
    world = World(policy(), model=both, free_bytes=1260 * MIB).start()
    before = world.point.variant
    world.dying = {"fp32"}
    world.free_bytes = 1640 * MIB  # for one of them
    world.demand = Demand(held=2)
    while not starts(world, "fp32"):
        world.run(1)
    switch = world.actions[-1]
    world.run(3)
    back = world.decisions[-1]

    assert isinstance(switch, SwitchWorker)
    assert switch.mode is HandoverMode.BREAK_BEFORE_MAKE
    assert (before, world.point.variant) == ("int8", "int8")
    assert back.trigger.text == "fp32, for which it had to go, did not load"
    assert world.state.quarantine == {}


# ---------------------------------------------------------------- in spite of a quarantine


def left_out(world: World) -> float:
    """The only variant's files are refused while two streams are held; when that was."""
    world.start()
    world.failing = {"int4"}
    lose_the_worker(world)
    world.run(2)
    assert "int4" in world.state.quarantine
    return world.state.quarantine["int4"].since_s


def test_held_streams_outlive_the_quarantine_of_the_only_variant() -> None:
    world = World(policy(), model=ONE)
    began_s = left_out(world)
    world.failing = set()
    while world.point.parked:
        world.run(1)
    back = world.decisions[-1]
    world.run(HOLD_MAX_S)

    assert world.now - HOLD_MAX_S - began_s < HOLD_MAX_S / 2
    assert "int4 is tried in spite of its quarantine (it does not load)" in back.trigger.text
    assert world.point.variant == "int4"  # what serves isn't left out any more


@pytest.mark.parametrize("hold_max_s", [10.0, 60.0, 600.0])
def test_the_only_variant_is_tried_a_few_times_while_streams_are_held(hold_max_s: float) -> None:
    rules = policy(handover=replace(policy().handover, hold_max_s=hold_max_s))
    world = World(rules, model=ONE)
    began_s = left_out(world)
    world.run(began_s + hold_max_s - world.now)
    tries = [at_s for at_s in starts(world, "int4") if began_s < at_s <= began_s + hold_max_s]

    assert 1 <= len(tries) <= max(TRIES_WHILE_HELD, hold_max_s / 60.0)
    assert world.state.quarantine["int4"].wait_s <= 480.0


def test_tries_in_spite_of_a_quarantine_make_it_no_longer() -> None:
    world = World(policy(), model=ONE)
    left_out(world)
    world.run(40)
    tries = starts(world, "int4")

    assert len(tries) >= 4
    assert world.state.quarantine["int4"].wait_s == 60.0


def test_a_variant_that_dies_in_spite_of_its_quarantine_has_one_try_at_a_time() -> None:
    world = World(policy(), model=ONE)
    began_s = left_out(world)
    world.failing, world.dying = set(), {"int4"}
    world.run(HOLD_MAX_S / TRIES_WHILE_HELD + 3)
    tries = [at_s for at_s in starts(world, "int4") if at_s > began_s]

    assert len(tries) == 1


def test_nobody_is_tried_in_spite_of_a_quarantine_for_what_only_waits() -> None:
    world = World(policy(), model=ONE)
    left_out(world)
    world.demand = Demand(waiting=2)
    tries = len(starts(world, "int4"))
    world.run(50)

    assert len(starts(world, "int4")) == tries


def test_nobody_is_tried_in_spite_of_a_quarantine_while_another_variant_can_be_had() -> None:
    world = World(policy(), failing={"fp32"})
    world.start().run(3)
    lose_the_worker(world)
    world.run(50)

    assert world.point.variant == "int8"
    assert len(starts(world, "fp32")) == 1


def test_a_variant_in_quarantine_that_does_not_fit_is_not_tried() -> None:
    world = World(policy(), model=ONE)
    left_out(world)
    tries = len(starts(world, "int4"))
    world.free_bytes = 600 * MIB
    world.run(50)

    assert len(starts(world, "int4")) == tries


def test_a_pinned_variant_in_quarantine_is_tried_if_no_other_fits() -> None:
    world = World(policy(), model=model(fp32=3000, int4=140), free_bytes=1500 * MIB).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "int4"),), None, "uid 0"))
    world.run(5)
    world.failing = {"int4"}
    lose_the_worker(world)
    world.run(2)
    world.failing = set()
    world.run(HOLD_MAX_S / 2)

    assert world.point.variant == "int4"


def test_streams_that_may_be_held_for_a_moment_only_bring_no_storm_of_loads() -> None:
    rules = policy(handover=replace(policy().handover, hold_max_s=1.0))
    world = World(rules, model=ONE)
    began_s = left_out(world)
    world.run(1)
    world.demand = Demand()  # they have ended
    world.run(50)

    assert len([at_s for at_s in starts(world, "int4") if at_s > began_s]) <= 1
