"""How calm the controller is: switches after a step disturbance, and under mere noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

from trimtab.simulate.conditions import GIB, Conditions, Span, combine
from trimtab.simulate.run import Result, Run
from trimtab.simulate.scenario_set import DAY_S, Half, Scenario, day_scenario, ladder

HOUR_S: Final = 3600.0
NOISE_BYTES: Final = 0.02 * GIB
SPARE_BYTES: Final = 0.012 * GIB
CYCLE_S: Final = 600.0
CYCLE_FLIPS: Final = 3
NOISE_TICK_S: Final = 5.0

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


def measure(quick: bool) -> dict[str, float]:
    """The three figures: most switches after a step, limit cycles, over both ladders."""
    most, cycles = 0, 0
    for name in ("smollm2",) if quick else ("smollm2", "llm8b"):
        scenario, edges = steps_day(name)
        most = max(most, *switches_after(Run(scenario).run(), edges))
        result = Run(noisy_day(name), tick_s=NOISE_TICK_S, noise_bytes=NOISE_BYTES).run()
        cycles += limit_cycles(result)
    return {"switches_per_disturbance_max": most, "limit_cycles": cycles, "hours": DAY_S / HOUR_S}
