"""What `step` does, event by event."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from planner_world import LADDER, MIB, World

from policies_for_tests import policy
from trimtab.domain.actions import (
    HandoverMode,
    Park,
    PlaceIdleKv,
    ReleaseIdleKv,
    SetSpeculation,
    SwitchWorker,
)
from trimtab.domain.decisions import Direction
from trimtab.domain.events import (
    ActionEnded,
    Demand,
    ModelChanged,
    OutcomeKind,
    PausedSet,
    PinCleared,
    PinSet,
    PolicyChanged,
    RequestWaiting,
    WorkerLost,
)
from trimtab.domain.knobs import PARKED, Knob, KvPlacement
from trimtab.planner.assess import kept_out
from trimtab.planner.faults import BARREN_WINDOW_S
from trimtab.policy.compiled import (
    Comparison,
    Floor,
    KnobBounds,
    MemoryLimit,
    Rule,
    SignalCondition,
    Stability,
    Tightening,
)


def knobs(**changes: object) -> KnobBounds:
    return replace(policy().knobs, **changes)


def test_the_best_variant_that_fits_is_loaded_at_start() -> None:
    world = World(policy()).start()

    assert world.point.variant == "fp32"
    assert world.point.context == 2048
    assert world.moves == ["start fp32"]


def test_a_smaller_variant_is_loaded_at_start_when_memory_is_short() -> None:
    world = World(policy(), free_bytes=1000 * MIB).start()

    assert world.point.variant == "int8"


def test_nothing_is_loaded_when_nothing_fits_and_the_daemon_stays_parked() -> None:
    world = World(policy(), free_bytes=600 * MIB).start().run(60)

    assert world.point == PARKED
    assert world.decisions == []


def test_memory_under_the_headroom_steps_down_at_once() -> None:
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(2)

    decision = world.decisions[-1]
    assert world.point.variant == "int8"
    assert decision.direction is Direction.DOWN
    assert decision.trigger.signal == "memory.available"
    assert decision.trigger.threshold == 512 * MIB
    assert decision.trigger.value == 300 * MIB


def test_one_fall_of_memory_costs_one_switch() -> None:
    world = World(policy()).start()
    world.free_bytes = 800 * MIB
    world.run(300)

    assert world.moves == ["start fp32", "down int4"]


def test_a_step_up_waits_for_the_dwell_time() -> None:
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(10)
    world.free_bytes = 8192 * MIB
    world.run(29)
    waiting = world.point.variant
    world.run(5)

    assert waiting == "int8"
    assert world.point.variant == "fp32"
    assert world.decisions[-1].direction is Direction.UP


def test_a_step_up_must_leave_the_leave_threshold_after_the_step() -> None:
    """fp32 and its whole context need 764 MiB, and 768 must be left: 1532 MiB."""
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(10)
    world.free_bytes = 1480 * MIB
    world.run(300)
    short = world.point.variant
    world.free_bytes = 1540 * MIB
    world.run(60)

    assert short == "int8"
    assert world.point.variant == "fp32"


def test_memory_that_swings_within_the_band_changes_nothing() -> None:
    world = World(policy()).start()
    for turn in range(200):
        world.free_bytes = (1400 if turn % 2 else 1300) * MIB
        world.run(10)

    assert world.moves == ["start fp32"]


def test_the_wait_for_a_step_up_doubles_when_the_last_one_had_to_be_taken_back() -> None:
    world = World(policy()).start()
    for _ in range(6):
        world.free_bytes = 1000 * MIB
        world.run(5)
        world.free_bytes = 8192 * MIB
        world.run(34)

    assert world.moves.count("up fp32") < 4


def test_a_shrinking_context_comes_before_a_smaller_variant() -> None:
    """At 1280 MiB, fp32 leaves 580 and a conversation of 2048 tokens would take 64 of them…"""
    world = World(policy(memory=MemoryLimit(560 * MIB, 768 * MIB))).start()
    world.free_bytes = 1280 * MIB
    world.run(5)

    assert world.point.variant == "fp32"
    assert world.point.context == 512
    assert len(world.actions) == 2


def test_a_variant_under_the_quality_floor_is_never_chosen() -> None:
    world = World(policy(floor=Floor(0.85, 256))).start()
    world.free_bytes = 750 * MIB
    world.run(5)

    assert world.point == PARKED
    assert isinstance(world.actions[-1], Park)
    assert any("floor" in one.reason for one in world.decisions[-1].excluded)


def test_a_parked_daemon_wakes_for_a_request_if_a_point_fits() -> None:
    world = World(policy()).start()
    world.free_bytes = 600 * MIB
    world.run(5)
    parked = world.point
    world.free_bytes = 740 * MIB
    world.run(60)
    still = world.point
    world.demand = Demand(waiting=1)
    world.post(RequestWaiting(world.now))
    world.run(3)

    assert parked == PARKED
    assert still == PARKED
    assert world.point.variant == "int4"


def test_a_parked_daemon_wakes_by_itself_when_there_is_room_again() -> None:
    world = World(policy()).start()
    world.free_bytes = 600 * MIB
    world.run(5)
    world.free_bytes = 8192 * MIB
    world.run(40)

    assert world.point.variant == "fp32"


def test_both_workers_live_together_where_memory_allows() -> None:
    world = World(policy()).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    action = world.actions[-1]

    assert isinstance(action, SwitchWorker)
    assert action.mode is HandoverMode.MAKE_BEFORE_BREAK


def test_the_old_worker_goes_first_where_both_do_not_fit() -> None:
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(1)
    action = world.actions[-1]

    assert isinstance(action, SwitchWorker)
    assert action.mode is HandoverMode.BREAK_BEFORE_MAKE


def test_a_pin_is_kept_whatever_the_policy_says_and_ends_at_its_time() -> None:
    world = World(policy(knobs=knobs(variants=("fp32", "int8")))).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "int4"),), world.now + 60, "uid 0"))
    world.run(50)
    pinned = world.point.variant
    world.run(100)

    assert pinned == "int4"
    assert world.point.variant == "fp32"


def test_a_pin_that_does_not_fit_parks_rather_than_break_the_memory_limit_or_the_pin() -> None:
    world = World(policy()).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "fp32"),), None, "uid 0"))
    world.free_bytes = 1000 * MIB
    world.run(5)

    assert world.point == PARKED


def test_a_pinned_variant_that_does_not_load_takes_nothing_away_from_the_serving_one() -> None:
    world = World(policy(), failing={"int8"}).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    world.run(50)

    assert world.loaded.variant == "fp32"
    assert world.moves == ["start fp32", "down int8"]
    assert kept_out(world.state, world.now) == world.state.quarantine["int8"]


def test_a_pinned_variant_that_did_not_load_is_tried_again_while_it_is_pinned() -> None:
    world = World(policy(), failing={"int8"}).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    world.run(10)
    world.failing.clear()
    world.run(60)
    again = world.decisions[-1]

    assert world.point.variant == "int8"
    assert again.trigger.text == "int8 is pinned"
    assert kept_out(world.state, world.now) is None


def test_a_pinned_variant_that_did_not_load_is_not_tried_again_once_it_is_unpinned() -> None:
    world = World(policy(), failing={"int8"}).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    world.run(10)
    world.post(PinCleared(world.now, "uid 0"))
    world.run(200)

    assert world.moves == ["start fp32", "down int8"]


def test_what_had_to_go_first_for_a_pinned_variant_that_does_not_load_comes_back() -> None:
    world = World(policy(), free_bytes=1400 * MIB, failing={"int8"}).start()
    before = world.point
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    switch = world.actions[-1]
    world.run(10)
    back = world.decisions[-1]

    assert isinstance(switch, SwitchWorker)
    assert switch.mode is HandoverMode.BREAK_BEFORE_MAKE
    assert world.loaded == world.point == before
    assert world.moves == ["start fp32", "down int8", "start fp32"]
    assert back.trigger.text == "int8, for which it had to go, did not load"


def test_it_comes_back_though_something_beside_the_change_ended_while_nothing_was_loaded() -> None:
    world = World(policy(), free_bytes=1400 * MIB, failing={"int8"}).start()
    before = world.point
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    relief = 999
    world.state = replace(world.state, waiting_for=world.state.waiting_for | {relief})
    world.post(ActionEnded(world.now, relief, OutcomeKind.DONE, PARKED, 0.0, "", None))
    in_between = world.point
    world.run(10)

    assert in_between.parked
    assert world.point == before
    assert world.decisions[-1].trigger.text == "int8, for which it had to go, did not load"


def test_the_other_pinned_knobs_wait_with_the_variant_that_they_were_pinned_with() -> None:
    world = World(policy(), failing={"int8"}).start()
    served = world.point
    pinned = ((Knob.VARIANT, "int8"), (Knob.CONTEXT, 1024))
    world.post(PinSet(world.now, pinned, None, "uid 0"))
    world.run(50)

    assert served.context != 1024
    assert world.point == served


def test_others_serve_while_a_pinned_variant_whose_workers_keep_dying_is_left_out() -> None:
    world = World(policy()).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    world.run(5)
    for _ in range(6):
        world.loaded = PARKED
        world.post(WorkerLost(world.now, "int8", "killed by SIGSEGV"))
        world.run(12)

    assert world.point.variant == "fp32"


def test_unpinning_lets_the_planner_move_again() -> None:
    world = World(policy()).start()
    world.post(PinSet(world.now, ((Knob.VARIANT, "int4"),), None, "uid 0"))
    world.run(5)
    world.post(PinCleared(world.now, "uid 0"))
    world.run(60)

    assert world.point.variant == "fp32"


def test_a_paused_planner_still_guards_memory_and_steps_nowhere_else() -> None:
    world = World(policy()).start()
    world.post(PausedSet(world.now, True, "uid 0"))
    world.free_bytes = 1000 * MIB
    world.run(5)
    down = world.point.variant
    world.free_bytes = 8192 * MIB
    world.run(600)

    assert down == "int8"
    assert world.point.variant == "int8"


def test_unreadable_memory_holds_the_point() -> None:
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(5)
    world.free_bytes = 8192 * MIB
    world.blind = True
    world.run(300)

    assert world.point.variant == "int8"


def test_heat_is_answered_with_pace_first() -> None:
    world = World(policy(), celsius=60.0).start()
    world.celsius = 85.0
    world.run(2)

    assert world.point.variant == "fp32"
    assert world.point.pace_ratio == 0.8
    assert world.decisions[-1].trigger.signal == "temperature.max"
    assert world.decisions[-1].direction is Direction.DOWN


def test_heat_that_stays_steps_the_variant_down_once_the_pace_is_spent() -> None:
    world = World(policy(), celsius=60.0).start()
    world.celsius = 85.0
    for _ in range(35):
        world.celsius -= 0.03  # a slower pace cools a little, not enough
        world.run(1)

    assert world.point.variant == "int8"
    assert world.point.pace_ratio == 0.4


def test_a_policy_without_a_pace_knob_steps_the_variant_down_for_heat() -> None:
    world = World(policy(knobs=knobs(pace_min_ratio=1.0)), celsius=85.0).start()
    world.run(5)

    assert world.point.variant == "int8"


def test_cooling_down_undoes_the_steps_one_by_one() -> None:
    world = World(policy(), celsius=60.0).start()
    world.celsius = 85.0
    world.run(15)
    world.celsius = 75.0
    world.run(100)
    between = world.point.pace_ratio
    world.celsius = 65.0
    world.run(200)

    assert between == 0.6
    assert world.point.pace_ratio == 1.0
    assert world.point.variant == "fp32"


def test_a_temperature_that_vanishes_loosens_nothing() -> None:
    world = World(policy(), celsius=60.0).start()
    world.celsius = 85.0
    world.run(15)
    world.celsius = None
    world.run(600)

    assert world.point.pace_ratio == 0.6


def test_a_variant_that_does_not_load_is_left_out_and_the_next_best_is_taken() -> None:
    world = World(policy(), failing={"fp32"}).start().run(10)

    assert world.point.variant == "int8"
    assert any("quarantine" in one.reason for one in world.decisions[-1].excluded)


def test_a_quarantine_ends_and_the_next_one_is_longer() -> None:
    world = World(policy(), failing={"fp32"}).start()
    world.run(400)
    attempts = [one.at_s for one in world.decisions if one.target.variant == "fp32"]
    gaps = [later - earlier for earlier, later in pairwise(attempts)]

    assert world.point.variant == "int8"
    assert len(attempts) >= 3
    assert gaps[1] > gaps[0] + 50


def test_a_lost_worker_is_started_again_at_the_same_point() -> None:
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(5)
    world.loaded = PARKED
    world.post(WorkerLost(world.now, "int8", "killed by SIGKILL"))
    world.run(3)

    assert world.point.variant == "int8"
    assert "SIGKILL" in world.decisions[-1].trigger.text


def test_a_variant_whose_worker_keeps_dying_is_quarantined() -> None:
    world = World(policy()).start()
    for _ in range(6):
        world.loaded = PARKED
        world.post(WorkerLost(world.now, "fp32", "killed by SIGSEGV"))
        world.run(12)

    assert world.point.variant == "int8"


def test_workers_that_die_barren_once_in_a_while_do_not_add_up() -> None:
    world = World(policy()).start()
    for _ in range(10):
        world.loaded = PARKED
        world.post(WorkerLost(world.now, "fp32", "killed by SIGKILL"))
        world.run(3)
        world.now += BARREN_WINDOW_S
    world.run(3)

    assert world.point.variant == "fp32"
    assert len(world.state.barren["fp32"]) == 1


def test_a_variant_whose_workers_die_barren_is_tried_again_after_a_growing_rest() -> None:
    world = World(policy()).start()
    starts = []
    for _ in range(5):
        lost_s = world.now
        world.loaded = PARKED
        before = len(world.decisions)
        world.post(WorkerLost(world.now, "fp32", "killed by SIGSEGV"))
        while len(world.decisions) == before:
            world.run(0.25, 0.25)
        starts.append(world.decisions[-1].at_s - lost_s)
        world.run(3)

    assert starts == [0.0, 0.5, 1.0, 2.0, 4.0]


def test_a_worker_that_had_worked_is_started_again_however_often_it_is_killed() -> None:
    world = World(policy()).start()
    for _ in range(20):
        world.loaded = PARKED
        world.post(WorkerLost(world.now, "fp32", "killed by SIGKILL", tokens=50))
        world.run(3)

    assert world.point.variant == "fp32"


def test_a_policy_that_still_allows_the_point_moves_nothing() -> None:
    world = World(policy()).start()
    before = len(world.actions)
    world.policy = policy(revision="000000000002", name="other")
    world.post(PolicyChanged(world.now, "000000000002"))
    world.run(5)

    assert len(world.actions) == before


def test_a_policy_that_forbids_the_variant_moves_to_the_best_that_it_allows() -> None:
    world = World(policy()).start()
    world.policy = policy(revision="000000000002", knobs=knobs(variants=("int8", "int4")))
    world.post(PolicyChanged(world.now, "000000000002"))
    world.run(3)

    assert world.point.variant == "int8"


def test_the_switch_budget_holds_steps_up_back_and_never_steps_down() -> None:
    tight = policy(stability=Stability(dwell_s=1.0, cooldown_s=0.0, switches_per_hour=2))
    world = World(tight).start()
    world.free_bytes = 1000 * MIB
    world.run(5)
    world.free_bytes = 8192 * MIB
    world.run(600)
    held = world.point.variant
    world.free_bytes = 800 * MIB
    world.run(5)

    assert held == "int8"
    assert world.point.variant == "int4"


def test_memory_that_runs_out_while_a_second_worker_loads_gives_the_load_up() -> None:
    world = World(policy(), action_s=20.0).start().run(20)
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    world.run(2)
    world.free_bytes = 1100 * MIB
    world.run(1)
    action = world.actions[-1]

    assert isinstance(action, SwitchWorker)
    assert action.point.variant == "fp32"


def test_the_outcome_of_a_decision_is_known_after_it_has_settled() -> None:
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(10)

    outcome = world.settled[-1].outcome
    assert outcome is not None
    assert outcome.kind == "done"
    assert outcome.available_before_bytes == 300 * MIB
    assert outcome.available_after_bytes == 700 * MIB


def test_a_record_names_the_runner_up_and_why_it_lost() -> None:
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(2)

    runner_up = world.decisions[-1].runner_up
    assert runner_up is not None
    assert runner_up.point.variant == "int4"
    assert "quality" in runner_up.reason
    assert any(one.point.variant == "fp32" for one in world.decisions[-1].excluded)


def test_a_model_that_goes_away_parks() -> None:
    world = World(policy()).start()
    world.post(ModelChanged(world.now, None))
    world.run(3)

    assert world.point == PARKED


def test_measured_memory_replaces_the_prediction() -> None:
    world = World(policy()).start()
    world.state = replace(world.state, resident={"int8": 500 * MIB})
    world.free_bytes = 1000 * MIB
    world.run(3)

    assert world.point.variant == "int4"
    assert LADDER.variants[1].weights_bytes == 240 * MIB


def test_a_rule_in_force_narrows_the_point_and_is_named_as_the_reason() -> None:
    stalls = SignalCondition("memory.psi.some_avg10", Comparison.ABOVE, 0.1, 3.0, 0.0, "rules[0]")
    calm = SignalCondition("memory.psi.some_avg10", Comparison.BELOW, 0.02, 5.0, 0.0, "rules[0]")
    rule = Rule("stalls", stalls, calm, Tightening(context_at_most=512))
    world = World(policy(rules=(rule,))).start()
    world.others = {"memory.psi.some_avg10": 0.2}
    world.run(2)
    before = world.point.context
    world.run(4)
    narrowed, reason = world.point, world.decisions[-1].trigger.text
    world.others = {"memory.psi.some_avg10": 0.0}
    world.run(60)

    assert before == 2048
    assert (narrowed.variant, narrowed.context) == ("fp32", 512)
    assert "stalls" in reason
    assert world.point.context == 2048


def test_idle_conversations_give_their_memory_before_the_variant_does() -> None:
    world = World(policy()).start()
    world.demand = Demand(idle_bytes=300 * MIB)
    world.free_bytes = 1500 * MIB
    world.run(1)
    action, decision = world.actions[-1], world.decisions[-1]
    world.run(5)

    assert isinstance(action, ReleaseIdleKv)
    assert action.wanted_bytes == 268 * MIB
    assert decision.direction is Direction.RELIEF
    assert world.point.variant == "fp32"


def test_a_step_up_counts_idle_memory_as_free_and_gives_it_back_first() -> None:
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(10)
    world.demand = Demand(idle_bytes=400 * MIB)
    world.free_bytes = 1600 * MIB
    world.run(40)
    release, switch = world.actions[-2:]

    assert isinstance(release, ReleaseIdleKv)
    assert isinstance(switch, SwitchWorker)
    assert world.point.variant == "fp32"


def test_ngram_drafting_is_allowed_where_the_policy_has_it_and_costs_no_worker() -> None:
    world = World(policy(knobs=knobs(speculation=("off", "ngram")))).start()
    started = world.point.speculation
    world.policy = policy(revision="000000000002")
    world.post(PolicyChanged(world.now, "000000000002"))
    world.run(2)

    assert started == "ngram"
    assert world.point.speculation == "off"
    assert isinstance(world.actions[-1], SetSpeculation)


def test_a_draft_variant_is_loaded_while_its_memory_is_there_and_goes_before_the_target() -> None:
    world = World(policy(knobs=knobs(speculation=("off", "draft:int4")))).start()
    roomy = world.point
    world.free_bytes = 1340 * MIB
    world.run(5)

    assert (roomy.variant, roomy.speculation) == ("fp32", "draft:int4")
    assert (world.point.variant, world.point.speculation) == ("fp32", "off")


def test_idle_conversations_go_to_disk_before_memory_is_so_short_that_they_are_dropped() -> None:
    both = (KvPlacement.MEMORY, KvPlacement.DISK)
    world = World(policy(knobs=knobs(kv_placement=both))).start()
    world.demand = Demand(idle_bytes=200 * MIB)
    world.free_bytes = 1600 * MIB
    world.run(2)
    placed, action = world.point.kv_placement, world.actions[-1]
    world.demand = Demand()
    world.free_bytes = 8192 * MIB
    world.run(60)

    assert isinstance(action, PlaceIdleKv)
    assert placed is KvPlacement.DISK
    assert world.point.variant == "fp32"
    assert world.point.kv_placement is KvPlacement.MEMORY


def test_a_policy_without_a_disk_keeps_idle_conversations_in_memory() -> None:
    world = World(policy()).start()
    world.demand = Demand(idle_bytes=200 * MIB)
    world.free_bytes = 1600 * MIB
    world.run(5)

    assert world.point.kv_placement is KvPlacement.MEMORY


def test_a_variant_is_not_given_for_the_last_half_of_the_context() -> None:
    """At 1580 MiB fp32 fits with a context of 1024 tokens, and int8 with the whole."""
    world = World(policy()).start()
    world.free_bytes = 1000 * MIB
    world.run(10)
    world.free_bytes = 1510 * MIB
    world.run(60)

    assert (world.point.variant, world.point.context) == ("fp32", 1024)
