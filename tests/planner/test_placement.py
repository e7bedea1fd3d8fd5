"""Running conversations' KV on disk: the last rung before everything is parked."""

from __future__ import annotations

from dataclasses import replace

from planner_world import MIB, World, model

from policies_for_tests import policy
from trimtab.domain.actions import GiveWay, HandoverMode, Park, PlaceIdleKv, SwitchWorker
from trimtab.domain.decisions import Direction
from trimtab.domain.events import Demand, PinSet, WorkerLost
from trimtab.domain.knobs import PARKED, Knob, KvPlacement, OperatingPoint
from trimtab.planner import State
from trimtab.planner.relief import RUNNING_KV
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


def on_the_last_rung() -> World:
    world = squeezed(placing(*RUNGS), 200 * MIB)
    world.run(1)
    world.demand = Demand(running=2, filed_bytes=200 * MIB)
    world.free_bytes = 800 * MIB
    return world.run(5)


def lose_the_worker(world: World) -> None:
    world.loaded = PARKED
    world.demand = replace(world.demand, running=0, held=2)
    world.post(WorkerLost(world.now, "int4", "killed by SIGKILL", tokens=50))


def test_a_worker_that_is_lost_on_the_last_rung_comes_back_to_it() -> None:
    world = on_the_last_rung()
    before = world.point
    lose_the_worker(world)
    world.run(5)

    assert before.kv_placement is KvPlacement.DISK_ALL
    assert world.decisions[-1].target == before
    assert world.point == before


def test_a_worker_that_is_lost_while_kv_is_on_its_way_to_disk_comes_back_at_once() -> None:
    world = squeezed(placing(*RUNGS), 200 * MIB)
    world.run(1)
    waited = world.state.waiting_for
    world.pending.clear()  # the disk hangs, and the end of it never comes
    world.free_bytes = 800 * MIB
    lose_the_worker(world)
    world.run(3)

    assert waited
    assert world.point.variant == "int4"


def test_what_the_disk_has_not_taken_yet_is_no_room_for_a_step_up() -> None:
    world = on_the_last_rung()
    world.demand = replace(world.demand, unwritten_bytes=200 * MIB)
    world.free_bytes = 1320 * MIB  # for int8, were it not for that
    world.run(120)
    before = world.point.variant
    world.demand = replace(world.demand, unwritten_bytes=0)
    world.run(120)

    assert (before, world.point.variant) == ("int4", "int8")


def test_another_variant_goes_on_with_kv_where_it_is() -> None:
    world = on_the_last_rung()
    world.free_bytes = 1000 * MIB  # for the larger one too
    world.failing = {"int4"}
    lose_the_worker(world)
    world.run(5)

    assert (world.point.variant, world.point.kv_placement) == ("int8", KvPlacement.DISK_ALL)


def test_what_was_parked_from_the_last_rung_wakes_up_there_while_files_hold_kv() -> None:
    world = on_the_last_rung()
    world.free_bytes = 500 * MIB
    world.run(5)
    parked = world.point.parked
    world.demand = Demand(held=2, filed_bytes=200 * MIB)
    world.free_bytes = 800 * MIB
    world.run(120)

    assert parked
    assert (world.point.variant, world.point.kv_placement) == ("int4", KvPlacement.DISK_ALL)


def test_what_was_parked_from_the_last_rung_wakes_up_in_memory_once_no_file_holds_kv() -> None:
    world = on_the_last_rung()
    world.free_bytes = 500 * MIB
    world.run(5)
    parked = world.point.parked
    world.demand = Demand(waiting=1)
    world.free_bytes = 800 * MIB
    world.run(120)

    assert parked
    assert (world.point.variant, world.point.kv_placement) == ("int4", KvPlacement.MEMORY)


def test_idle_conversations_stay_on_disk_when_the_worker_is_lost() -> None:
    world = World(placing(*RUNGS)).start()
    world.demand = Demand(idle_bytes=100 * MIB)
    world.free_bytes = 1400 * MIB
    world.run(3)
    world.demand = Demand(running=1)
    before = world.point
    lose_the_worker(world)
    world.run(3)

    assert before.kv_placement is KvPlacement.DISK
    assert world.point == before


