"""Memory that runs short while something else is going on: the cheap means are there at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from planner_world import MIB, World

from policies_for_tests import PLAIN, policy
from trimtab.domain.actions import ReleaseIdleKv, SetContext, SwitchWorker
from trimtab.domain.decisions import Direction
from trimtab.domain.events import Demand, PausedSet, PolicyChanged, RequestWaiting
from trimtab.domain.knobs import PARKED


def parked() -> World:
    """Others have taken so much that nothing can be loaded."""
    world = World(policy()).start()
    world.free_bytes = 50 * MIB
    return world.run(5)


def test_idle_kv_is_given_back_while_a_worker_loads_and_the_load_goes_on() -> None:
    world = World(policy(), action_s=20.0).start().run(30)
    world.free_bytes = 1000 * MIB
    world.run(2)
    loading = world.state.running
    world.demand = Demand(idle_bytes=200 * MIB)
    world.free_bytes = 700 * MIB
    world.run(2)

    assert isinstance(loading, SwitchWorker)
    assert isinstance(world.actions[-1], ReleaseIdleKv)
    assert world.decisions[-1].direction is Direction.RELIEF
    assert world.demand.idle_bytes == 0
    assert world.state.running == loading
    world.run(25)
    assert world.point.variant == loading.point.variant


def test_what_gives_nothing_back_while_a_worker_loads_is_asked_once_a_second() -> None:
    world = World(policy(), action_s=20.0, stuck=True).start().run(30)
    world.free_bytes = 1000 * MIB
    world.run(2)
    world.demand = Demand(idle_bytes=200 * MIB)
    world.free_bytes = 700 * MIB
    before = len(world.decisions)
    world.run(5, tick_s=0.01)

    assert 5 <= len(world.decisions) - before <= 6


def test_idle_kv_is_given_back_while_nothing_is_loaded() -> None:
    world = parked()
    point = world.point
    world.demand = Demand(idle_bytes=40 * MIB)
    world.run(3)

    assert point == PARKED
    assert world.demand.idle_bytes == 0


def test_a_smaller_context_comes_before_a_reload_without_the_draft() -> None:
    knobs = replace(PLAIN.knobs, speculation=("off", "draft:int4"), context_min=512)
    world = World(policy(knobs=knobs)).start()
    began = world.point
    held = world.free_bytes - world.available_bytes
    world.free_bytes = held + (PLAIN.memory.headroom_bytes if PLAIN.memory else 0) + 40 * MIB
    world.run(3)

    assert began.speculation == "draft:int4"
    assert world.point.speculation == "draft:int4"
    assert world.point.context < began.context
    assert isinstance(world.actions[-1], SetContext)


def test_our_own_conversations_are_no_trend_of_others() -> None:
    world = World(policy()).start().run(30)
    world.free_bytes = 3000 * MIB
    world.run(10)
    for _ in range(10):
        world.free_bytes -= 13 * MIB
        grown = world.demand.running_bytes + 13 * MIB
        world.demand = replace(world.demand, running=1, running_bytes=grown)
        world.run(1)

    assert max(world.state.falls_bytes_s) == 0
    assert world.point.variant == "fp32"


def test_a_parked_model_stays_so_while_memory_cannot_be_seen() -> None:
    world = parked()
    world.blind = True
    world.post(RequestWaiting(world.now))
    world.demand = Demand(waiting=1)
    world.run(30)
    unseen = world.point
    world.blind, world.free_bytes = False, 8192 * MIB
    world.run(5)

    assert unseen == PARKED
    assert world.point.variant == "fp32"


def test_a_policy_without_a_memory_limit_needs_no_sight_of_it() -> None:
    world = parked()
    world.blind = True
    world.policy = policy(memory=None, revision="000000000002")
    world.post(PolicyChanged(world.now, "000000000002"))
    world.demand = Demand(waiting=1)
    world.run(5)

    assert world.point.variant == "fp32"


def test_starts_that_are_taken_back_again_and_again_get_rarer() -> None:
    world = World(policy(), free_bytes=50 * MIB, action_s=5.0).start()
    world.demand = Demand(waiting=1)
    for _ in range(60):  # somebody takes everything and gives it back, every ten seconds
        world.free_bytes = 8192 * MIB
        world.run(10)
        world.free_bytes = 50 * MIB
        world.run(10)
    starts = [one.at_s for one in world.decisions if one.direction is Direction.START]

    assert len(starts) < 25  # of sixty
    assert max(b - a for a, b in pairwise(starts)) >= 60


def test_a_start_that_lasts_makes_the_next_one_prompt_again() -> None:
    world = World(policy(), free_bytes=50 * MIB, action_s=5.0).start()
    world.demand = Demand(waiting=1)
    for _ in range(4):
        world.free_bytes = 8192 * MIB
        world.run(10)
        world.free_bytes = 50 * MIB
        world.run(10)
    world.free_bytes = 8192 * MIB
    world.run(1200)
    world.free_bytes = 50 * MIB
    world.run(10)
    world.free_bytes = 8192 * MIB
    world.run(8)  # parking and the load take five seconds each

    assert world.point.variant is not None


def test_a_paused_model_whose_point_is_no_longer_allowed_still_gives_way_to_memory() -> None:
    world = World(policy(), celsius=79.9).start().run(100)
    world.celsius = 80.1
    world.post(PausedSet(world.now, True, "test"))
    world.run(3)  # heat forbids the pace in force, and nothing may be moved for it
    hot = world.point
    world.free_bytes = 300 * MIB
    world.run(3)

    assert hot.pace_ratio == 1.0
    assert world.point == PARKED
