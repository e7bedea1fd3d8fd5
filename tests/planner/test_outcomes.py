"""What came of decisions: every record gets an outcome, and it says what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from planner_world import MIB, World

from policies_for_tests import policy
from trimtab.domain.actions import SwitchWorker
from trimtab.domain.decisions import Decision, Direction, Outcome
from trimtab.domain.events import Demand, OutcomeKind, PinSet, RequestArrived, RequestProgress
from trimtab.domain.knobs import Knob
from trimtab.planner.outcome import HEAT_SETTLE_S
from trimtab.planner.predict import loaded_bytes
from trimtab.telemetry.values import from_plain, to_plain


def outcome_of(world: World, decision: Decision) -> Outcome:
    """The only one that the decision has."""
    (record,) = [one for one in world.settled if one.id == decision.id]
    assert record.outcome is not None
    assert replace(record, outcome=None) == decision
    return record.outcome


def test_a_variant_that_does_not_load_leaves_its_reason_though_the_next_is_loaded_at_once() -> None:
    world = World(policy(), failing={"fp32"}).start().run(5)
    first, second = world.decisions[:2]

    assert [first.target.variant, second.target.variant] == ["fp32", "int8"]
    assert second.at_s - first.at_s < 3
    failed = outcome_of(world, first)
    assert (failed.kind, failed.reason) == (OutcomeKind.FAILED, "it does not load")
    assert outcome_of(world, second).kind == OutcomeKind.DONE


def test_relief_has_its_outcome_though_a_step_down_follows_within_the_settle_time() -> None:
    world = World(policy(), action_s=0.1).start().run(20)
    world.demand = Demand(idle_bytes=100 * MIB)
    world.free_bytes = 1200 * MIB
    world.run(2, tick_s=0.2)
    relief, down = world.decisions[-2:]

    assert [relief.direction, down.direction] == [Direction.RELIEF, Direction.DOWN]
    came = outcome_of(world, relief)
    assert came.kind == OutcomeKind.DONE
    assert came.settled_s == pytest.approx(down.at_s - relief.at_s - 0.2, abs=0.21)
    assert came.available_before_bytes is not None
    assert came.available_after_bytes == came.available_before_bytes


def test_a_step_that_is_given_up_on_the_way_is_superseded() -> None:
    world = World(policy(), action_s=20.0).start().run(20)
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    world.run(2)
    given_up = world.decisions[-1]
    world.free_bytes = 1100 * MIB
    world.run(1)

    came = outcome_of(world, given_up)
    assert came.kind == OutcomeKind.SUPERSEDED
    assert came.settled_s is None


def test_a_step_whose_worker_has_the_streams_already_is_not_given_up() -> None:
    world = World(policy(), action_s=20.0).start().run(20)
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    world.run(2)
    action = world.actions[-1]
    assert isinstance(action, SwitchWorker)
    before = len(world.decisions)
    world.demand = replace(world.demand, point=action.point)  # the old one still goes
    world.free_bytes = 1100 * MIB
    world.run(5)

    assert len(world.decisions) == before
    assert world.state.running == action
    world.run(20)
    assert world.point == action.point


def test_what_the_worker_holds_is_held_against_what_was_predicted() -> None:
    world = World(policy(), really={"int8": 290 * MIB}).start()
    world.free_bytes = 1000 * MIB
    world.run(10)
    down = world.decisions[-1]

    assert down.predicted is not None
    assert down.predicted.memory_bytes == loaded_bytes(world.model.variants[1], {})
    assert outcome_of(world, down).worker_bytes == 290 * MIB


def test_a_step_for_heat_is_judged_by_the_temperature_once_that_had_time_to_fall() -> None:
    world = World(policy(), celsius=60.0).start()
    world.celsius = 85.0
    world.run(1)
    paced = world.decisions[-1]
    world.celsius = 79.0
    world.run(HEAT_SETTLE_S - 5)
    early = [one.id for one in world.settled]
    world.run(10)

    came = outcome_of(world, paced)
    assert paced.trigger.signal == "temperature.max"
    assert paced.id not in early
    assert (came.celsius_before, came.celsius_after) == (85.0, 79.0)
    assert came.settled_s == pytest.approx(HEAT_SETTLE_S, abs=1)


def test_the_speed_since_a_step_is_in_its_outcome_where_something_was_decoded() -> None:
    world = World(policy()).start().run(20)
    world.free_bytes = 1000 * MIB
    world.run(3)
    down = world.decisions[-1]
    (expected,) = [one for one in world.state.rates if one.variant == "int8"]
    world.post(RequestArrived(world.now, 1, 50, 400))
    for mark in (10, 20, 30, 40):  # twice as slow as was known
        took_s = 20 * expected.decode_s
        world.post(RequestProgress(world.now, 1, 50, mark, decode_s=took_s))
    idle = World(policy()).start().run(20)
    idle.free_bytes = 1000 * MIB
    idle.run(10)
    world.run(7)

    seen_tps = outcome_of(world, down).decode_tps
    assert seen_tps is not None
    assert 0.4 < seen_tps * expected.decode_s < 0.9
    assert outcome_of(idle, idle.decisions[-1]).decode_tps is None


def test_a_snapshot_from_before_the_step_was_done_says_nothing_of_its_effect() -> None:
    world = World(policy(), celsius=50.0).start().run(20)
    world.free_bytes = 1000 * MIB
    world.run(1)
    old = world.snapshot()
    down = world.decisions[-1]
    world.snapshot = lambda: old  # type: ignore[method-assign]
    world.run(6)

    came = outcome_of(world, down)
    assert came.kind == OutcomeKind.DONE
    assert came.available_after_bytes is came.worker_bytes is came.celsius_after is None


def test_a_settling_decision_recorded_by_an_older_version_can_still_be_read() -> None:
    world = World(policy(), celsius=50.0).start().run(20)
    world.free_bytes = 1000 * MIB
    world.run(1)
    assert world.state.settling is not None
    done = Outcome("done", 1.0, 1, 2, "", 3, 40.0, 41.0, 9.0, 3.0)
    plain: dict[str, Any] = json.loads(json.dumps(to_plain(world.state)))
    outcome: dict[str, Any] = json.loads(json.dumps(to_plain(done)))
    assert from_plain(plain) == world.state
    assert from_plain(outcome) == done

    for name in ("celsius", "seen_s", "action"):
        del plain["settling"][name]
    for name in ("worker_bytes", "celsius_before", "celsius_after", "decode_tps", "settled_s"):
        del outcome[name]

    assert from_plain(plain).settling.decision == world.state.settling.decision
    assert from_plain(outcome) == Outcome("done", 1.0, 1, 2)


def test_relief_beside_a_load_has_an_outcome_of_its_own() -> None:
    world = World(policy(), action_s=6.0).start().run(20)
    world.post(PinSet(world.now, ((Knob.VARIANT, "int8"),), None, "uid 0"))
    switch = world.decisions[-1]
    world.demand = Demand(idle_bytes=300 * MIB)
    world.free_bytes = 1500 * MIB
    world.run(1)
    relief = world.decisions[-1]
    again = from_plain(json.loads(json.dumps(to_plain(world.state))))
    world.run(20)

    assert again.beside[0].decision == relief
    assert (relief.direction, switch.target.variant) == (Direction.RELIEF, "int8")
    gave = outcome_of(world, relief)
    assert gave.kind == OutcomeKind.DONE
    assert gave.took_s == 1.0
    assert outcome_of(world, switch).took_s == 1.0