def test_a_worker_that_is_lost_before_all_files_are_home_comes_back_as_it_was() -> None:
    world = on_the_last_rung()
    world.run(1)
    point = replace(world.point, kv_placement=KvPlacement.DISK)
    world.loaded = point
    world.state = replace(world.state, point=point)
    lose_the_worker(world)
    filed = world.state.demand.filed_bytes

    assert filed > 0
    assert world.decisions[-1].target == point


def test_a_restart_tries_the_last_point_with_its_placement() -> None:
    last = OperatingPoint("int8", 1024, kv_placement=KvPlacement.DISK)
    world = World(placing(*RUNGS), state=State(lost_point=last)).start()

    assert world.decisions[0].target == last
    assert world.point == last


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


# ---------------------------------------------------------------- conversations that wait


def yielding(world: World, size_bytes: int) -> World:
    """Conversations that could wait hold so much of memory."""
    world.demand = replace(
        world.demand, running_bytes=world.demand.running_bytes, yielding_bytes=size_bytes
    )
    return world


def test_conversations_wait_before_everything_is_parked() -> None:
    world = yielding(squeezed(placing(KvPlacement.MEMORY), 300 * MIB), 200 * MIB)
    before, missing = len(world.actions), 512 * MIB - int(world.available_bytes)
    world.run(1)
    (action,) = world.actions[before:]
    decision = world.decisions[-1]
    world.run(30)

    assert isinstance(action, GiveWay)
    assert action.wanted_bytes >= missing
    assert decision.direction is Direction.GIVE_WAY
    assert decision.source == decision.target
    assert "conversations that can wait hold 200 MiB" in decision.trigger.text
    assert world.point.variant == "int4"
    assert len(world.actions) == before + 1


def test_running_kv_goes_to_disk_before_conversations_wait_for_each_other() -> None:
    world = yielding(squeezed(placing(*RUNGS), 200 * MIB), 200 * MIB)
    before = len(world.actions)
    world.run(3)  # the disk takes nothing
    kinds = [type(action) for action in world.actions[before:]]

    assert kinds == [PlaceIdleKv, GiveWay]


def test_where_nothing_would_fit_even_so_nobody_waits_in_vain() -> None:
    world = yielding(squeezed(placing(KvPlacement.MEMORY), 300 * MIB), 50 * MIB)
    before = len(world.actions)
    world.run(2)

    assert [type(action) for action in world.actions[before:]] == [Park]


def test_conversations_that_give_nothing_back_are_not_asked_again() -> None:
    world = yielding(squeezed(placing(KvPlacement.MEMORY), 300 * MIB), 200 * MIB)
    world.stuck = True
    before = len(world.actions)
    world.run(10)

    assert [type(action) for action in world.actions[before:]] == [GiveWay, Park]
    assert world.state.distrust[RUNNING_KV].reason.startswith("conversations that were to give way")


def test_what_is_held_makes_room_for_a_worker_that_goes_on_with_it() -> None:
    world = squeezed(placing(KvPlacement.MEMORY), 0)
    world.run(10)
    parked = world.point.parked
    world.free_bytes = 540 * MIB  # int4 takes some 140 of it, and needs 512 beside
    world.demand = Demand(held=4, running_bytes=900 * MIB, yielding_bytes=900 * MIB)
    before = len(world.actions)
    world.run(60)
    first, second = world.actions[before:]

    assert parked
    assert isinstance(first, GiveWay)
    assert first.wanted_bytes < 900 * MIB
    assert isinstance(second, SwitchWorker)
    assert not world.point.parked


