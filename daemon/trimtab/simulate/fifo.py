"""First come, first served: one variant alone, the greedy choice, and an oracle that knows all.

All know every length. A request's service is one piece of work at the variant's speed; what the
device does meanwhile (throttling, memory over the cap) is in `Service`, which turns work into time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.simulate.scenario_set import Scenario
from trimtab.simulate.traces import Floats

FRONTIER: Final = 600


class Service:
    """Time that work takes on one variant when it starts at a given time.

    Progress is piecewise linear in time, so its inverse is too: nominal seconds done by a time, and
    the time by which they are done, are both interpolations.
    """

    def __init__(self, scenario: Scenario, variant: int) -> None:
        conditions = scenario.conditions
        size = scenario.ladder.rungs[variant].size_bytes
        times = np.array([*conditions.starts_s, conditions.starts_s[-1] + 1e9])
        rates = np.array(
            [
                speed / (scenario.over_cap_slowdown if size > cap else 1.0)
                for speed, cap in zip(conditions.speed, conditions.cap_bytes, strict=True)
            ]
        )
        self._times: Floats = times
        self._done: Floats = np.concatenate([[0.0], np.cumsum(np.diff(times) * rates)])

    def end_s(self, start_s: Floats | float, work_s: float) -> Floats:
        """When ``work_s`` nominal seconds of work are done that began at ``start_s``."""
        done = np.interp(start_s, self._times, self._done)
        return np.asarray(np.interp(done + work_s, self._done, self._times), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Demand:
    """A scenario's requests as the baselines see them."""

    arrival_s: Floats
    ttft_by_s: Floats
    end_by_s: Floats
    prefill_s: Floats  # by variant and request
    work_s: Floats


def demand(scenario: Scenario) -> Demand:
    """Deadlines and nominal work of every request on every variant."""
    trace, best = scenario.trace, scenario.ladder.best
    prefill = np.array([trace.prompt / rung.prefill_tps for rung in scenario.ladder.rungs])
    decode = np.array([trace.output / rung.decode_tps for rung in scenario.ladder.rungs])
    return Demand(
        trace.arrival_s,
        trace.arrival_s + scenario.objectives.ttft_s(trace, best),
        trace.arrival_s + scenario.objectives.end_s(trace, best),
        prefill,
        prefill + decode,
    )


def static(scenario: Scenario, variant: int) -> float:
    """One variant alone: exactly those requests are shed that would miss. Mean score."""
    service, known = Service(scenario, variant), demand(scenario)
    free_s, met = 0.0, 0
    for index in range(len(known.arrival_s)):
        start_s = max(free_s, float(known.arrival_s[index]))
        first_s = float(service.end_s(start_s, float(known.prefill_s[variant, index])))
        if first_s > known.ttft_by_s[index]:
            continue
        end_s = float(service.end_s(start_s, float(known.work_s[variant, index])))
        if end_s <= known.end_by_s[index]:
            free_s, met = end_s, met + 1
    return scenario.ladder.rungs[variant].quality * met / len(known.arrival_s)


def greedy(scenario: Scenario) -> float:
    """For each request the best variant that meets this request's own SLO. Mean score."""
    rungs = scenario.ladder.rungs
    services = [Service(scenario, variant) for variant in range(len(rungs))]
    known = demand(scenario)
    free_s, loaded, score = 0.0, 0, 0.0
    for index in range(len(known.arrival_s)):
        for variant, service in enumerate(services):
            start_s = max(free_s, float(known.arrival_s[index]))
            start_s += scenario.switch_cost_s * (variant != loaded)
            first_s = service.end_s(start_s, float(known.prefill_s[variant, index]))
            end_s = float(service.end_s(start_s, float(known.work_s[variant, index])))
            if first_s <= known.ttft_by_s[index] and end_s <= known.end_by_s[index]:
                free_s, loaded, score = end_s, variant, score + rungs[variant].quality
                break
    return score / len(known.arrival_s)


def oracle(scenario: Scenario) -> float:
    """The best that FIFO can do with the future known: sheds and switches as it likes. Mean score.

    For each variant that may be loaded it keeps the frontier of (server free, score): states that
    no other state beats in both. A frontier of over `FRONTIER` states is thinned evenly.
    """
    rungs = scenario.ladder.rungs
    services = [Service(scenario, variant) for variant in range(len(rungs))]
    known = demand(scenario)
    frontiers = [(np.zeros(0), np.zeros(0)) for _ in rungs]
    frontiers[0] = (np.zeros(1), np.zeros(1))
    for index in range(len(known.arrival_s)):
        free, score, origin = (
            np.concatenate([one[0] for one in frontiers]),
            np.concatenate([one[1] for one in frontiers]),
            np.repeat(np.arange(len(rungs)), [len(one[0]) for one in frontiers]),
        )
        start = np.maximum(free, known.arrival_s[index])
        after = []
        for variant, service in enumerate(services):
            begin = start + scenario.switch_cost_s * (origin != variant)
            first = service.end_s(begin, float(known.prefill_s[variant, index]))
            end = service.end_s(begin, float(known.work_s[variant, index]))
            met = (first <= known.ttft_by_s[index]) & (end <= known.end_by_s[index])
            own_free, own_score = frontiers[variant]
            after.append(
                _frontier(
                    np.concatenate([own_free, end[met]]),
                    np.concatenate([own_score, score[met] + rungs[variant].quality]),
                )
            )
        frontiers = after
    return float(max(one[1].max() for one in frontiers if len(one[1]))) / len(known.arrival_s)


def _frontier(free: Floats, score: Floats) -> tuple[Floats, Floats]:
    """States that none beats: score rises strictly with the time at which the server is free."""
    order = np.lexsort((-score, free))
    free, score = free[order], score[order]
    best_before = np.concatenate([[-1.0], np.maximum.accumulate(score)[:-1]])
    keep = score > best_before
    free, score = free[keep], score[keep]
    if len(free) > FRONTIER:
        chosen = np.unique(np.linspace(0, len(free) - 1, FRONTIER).astype(np.int64))
        free, score = free[chosen], score[chosen]
    return free, score
