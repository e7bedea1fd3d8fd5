"""The simulator: what it plays, what it measures, and that the same trace gives the same end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trimtab.bench import controller as bench_controller
from trimtab.simulate import compare, fifo
from trimtab.simulate.conditions import GIB, Span, combine
from trimtab.simulate.engine import Engine, Work
from trimtab.simulate.ladder import limits
from trimtab.simulate.run import Run
from trimtab.simulate.scenario_set import (
    Half,
    Scenario,
    day_conditions,
    day_names,
    day_scenarios,
    ladder,
    objectives,
    trace_scenarios,
)
from trimtab.simulate.stability import limit_cycles, switches_after
from trimtab.simulate.traces import Trace, parse_azure, parse_mooncake, parse_rates


def chat(rho: float = 1.0, disturbance: str = "none", requests: int = 150) -> Scenario:
    """The first chat scenario of the tune half with this load, cut short."""
    name = f"rho{rho}-{disturbance}-switch0.5"
    scenario = next(one for one in trace_scenarios(Half.TUNE, "chat") if name in one.name)
    trace = scenario.trace
    cut = Trace(trace.arrival_s[:requests], trace.prompt[:requests], trace.output[:requests])
    return replace(scenario, trace=cut, length_s=float(cut.arrival_s[-1]))


def few(**changes: float) -> Scenario:
    """Three requests a minute apart on the small ladder, with nothing in their way."""
    trace = Trace(np.array([0.0, 60.0, 120.0]), np.array([590, 590, 590]), np.array([51, 51, 51]))
    scenario = chat(requests=3)
    return replace(
        scenario,
        ladder=ladder("smollm2"),
        trace=trace,
        conditions=combine([], [], GIB),
        length_s=120.0,
        **changes,
    )


def test_azure_times_keep_their_fractions() -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109"
    )

    trace = parse_azure(text)

    assert trace.arrival_s.tolist() == pytest.approx([0.0, 4.314579])
    assert trace.output.tolist() == [44, 109]


def test_mooncake_and_servegen_files_are_read() -> None:
    mooncake = parse_mooncake(
        "timestamp_ms,input_tokens,output_tokens,n_blocks,reused_prefix_blocks\n"
        "1000,6758,500,14,0\n4000,7322,490,15,1"
    )
    windows = parse_rates("0,0,0,,0,0\n600,0.02,2.8,Gamma,0.12,285.7")

    assert mooncake.arrival_s.tolist() == [0.0, 3.0]
    assert [window.family for window in windows] == ["", "Gamma"]


def test_every_trace_is_stretched_to_its_load() -> None:
    for scenario in trace_scenarios(Half.TUNE, "code"):
        rho = scenario.ladder.work_s(scenario.trace).sum() / scenario.length_s

        assert f"rho{rho:.1f}" in scenario.name


def test_the_limit_is_the_next_power_of_two_above_the_length() -> None:
    assert limits(np.array([1, 63, 64, 100, 128])).tolist() == [64, 64, 128, 128, 256]


def test_the_objectives_are_those_of_the_scenario_file() -> None:
    slo = objectives()

    assert (slo.ttft_base_s, slo.ttft_slope, slo.end_base_s, slo.end_slope) == (2.0, 1.6, 4.0, 1.6)


def test_the_days_are_complete_and_no_seed_is_in_both_halves() -> None:
    tune = {one.name.rsplit("seed", 1)[1] for one in day_scenarios(Half.TUNE)}
    report = list(day_scenarios(Half.REPORT))

    assert len(report) == 7 * 5 * 2
    assert not tune & {one.name.rsplit("seed", 1)[1] for one in report}


@pytest.mark.parametrize("name", day_names())
def test_a_day_never_leaves_the_smallest_variant_without_memory(name: str) -> None:
    steps = ladder("llm8b")

    conditions = day_conditions(name, steps, 11)

    assert min(conditions.cap_bytes) > min(rung.size_bytes for rung in steps.rungs)
    assert all(0.3 < speed <= 1 for speed in conditions.speed)


def test_overlapping_spans_multiply_speeds_and_take_the_least_cap() -> None:
    conditions = combine(
        [Span(0, 10, 0.5), Span(5, 15, 0.5)], [Span(5, 20, 3.0), Span(0, 8, 4.0)], 9.0
    )

    at = {start: index for index, start in enumerate(conditions.starts_s)}
    assert conditions.speed[at[5]] == 0.25
    assert conditions.cap_bytes[at[5]] == 3.0
    assert conditions.cap_bytes[at[20]] == 9.0


def test_the_engine_keeps_what_was_done_of_a_paused_request() -> None:
    engine = Engine()
    engine.rung = ladder("smollm2").rungs[1]
    first, second = Work(1, 0.0, 132), Work(2, 0.0, 132)
    engine.current = first
    engine.advance(0.5)
    engine.current = second
    engine.advance(0.75)

    assert first.written == 66
    assert second.written == 33
    assert engine.next_s() == pytest.approx(1.5)


def test_a_request_alone_takes_prompt_and_answer_at_the_known_speeds() -> None:
    result = Run(few()).run()

    one = result.served[1]
    assert one.ended_s - one.arrived_s == pytest.approx(2.0)  # 590 / 590 + 51 / 51
    assert result.score == 1.0


def test_a_static_variant_over_the_cap_is_eight_times_slower() -> None:
    small = few()
    squeezed = replace(small, conditions=combine([], [], small.ladder.cap_bytes("second")))

    result = Run(squeezed, only="fp32").run()

    assert result.score == 0.0


def test_the_controller_leaves_a_variant_that_no_longer_fits() -> None:
    scenario = few()
    second = scenario.ladder.cap_bytes("second")
    conditions = combine([], [Span(50.0, 200.0, second)], scenario.ladder.cap_bytes("best"))

    result = Run(replace(scenario, conditions=conditions)).run()

    assert [variant for _, variant in result.points] == ["fp32", "int8"]
    assert result.switches == 1
    assert result.met_ratio == 1.0


def test_the_same_scenario_gives_the_same_decisions_again() -> None:
    first, again = Run(chat()).run(), Run(chat()).run()

    assert first.decisions == again.decisions
    assert first.served == again.served


def test_our_scheduler_beats_exact_shedding_in_fifo_on_every_variant() -> None:
    scenario = chat(rho=1.6)

    ours = [Run(scenario, only=rung.name).run().score for rung in scenario.ladder.rungs]

    alone = [fifo.static(scenario, variant) for variant in range(4)]
    assert all(mine > theirs for mine, theirs in zip(ours, alone, strict=True))


def test_the_oracle_is_at_least_as_good_as_any_that_it_contains() -> None:
    scenario = chat(disturbance="th_mem")

    best = fifo.oracle(scenario)

    assert best >= max(fifo.static(scenario, variant) for variant in range(4))
    assert best >= fifo.greedy(scenario)


def test_the_oracle_serves_all_when_nothing_is_in_the_way() -> None:
    assert fifo.oracle(few()) == pytest.approx(1.0)


def test_no_switch_is_free_and_all_are_counted() -> None:
    result = Run(chat(disturbance="th_mem", requests=400)).run()

    assert result.switches == len(result.points) - 1
    assert result.switching_s == pytest.approx(0.5 * result.switches)


def test_the_quarterly_choice_takes_the_better_of_two_in_each_quarter() -> None:
    good, bad = Run(few()).run(), Run(few()).run()
    bad.served = [replace(one, score=0.0) for one in bad.served]
    bad.served[0] = replace(bad.served[0], score=0.5)

    assert compare.piecewise([good, bad]) == pytest.approx(1.0)


def test_going_back_and_forth_is_seen_as_a_limit_cycle_and_one_return_is_not() -> None:
    result = Run(few()).run()
    result.points = [(0.0, "a"), (100.0, "b"), (200.0, "a"), (300.0, "b"), (400.0, "a")]
    result.length_s = 500.0
    calm = Run(few()).run()
    calm.points = [(0.0, "a"), (100.0, "b"), (200.0, "a")]

    assert limit_cycles(result) == 1
    assert limit_cycles(calm) == 0
    assert switches_after(result, [50.0, 250.0]) == [2, 2]


def test_another_past_changes_a_fixed_variants_score_and_nothing_else_of_it() -> None:
    (scenario,) = [
        one
        for one in trace_scenarios(Half.TUNE, "long")
        if one.name == "long-4-rho1.0-none-switch0.05"
    ]
    alone = Run(scenario, only="q3").run()

    again = compare.with_other_pasts(scenario, "q3")

    assert len(again) == compare.OTHER_PASTS
    assert any(score != alone.score for score in again)
    assert again == pytest.approx([alone.score] * compare.OTHER_PASTS, rel=0.1)


def test_the_bench_has_every_field_of_the_contract() -> None:
    row = compare.TraceRow("n", "chat", 0.9, 0.8, 0.7, 0.9, "q4", 0.5, (0.88, 0.91), 0.8, 3, 0.001)
    rows = [replace(row, kind=kind) for kind in bench_controller.KINDS]
    day = compare.DayRow("d", "smollm2", 0.9, 0.95, 0.7, "int4", 0.5, 0.8, 4, 0.0001)

    fields = bench_controller.summary(rows, [day])

    assert fields["oracle_ratio_chat"] == pytest.approx(1.125)
    assert fields["static_again_min_chat"] == pytest.approx(0.88 / 0.9)
    assert fields["days_static_geomean_smollm2"] == pytest.approx(0.9 / 0.7)
    assert fields["switch_time_share"] == 0.001
