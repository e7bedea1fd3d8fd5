"""How calm the controller is: switches after a step disturbance, under mere noise, and in heat."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from trimtab.domain.knobs import OperatingPoint
from trimtab.policy.compiled import Corner, Policy
from trimtab.simulate import heat
from trimtab.simulate.conditions import GIB, Conditions, Span, combine
from trimtab.simulate.policy import heat_policy
from trimtab.simulate.run import Result, Run
from trimtab.simulate.scenario_set import DAY_S, Half, Scenario, day_scenario, ladder
from trimtab.simulate.traces import Trace

HOUR_S: Final = 3600.0
NOISE_BYTES: Final = 0.02 * GIB
SPARE_BYTES: Final = 0.012 * GIB
CYCLE_S: Final = 600.0
CYCLE_FLIPS: Final = 3
NOISE_TICK_S: Final = 5.0
HEAT_BOARD: Final = heat.Board(ambient_celsius=10.0, rise_celsius=75.0)
"""85 °C at full speed, 70 one level down: over the limit, and under the leave threshold."""
HEAT_WORK_S: Final = 10.0
HEAT_LOAD: Final = 1.2
"""Of the best variant: more than it can serve, so that the engine always works."""
QUICK_HOURS: Final = 4.0
DYING_OUT: Final = 1.5
"""Back and forth that takes so many times longer each time dies out."""
FEWEST_PERIODS: Final = 3

Step = tuple[str, str, float]
"""(kind, ladder's name of the cap or empty, speed factor)."""

STEPS: Final[tuple[Step, ...]] = (
    ("memory", "second", 1.0),
    ("memory", "least", 1.0),
    ("heat", "best", 0.56),
    ("core", "best", 0.6),
    ("both", "second", 0.56),
)


def steps_day(ladder_name: str) -> tuple[Scenario, list[float]]:
    """A day of step disturbances, each two hours on and two hours off, and their edges."""
    steps = ladder(ladder_name)
    base = day_scenario("quiet", steps, Half.REPORT, 1, 11)
    speeds: list[Span] = []
    caps: list[Span] = []
    edges: list[float] = []
    for turn, (_, fits, factor) in enumerate(STEPS):
        start_s, end_s = (4 * turn + 2) * HOUR_S, (4 * turn + 4) * HOUR_S
        speeds.append(Span(start_s, end_s, factor))
        caps.append(Span(start_s, end_s, steps.cap_bytes(fits)))
        edges += [start_s, end_s]
    conditions = combine(speeds, caps, steps.cap_bytes("best"))
    return replace(base, name=f"steps-{ladder_name}", conditions=conditions), edges


def switches_after(result: Result, edges: list[float]) -> list[int]:
    """Changes of variant between each edge and the next."""
    bounds = [*edges, result.length_s]
    return [
        sum(start <= at_s < end for at_s, _ in result.points[1:]) for start, end in pairwise(bounds)
    ]


def noisy_day(ladder_name: str) -> Scenario:
    """24 hours in which the second variant just fits, and memory trembles across its band.

    In the mean the leave threshold is kept by a fifth of the band, at the worst the headroom is.
    """
    steps = ladder(ladder_name)
    base = day_scenario("quiet", steps, Half.REPORT, 0, 11)
    conditions = Conditions((0.0,), (1.0,), (steps.rungs[1].size_bytes + SPARE_BYTES,))
    return replace(base, name=f"noise-{ladder_name}", conditions=conditions)


def limit_cycles(result: Result) -> int:
    """How often the same two variants followed each other, quickly, back and forth.

    Returns:
        Runs of at least `CYCLE_FLIPS` changes between two variants, each within `CYCLE_S` of the
        last.
    """
    cycles, flips = 0, 0
    points = result.points
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        quick = after[0] - here[0] < CYCLE_S
        flips = flips + 1 if quick and after[1] == before[1] else 0
        cycles += flips == CYCLE_FLIPS
    return cycles


def hot_day(ladder_name: str, hours: float = DAY_S / HOUR_S) -> Scenario:
    """A load that never changes, under which the device would get warmer than its limit."""
    steps = ladder(ladder_name)
    base = day_scenario("quiet", steps, Half.REPORT, 0, 11)
    every_s, length_s = HEAT_WORK_S / HEAT_LOAD, hours * HOUR_S
    count = int(length_s / every_s)
    trace = Trace(
        np.arange(count, dtype=np.float64) * every_s,
        np.full(count, round(HEAT_WORK_S * steps.best.prefill_tps / 20)),
        np.full(count, round(HEAT_WORK_S * steps.best.decode_tps * 19 / 20)),
    )
    conditions = Conditions((0.0,), (1.0,), (steps.cap_bytes("best"),))
    return replace(
        base, name=f"hot-{ladder_name}", trace=trace, conditions=conditions, length_s=length_s
    )


def back_and_forth(values: list[tuple[float, float]]) -> int:
    """How often a knob was turned back and forth at regular times, whatever the period.

    Each time that it has come up again after it had been lowered ends a period, from the last time
    that it had. Periods that get `DYING_OUT` times longer die out, and fewer than `FEWEST_PERIODS`
    in a row are no cycle.

    Args:
        values: (time, value) after each change, in order.

    Returns:
        Periods that belong to a cycle.
    """
    tops, rising = [], False
    for before, here in pairwise(values):
        if here[1] < before[1] and rising:
            tops.append(before[0])
        rising = here[1] > before[1]
    cycles, row, last_s = 0, 0, 0.0
    for earlier, later in pairwise(tops):
        period_s = later - earlier
        row = row + 1 if row and period_s < DYING_OUT * last_s else 1
        last_s = period_s
        if row >= FEWEST_PERIODS:
            cycles += FEWEST_PERIODS if row == FEWEST_PERIODS else 1
    return cycles


def heat_cycles(result: Result) -> int:
    """Periods of back and forth of pace, threads and variant together."""
    places = {name: float(-place) for place, name in enumerate(sorted(_variants(result)))}

    def number(point: OperatingPoint, knob: str) -> float:
        if knob == "variant":
            return places[point.variant or ""]
        return point.pace_ratio if knob == "pace" else float(point.threads)

    cycles = 0
    for knob in ("pace", "threads", "variant"):
        values: list[tuple[float, float]] = []
        for at_s, point in result.moves:
            value = number(point, knob)
            if not values or values[-1][1] != value:
                values.append((at_s, value))
        cycles += back_and_forth(values)
    return cycles


def _variants(result: Result) -> set[str]:
    return {point.variant or "" for _, point in result.moves}


def measure(quick: bool) -> dict[str, float]:
    """Most switches after a step, limit cycles in noise and in heat, over both ladders."""
    most, cycles = 0, 0
    for name in ("smollm2",) if quick else ("smollm2", "llm8b"):
        scenario, edges = steps_day(name)
        most = max(most, *switches_after(Run(scenario).run(), edges))
        result = Run(noisy_day(name), tick_s=NOISE_TICK_S, noise_bytes=NOISE_BYTES).run()
        cycles += limit_cycles(result)
    return {
        "switches_per_disturbance_max": most,
        "limit_cycles": cycles,
        "hours": DAY_S / HOUR_S,
        **measure_heat(quick),
    }


def measure_heat(quick: bool) -> dict[str, float]:
    """What heat does at a constant load, answered with pace first and with threads alone."""
    hours = QUICK_HOURS if quick else DAY_S / HOUR_S
    cycles, moves, over_s, total_s = 0, 0, 0.0, 0.0
    for name in ("smollm2",) if quick else ("smollm2", "llm8b"):
        scenario = hot_day(name, hours)
        for policy in heat_policies():
            run = Run(scenario, policy, tick_s=heat.TICK_S, heat=HEAT_BOARD)
            result = run.run()
            cycles += heat_cycles(result)
            moves += len(result.moves)
            over_s += result.over_limit_s
            total_s += run.now_s
    return {
        "heat_limit_cycles": cycles,
        "heat_moves": moves,
        "heat_over_limit_share": over_s / total_s,
        "heat_hours": hours,
    }


def heat_policies() -> tuple[Policy, ...]:
    """Pace first, as usual; and none, so that threads are all there is before the variant.

    Both sacrifice latency, so that nothing but heat moves a knob: where it is protected, the
    variant also follows what requests earn.
    """
    policy = replace(
        heat_policy(HEAT_BOARD.threads),
        protect=(Corner.ACCURACY, Corner.MEMORY),
        sacrifice=Corner.LATENCY,
    )
    return policy, replace(policy, knobs=replace(policy.knobs, pace_min_ratio=1.0))
