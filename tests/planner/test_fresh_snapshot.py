"""After a hand-over nothing is decided on memory as it was before it."""

from __future__ import annotations

from dataclasses import replace

from planner_world import MIB, World

from policies_for_tests import policy
from trimtab.domain.actions import SwitchWorker
from trimtab.domain.events import (
    ActionEnded,
    Demand,
    ModelChanged,
    OutcomeKind,
    PolicyChanged,
    Tick,
)


def just_loaded() -> World:
    """fp32 is loaded, and the last tick saw its memory gone without knowing who has it."""
    world = World(policy(), free_bytes=1700 * MIB)
    world.post(ModelChanged(world.now, world.model))
    world.post(Tick(world.now, world.snapshot(), Demand()))
    switch = world.actions[-1]
    assert isinstance(switch, SwitchWorker)
    world.pending.clear()
    world.loaded = switch.point
    world.now += 0.8
    world.post(Tick(world.now, world.snapshot(), Demand(worker_bytes=None)))
    world.now += 0.1
    world.post(ActionEnded(world.now, switch.id, OutcomeKind.DONE, switch.point, 1.0))
    return world


def test_the_end_of_a_step_is_not_judged_by_the_snapshot_before_it() -> None:
    world = just_loaded()
    world.run(10)

    assert world.moves == ["start fp32"]


def test_other_events_wait_for_the_next_tick_too() -> None:
    world = just_loaded()
    world.post(PolicyChanged(world.now, "r2"))
    at_once = list(world.moves)
    world.free_bytes = 1000 * MIB
    world.demand = replace(world.demand, running=1)
    world.run(1)

    assert at_once == ["start fp32"]
    assert world.moves == ["start fp32", "down int8"]
