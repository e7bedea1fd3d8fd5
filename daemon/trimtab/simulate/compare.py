"""The controller against fixed choices and against those that know the future."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from trimtab.planner.lengths import Lengths
from trimtab.simulate import fifo
from trimtab.simulate.run import Result, Run
from trimtab.simulate.scenario_set import Scenario
from trimtab.simulate.thresholds import ThresholdRules

QUARTER_S = 900.0
OTHER_PASTS = 4
LEAST_SCORE = 1e-3
"""A baseline that earns nothing counts as this much in a ratio."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One run of a trace.

    Attributes:
        name: Of the scenario.
        kind: ``chat``, ``code`` or ``long``.
        score: The controller's.
        oracle: The clairvoyant FIFO oracle's.
        static_fifo: The best variant alone in FIFO that sheds exactly.
        static_same: The best variant that never exceeds the cap, under our own scheduler.
        best_static: Its name.
        greedy: The best variant for each request alone, FIFO.
        static_again: What the best fixed variant scores with other pasts: how far chance goes.
        rules: Threshold rules alone, under our own scheduler.
        switches: Changes of variant.
        switching_ratio: Share of time that they took.
    """

    name: str
    kind: str
    score: float
    oracle: float
    static_fifo: float
    static_same: float
    best_static: str
    greedy: float
    static_again: tuple[float, ...]
    rules: float
    switches: int
    switching_ratio: float


@dataclass(frozen=True, slots=True)
class DayRow:
    """One gateway day.

    Attributes:
        name: Of the scenario.
        ladder: Its ladder.
        score: The controller's.
        piecewise: The best variant for each quarter of an hour in hindsight.
        static_same: The best variant that survives the day, under our own scheduler.
        best_static: Its name.
        best_quality: Always the most precise variant, under our own scheduler.
        rules: Threshold rules alone, under our own scheduler.
        switches: Changes of variant.
        switching_ratio: Share of time that they took.
    """

    name: str
    ladder: str
    score: float
    piecewise: float
    static_same: float
    best_static: str
    best_quality: float
    rules: float
    switches: int
    switching_ratio: float


def survivors(scenario: Scenario) -> list[str]:
    """Variants that fit under the scenario's lowest cap."""
    least = min(scenario.conditions.cap_bytes)
    return [rung.name for rung in scenario.ladder.rungs if rung.size_bytes <= least]


def by_rules(scenario: Scenario) -> Result:
    """The scenario under threshold rules alone."""
    return Run(scenario, rules=ThresholdRules(scenario.ladder)).run()


def with_other_pasts(scenario: Scenario, variant: str) -> tuple[float, ...]:
    """A fixed variant's scores if it has seen one, two… answers before the scenario begins.

    Nothing else differs. What the scores differ by is chance: another guess of one answer's length
    orders the queue another way, and everything after it.
    """
    scores, lengths = [], Lengths()
    for number in range(OTHER_PASTS):
        lengths = lengths.with_answer(100, 200, 50 + 20 * number)
        run = Run(scenario, only=variant)
        run.state = replace(run.state, queue=replace(run.state.queue, lengths=lengths))
        scores.append(run.run().score)
    return tuple(scores)


def trace_rows(same_but_for_switch_cost: Sequence[Scenario]) -> list[TraceRow]:
    """Rows of scenarios that differ in the switch cost only; statics never switch, so run once."""
    first = same_but_for_switch_cost[0]
    statics = {name: Run(first, only=name).run().score for name in survivors(first)}
    best = max(statics, key=lambda name: statics[name])
    again = with_other_pasts(first, best)
    count = len(first.ladder.rungs)
    alone = max(fifo.static(first, variant) for variant in range(count))
    rows = []
    for scenario in same_but_for_switch_cost:
        result = Run(scenario).run()
        rows.append(
            TraceRow(
                scenario.name,
                scenario.kind,
                result.score,
                fifo.oracle(scenario),
                alone,
                statics[best],
                best,
                fifo.greedy(scenario),
                again,
                by_rules(scenario).score,
                result.switches,
                result.switching_s / scenario.length_s,
            )
        )
    return rows


def day_row(scenario: Scenario) -> DayRow:
    """A gateway day and what it is held against."""
    result = Run(scenario).run()
    fixed = {rung.name: Run(scenario, only=rung.name).run() for rung in scenario.ladder.rungs}
    alive = {name: fixed[name].score for name in survivors(scenario)}
    best = max(alive, key=lambda name: alive[name])
    return DayRow(
        scenario.name,
        scenario.ladder.name,
        result.score,
        piecewise(fixed.values()),
        alive[best],
        best,
        fixed[scenario.ladder.best.name].score,
        by_rules(scenario).score,
        result.switches,
        result.switching_s / scenario.length_s,
    )


def piecewise(results: Iterable[Result]) -> float:
    """The best variant for each quarter of an hour, by what that quarter's arrivals earned."""
    quarters: list[dict[int, float]] = []
    count = 0
    for result in results:
        sums: dict[int, float] = {}
        for one in result.served:
            quarter = int(one.arrived_s // QUARTER_S)
            sums[quarter] = sums.get(quarter, 0.0) + one.score
        quarters.append(sums)
        count = len(result.served)
    names = set().union(*quarters)
    return sum(max(sums.get(quarter, 0.0) for sums in quarters) for quarter in names) / count


def geomean(ratios: Sequence[float]) -> float:
    """The geometric mean; a ratio of nothing counts as `LEAST_SCORE`."""
    return exp(sum(log(max(ratio, LEAST_SCORE)) for ratio in ratios) / len(ratios))


def ratio(score: float, against: float) -> float:
    """One score against another."""
    return score / max(against, LEAST_SCORE)
