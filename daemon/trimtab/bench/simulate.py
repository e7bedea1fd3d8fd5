"""Simulated requests a second through `step`, with the queue planned at each event, on one core."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from trimtab.simulate.run import Run
from trimtab.simulate.scenario_set import Half, trace_scenarios


def run(quick: bool) -> dict[str, Any]:
    """Chat windows of the tune half, every load and disturbance, one after the other.

    Speed is by processor time, so that other programs on the machine don't count; by the clock it
    is given beside.
    """
    scenarios = [one for one in trace_scenarios(Half.TUNE, "chat") if one.switch_cost_s < 0.1]
    scenarios = scenarios[:1] if quick else scenarios[:12]
    by_cpu, by_clock, steps = [], [], 0
    for scenario in scenarios:
        simulation = Run(scenario)
        cpu_s, clock_s = time.process_time(), time.perf_counter()
        simulation.run()
        by_cpu.append(len(scenario.trace) / (time.process_time() - cpu_s))
        by_clock.append(len(scenario.trace) / (time.perf_counter() - clock_s))
        steps += simulation.steps
    return {
        "requests_per_s": median(by_cpu),
        "requests_per_s_min": min(by_cpu),
        "requests_per_s_clock": median(by_clock),
        "steps_per_request": steps / sum(len(one.trace) for one in scenarios),
        "runs": len(scenarios),
    }
