"""The controller against fixed choices and the clairvoyant, on the scenario set's reported half."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from trimtab.simulate import compare, stability
from trimtab.simulate.compare import DayRow, TraceRow, geomean, ratio
from trimtab.simulate.scenario_set import Half, Scenario, day_scenarios, trace_scenarios

KINDS: Final = ("chat", "code", "long")


def run(quick: bool) -> dict[str, Any]:
    """Run the set; ``quick`` takes one scenario in many, so that every field has a number."""
    groups, days = trace_groups(Half.REPORT, quick), list(day_scenarios(Half.REPORT))
    if quick:
        days = [day for day in days if "camera_day" in day.name and "chat0.3" in day.name]
    workers = 1 if quick else os.cpu_count() or 1
    with ProcessPoolExecutor(max_workers=workers) as pool:
        traces = [row for rows in pool.map(compare.trace_rows, groups) for row in rows]
        day_rows = list(pool.map(compare.day_row, days))
    return {**summary(traces, day_rows), **stability.measure(quick), **details(traces, day_rows)}


def trace_groups(half: Half, quick: bool) -> list[list[Scenario]]:
    """Trace scenarios, those together that differ in the switch cost only."""
    groups = []
    for kind in KINDS:
        scenarios = trace_scenarios(half, kind)
        groups += [list(group) for _, group in groupby(scenarios, key=_but_for_switch_cost)]
    if quick:
        firsts = {kind: _of_kind(groups, kind)[0][:1] for kind in KINDS}
        return list(firsts.values())
    return groups


def _but_for_switch_cost(scenario: Scenario) -> str:
    return scenario.name.rsplit("-", 1)[0]


def _of_kind(groups: Iterable[list[Scenario]], kind: str) -> list[list[Scenario]]:
    return [group for group in groups if group[0].kind == kind]


def summary(traces: Sequence[TraceRow], days: Sequence[DayRow]) -> dict[str, Any]:
    """The fields of the contract."""
    out: dict[str, Any] = {}
    for kind in KINDS:
        rows = [row for row in traces if row.kind == kind]
        out[f"oracle_ratio_{kind}"] = geomean([ratio(row.score, row.oracle) for row in rows])
        out[f"static_fifo_geomean_{kind}"] = geomean(
            [ratio(row.score, row.static_fifo) for row in rows]
        )
        same = [ratio(row.score, row.static_same) for row in rows]
        out[f"same_scheduler_static_min_{kind}"] = min(same)
        out[f"same_scheduler_static_geomean_{kind}"] = geomean(same)
        out[f"static_again_min_{kind}"] = min(
            ratio(again, row.static_same) for row in rows for again in row.static_again
        )
        out[f"rules_geomean_{kind}"] = geomean([ratio(row.score, row.rules) for row in rows])
    small = [row for row in days if row.ladder == "smollm2"]
    static = [ratio(row.score, row.static_same) for row in days]
    return {
        **out,
        "same_scheduler_static_min": min(out[f"same_scheduler_static_min_{one}"] for one in KINDS),
        "days_piecewise_geomean": geomean([ratio(row.score, row.piecewise) for row in days]),
        "days_static_geomean_smollm2": geomean(
            [ratio(row.score, row.static_same) for row in small]
        ),
        "days_static_min": min(static),
        "days_best_quality_geomean": geomean([ratio(row.score, row.best_quality) for row in days]),
        "days_rules_geomean": geomean([ratio(row.score, row.rules) for row in days]),
        "switch_time_share": max(
            [row.switching_ratio for row in traces] + [row.switching_ratio for row in days]
        ),
    }


def details(traces: Sequence[TraceRow], days: Sequence[DayRow]) -> dict[str, Any]:
    """Every scenario, so that each figure can be followed to where it comes from."""
    return {
        "runs": len(traces) + len(days),
        "scenarios": [asdict(row) for row in traces] + [asdict(row) for row in days],
    }
