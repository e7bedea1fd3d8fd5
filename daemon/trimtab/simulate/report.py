"""One scenario told: the controller beside each fixed choice and those that know the future."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.simulate import compare, fifo, heat
from trimtab.simulate.heat import Board
from trimtab.simulate.run import Result, Run
from trimtab.simulate.scenario_set import Scenario


@dataclass(frozen=True, slots=True)
class Line:
    """One contestant.

    Attributes:
        name: Who.
        score: Mean of quality × met.
        met_ratio: Share of requests that met their objective; None where it isn't counted.
        switches: Changes of variant; None where it isn't counted.
        note: What to know about it.
    """

    name: str
    score: float
    met_ratio: float | None = None
    switches: int | None = None
    note: str = ""


def controller(scenario: Scenario, board: Board | None = None) -> Result:
    """The controller through a scenario, on a device that gets warm if there is one given."""
    if board is None:
        return Run(scenario).run()
    return Run(scenario, tick_s=heat.TICK_S, heat=board).run()


def lines(scenario: Scenario, result: Result, board: Board | None = None) -> list[Line]:
    """The controller first, then what it is held against.

    On a device that gets warm that is each fixed choice alone, at full speed until the device
    throttles: the others know nothing of heat.
    """
    alive = compare.survivors(scenario)
    out = [Line("trimtab", result.score, result.met_ratio, result.switches)]
    fixed: list[Result] = []
    for rung in scenario.ladder.rungs:
        one = Run(scenario, only=rung.name, heat=board).run()
        fixed.append(one)
        note = "" if rung.name in alive else "over the memory cap at times"
        out.append(Line(f"{rung.name} alone, our scheduler", one.score, one.met_ratio, 0, note))
    if board is not None:
        return out
    rules = compare.by_rules(scenario)
    out.append(Line("threshold rules", rules.score, rules.met_ratio, rules.switches))
    if scenario.kind == "day":
        best = compare.piecewise(fixed)
        out.append(Line("best of each quarter of an hour", best, note="in hindsight"))
        return out
    for position, rung in enumerate(scenario.ladder.rungs):
        out.append(Line(f"{rung.name} alone, FIFO", fifo.static(scenario, position), note="exact"))
    out.append(Line("greedy, FIFO", fifo.greedy(scenario)))
    out.append(Line("oracle, FIFO", fifo.oracle(scenario), note="knows the future"))
    return out
