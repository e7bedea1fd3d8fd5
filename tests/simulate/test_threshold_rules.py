"""The baseline of threshold rules: what it does, and that it is a fair one."""

from __future__ import annotations

from trimtab.simulate import compare
from trimtab.simulate.run import Run
from trimtab.simulate.scenario_set import Half, day_scenario, ladder
from trimtab.simulate.thresholds import REMEMBERED, ThresholdRules

LADDER = ladder("llm8b")
ROOM = 100 * 1024**3


def rules(rung: int = 0) -> ThresholdRules:
    return ThresholdRules(LADDER, rung)


def test_memory_under_the_limit_is_one_step_down_at_once() -> None:
    chosen = rules()

    assert chosen.look(1.0, -1.0)
    assert chosen.variant == LADDER.rungs[1].name


def test_room_for_the_next_one_and_its_band_is_one_step_up_after_the_dwell_time() -> None:
    larger, here = LADDER.rungs[0].size_bytes, LADDER.rungs[1].size_bytes

    assert not rules(1).look(10.0, ROOM)
    assert not rules(1).look(40.0, larger - here)
    assert rules(1).look(40.0, 1.01 * larger - here)


def test_many_late_requests_are_a_step_down_and_a_few_hold_it() -> None:
    many, few = rules(1), rules(1)
    for number in range(REMEMBERED):
        many.ended(met=number >= 3)
        few.ended(met=number >= 1)

    assert many.look(40.0, ROOM)
    assert many.variant == LADDER.rungs[2].name
    assert not few.look(40.0, ROOM)


def test_after_a_step_it_is_judged_by_what_comes_then() -> None:
    chosen = rules(1)
    for _ in range(REMEMBERED):
        chosen.ended(met=False)
    chosen.look(40.0, ROOM)
    chosen.ended(met=False)

    assert not chosen.look(80.0, ROOM)


def test_beyond_the_ends_of_the_ladder_there_is_no_step() -> None:
    last = len(LADDER.rungs) - 1

    assert not rules(last).look(40.0, -1.0)
    assert not rules(0).look(40.0, ROOM)


def test_on_a_day_it_follows_memory_and_loses_to_the_controller() -> None:
    day = day_scenario("backup_night", ladder("smollm2"), Half.REPORT, 0, 11)
    by_rules, controller = compare.by_rules(day), Run(day).run()

    night = {name for at_s, name in by_rules.points if 2 * 3600 < at_s < 4 * 3600}
    assert night <= {"int4", "int4_mixed"}
    assert 0.5 * controller.score < by_rules.score < controller.score
