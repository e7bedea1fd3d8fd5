"""Running conversations' KV on disk: the last rung before everything is parked."""

from __future__ import annotations

from dataclasses import replace

from planner_world import MIB, World

from policies_for_tests import policy
from trimtab.domain.actions import Park, PlaceIdleKv
from trimtab.domain.events import Demand
from trimtab.domain.knobs import KvPlacement
from trimtab.policy.compiled import Policy

RUNGS = (KvPlacement.MEMORY, KvPlacement.DISK, KvPlacement.DISK_ALL)


def placing(*rungs: KvPlacement) -> Policy:
    return policy(knobs=replace(policy().knobs, kv_placement=rungs))


def squeezed(rules: Policy, running_bytes: int) -> World:
    """The smallest variant runs, and 112 MiB are missing of the headroom of 512."""
    world = World(rules).start()
    world.free_bytes = 780 * MIB
    world.run(10)
    world.demand = Demand(running=2, running_bytes=running_bytes)
    world.free_bytes = 600 * MIB
    return world


def test_running_conversations_go_to_disk_before_everything_is_parked() -> None:
    world = squeezed(placing(*RUNGS), 200 * MIB)
    before = len(world.actions)
    world.run(1)
    (action,) = world.actions[before:]
    decision = world.decisions[-1]
    world.demand = Demand(running=2, filed_bytes=200 * MIB)
    world.free_bytes = 800 * MIB
    world.run(5)

    assert action == PlaceIdleKv(action.id, KvPlacement.DISK_ALL)
    assert "running conversations hold 200 MiB" in decision.trigger.text
    assert world.point.variant == "int4"
    assert world.point.kv_placement is KvPlacement.DISK_ALL


def test_what_was_not_enough_is_followed_by_parking() -> None:
    world = squeezed(placing(*RUNGS), 200 * MIB)
    world.run(10)

    assert any(isinstance(action, PlaceIdleKv) for action in world.actions)
    assert isinstance(world.actions[-1], Park)
    assert world.point.parked


def test_the_variant_steps_down_as_well_where_only_both_are_enough() -> None:
    world = World(placing(*RUNGS)).start()
    world.free_bytes = 900 * MIB
    world.run(10)
    larger = world.point.variant
    world.demand = Demand(running=2, running_bytes=150 * MIB)
    world.free_bytes = 600 * MIB
    world.run(1)
    world.demand = Demand(running=2, filed_bytes=150 * MIB)
    world.free_bytes = 750 * MIB
    world.run(5)

    assert larger == "int8"
    assert (world.point.variant, world.point.kv_placement) == ("int4", KvPlacement.DISK_ALL)


def test_conversations_that_hold_too_little_are_not_moved_in_vain() -> None:
    world = squeezed(placing(*RUNGS), 50 * MIB)
    world.run(10)

    assert not any(isinstance(action, PlaceIdleKv) for action in world.actions)
    assert world.point.parked


def test_a_policy_that_keeps_running_conversations_in_memory_parks() -> None:
    world = squeezed(placing(KvPlacement.MEMORY, KvPlacement.DISK), 200 * MIB)
    world.run(10)

    assert not any(isinstance(action, PlaceIdleKv) for action in world.actions)
    assert world.point.parked


def test_they_come_back_rung_by_rung_once_there_is_room_for_them_too() -> None:
    world = squeezed(placing(*RUNGS), 200 * MIB)
    world.run(1)
    filed = Demand(running=2, filed_bytes=200 * MIB)
    world.demand = filed
    world.free_bytes = 800 * MIB
    world.run(60)
    still = world.point.kv_placement
    world.free_bytes = 8192 * MIB
    seen = []
    for _ in range(200):
        world.run(1)
        if world.point.kv_placement is not KvPlacement.DISK_ALL:
            world.demand = Demand(running=2, running_bytes=200 * MIB)
        seen.append(world.point.kv_placement)

    assert (world.point.variant, still) == ("fp32", KvPlacement.DISK_ALL)
    assert list(dict.fromkeys(seen)) == [
        KvPlacement.DISK_ALL,
        KvPlacement.DISK,
        KvPlacement.MEMORY,
    ]