def test_what_is_held_makes_room_while_memory_is_short_with_nothing_loaded() -> None:
    world = squeezed(placing(KvPlacement.MEMORY), 0)
    world.run(10)
    world.free_bytes = 300 * MIB
    world.demand = Demand(held=4, running_bytes=250 * MIB, yielding_bytes=200 * MIB)
    before = len(world.decisions)
    world.run(5)

    assert [one.direction for one in world.decisions[before:]] == [Direction.GIVE_WAY]
    assert "while nothing is loaded" in world.decisions[-1].trigger.text
    assert world.available_bytes >= 512 * MIB


# ---------------------------------------------------------------- the way back

CONVERSATION = 2048 * 32 * 1024
"""KV of one that fills its context."""


def squeezed_once() -> World:
    """A model that takes most of the memory; others took some for a moment, and KV is on disk."""
    world = World(placing(*RUNGS), model=model(int8=1800)).start()
    world.free_bytes = 3400 * MIB
    world.run(20)
    world.free_bytes = 2600 * MIB
    world.demand = Demand(idle_bytes=100 * MIB)
    world.run(3)
    world.demand = Demand()
    assert world.point.kv_placement is KvPlacement.DISK
    return world


def set_available(world: World, size_bytes: float) -> None:
    world.free_bytes += size_bytes - world.available_bytes


def test_it_comes_back_where_the_loaded_model_has_no_room_for_a_second_time() -> None:
    world = squeezed_once()
    set_available(world, 1540 * MIB)
    world.run(60)

    assert world.point.kv_placement is KvPlacement.MEMORY


def test_it_comes_back_once_a_whole_conversation_has_room_over_the_leave_threshold() -> None:
    world = squeezed_once()
    set_available(world, 768 * MIB + CONVERSATION - 1)
    world.run(300)
    before = world.point.kv_placement
    set_available(world, 768 * MIB + CONVERSATION)
    world.run(2)

    assert before is KvPlacement.DISK
    assert world.point.kv_placement is KvPlacement.MEMORY


def test_what_runs_on_disk_needs_room_to_come_back_and_what_is_unwritten_is_none() -> None:
    world = on_the_last_rung()
    world.demand = Demand(running=2, filed_bytes=200 * MIB, unwritten_bytes=50 * MIB)
    as_it_is = replace(world.policy.knobs, variants=("int4",), context_max=world.point.context)
    world.policy = replace(world.policy, knobs=as_it_is)
    set_available(world, (768 + 250) * MIB + world.point.context * 32 * 1024 - 1)
    world.run(300)
    before = world.point.kv_placement
    world.demand = replace(world.demand, unwritten_bytes=0)
    world.run(2)

    assert before is KvPlacement.DISK_ALL
    assert world.point.kv_placement is KvPlacement.DISK


def test_it_does_not_go_to_and_fro_where_ended_conversations_soon_fill_memory_again() -> None:
    world = squeezed_once()
    world.free_bytes = world.free_bytes - world.available_bytes + 768 * MIB + CONVERSATION
    for _ in range(1800):
        idle = world.demand.idle_bytes
        if world.point.kv_placement is KvPlacement.DISK:
            world.demand = Demand()  # they go to disk
        else:
            world.demand = Demand(idle_bytes=idle + 20 * MIB)
        world.run(1)
    moves = [one for one in world.actions if isinstance(one, PlaceIdleKv)]

    assert len(moves) <= 16  # half an hour of dwell times would have room for a hundred


# ---------------------------------------------------------------- what isn't written yet


def test_a_second_worker_is_not_loaded_into_memory_that_is_not_written_yet() -> None:
    modes = []
    for unwritten in (0, 400 * MIB):
        world = World(placing(*RUNGS)).start()
        held = world.free_bytes - world.available_bytes
        world.free_bytes = held + 512 * MIB + 400 * MIB  # int8 would fit beside it
        world.demand = Demand(running=2, filed_bytes=unwritten, unwritten_bytes=unwritten)
        world.run(1)
        world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
        modes += [one.mode for one in world.actions if isinstance(one, SwitchWorker)][1:]

    assert modes == [HandoverMode.MAKE_BEFORE_BREAK, HandoverMode.BREAK_BEFORE_MAKE]
