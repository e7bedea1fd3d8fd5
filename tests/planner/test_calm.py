"""When a daemon at rest may look less often."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_world import MIB, World

from policies_for_tests import policy
from trimtab.domain.events import Demand, WorkerLost
from trimtab.planner.calm import calm
from trimtab.policy.compiled import MemoryLimit, Policy, TemperatureLimit

POLICY = policy(memory=MemoryLimit(500 * MIB, 700 * MIB), temperature=TemperatureLimit(80.0, 70.0))


def settled(chosen: Policy = POLICY, **settings: object) -> World:
    """A world that has loaded its variant and measured the effect."""
    return replace(World(chosen), **settings).start().run(60)


def test_a_loaded_model_that_nobody_asks_is_calm() -> None:
    world = settled(celsius=50.0)

    assert not world.point.parked
    assert calm(world.state, POLICY)


@pytest.mark.parametrize("demand", [Demand(running=1), Demand(waiting=1), Demand(held=1)])
def test_a_request_is_not_calm(demand: Demand) -> None:
    world = settled()
    world.demand = demand

    world.run(1)

    assert not calm(world.state, POLICY)


def test_loading_is_not_calm() -> None:
    world = World(POLICY, action_s=10.0).start()

    assert not calm(world.state, POLICY)


def test_a_temperature_near_its_limit_is_not_calm_and_one_far_below_is() -> None:
    world = settled(celsius=69.0)
    below = calm(world.state, POLICY)
    world.celsius = 71.0

    world.run(1)

    assert below
    assert not calm(world.state, POLICY)


def test_a_lost_worker_is_not_calm() -> None:
    world = settled()

    world.post(WorkerLost(world.now, "fp32", "killed", 0))

    assert not calm(world.state, POLICY)


def test_memory_that_goes_steadily_is_not_calm() -> None:
    world = settled()
    for _ in range(6):
        world.free_bytes -= 60 * MIB
        world.run(1)

    assert not calm(world.state, POLICY)
