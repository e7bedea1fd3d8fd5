"""Heat is answered with pace first, then with fewer threads, then with smaller variants.

A ratchet: the level goes up by one when the temperature has reached the enter threshold, or is
about to, and the last level has had its cooldown; down by one when it has stayed below the leave
threshold for the dwell time. Between the thresholds, and while nothing can be read, it stays.

What cools nothing rests. Once a means is used up, the temperature is held against where it would
have gone without it; if that made no difference, the heat isn't the model's, and nobody is served
slower for it. The level stays, so that the next means is used, and the one that rests comes back
after its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from trimtab.domain.knobs import Knob
from trimtab.domain.models import ModelSpec
from trimtab.planner.foresight import HEAT_AHEAD_S, ThermalFit
from trimtab.planner.points import threads
from trimtab.planner.state import Heat, Tried
from trimtab.policy.compiled import KnobBounds, Policy

PACES: Final = (1.0, 0.8, 0.6, 0.4, 0.2)
JUDGED_S: Final = 30.0
"""How long a means is used before it is asked what it has brought."""

LEAST_CELSIUS: Final = 0.5
"""What it has to have brought by then. A small board takes minutes to cool, but a fraction of a
degree shows within half a minute."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """What the levels take away, one after the other.

    Attributes:
        paces: Fastest first.
        threads: Most first.
        hottest: Variants, the hottest first; the last one is never taken away.
    """

    paces: tuple[float, ...]
    threads: tuple[int, ...]
    hottest: tuple[str, ...]

    @property
    def ends(self) -> dict[Knob, int]:
        """The level at which each means is used up; those that can't move aren't in it."""
        ends, level = {}, 0
        sizes = {
            Knob.PACE: len(self.paces) - 1,
            Knob.THREADS: len(self.threads) - 1,
            Knob.VARIANT: max(0, len(self.hottest) - 1),
        }
        for knob, size in sizes.items():
            level += size
            if size:
                ends[knob] = level
        return ends

    @property
    def most(self) -> int:
        """The level beyond which nothing is left."""
        return max(self.ends.values(), default=0)


@dataclass(frozen=True, slots=True)
class Restriction:
    """What heat leaves."""

    pace_ratio: float
    threads: int
    too_hot: frozenset[str]


def ladder(model: ModelSpec, bounds: KnobBounds, wanted_threads: int) -> Ladder:
    """The levels that model and bounds have."""
    top, bottom = bounds.pace_max_ratio, bounds.pace_min_ratio
    between = tuple(pace for pace in PACES if bottom < pace < top)
    paces = (top, *between) if bottom >= top else (top, *between, bottom)
    counts = [threads(bounds, wanted_threads)]
    while counts[-1] > max(1, bounds.threads_min):
        counts.append(max(counts[-1] // 2, bounds.threads_min, 1))
    hottest = sorted(model.variants, key=lambda variant: -variant.weights_bytes)
    return Ladder(paces, tuple(counts), tuple(variant.name for variant in hottest))


def restrict(level: int, steps: Ladder, resting: frozenset[str]) -> Restriction:
    """What is left at a level, with nothing taken by means that rest."""
    slower = min(level, len(steps.paces) - 1)
    level -= slower
    fewer = min(level, len(steps.threads) - 1)
    surplus = min(level - fewer, max(0, len(steps.hottest) - 1))
    return Restriction(
        steps.paces[0 if Knob.PACE in resting else slower],
        steps.threads[0 if Knob.THREADS in resting else fewer],
        frozenset(() if Knob.VARIANT in resting else steps.hottest[:surplus]),
    )


def advance(
    heat: Heat, celsius: float | None, fit: ThermalFit, policy: Policy, most: int, at_s: float
) -> Heat:
    """The ratchet after a tick."""
    limit = policy.temperature
    if limit is None:
        return Heat()
    if celsius is None:
        return replace(heat, cool_since_s=None)
    if over(celsius, fit, policy):
        cooled_down = at_s - heat.changed_s >= policy.stability.cooldown_s
        if heat.level < most and cooled_down:
            return replace(heat, level=heat.level + 1, changed_s=at_s, cool_since_s=None)
        return replace(heat, cool_since_s=None)
    if celsius > limit.leave_celsius or heat.level == 0:
        return replace(heat, cool_since_s=None)
    since_s = heat.cool_since_s if heat.cool_since_s is not None else at_s
    if at_s - since_s >= policy.stability.dwell_s:
        return replace(heat, level=heat.level - 1, changed_s=at_s, cool_since_s=at_s)
    return replace(heat, cool_since_s=since_s)


def over(celsius: float, fit: ThermalFit, policy: Policy) -> bool:
    """True if the limit is reached, or about to be."""
    limit = policy.temperature
    if limit is None:
        return False
    soon = celsius > limit.leave_celsius and (
        fit.time_to_s(limit.enter_celsius, celsius) < HEAT_AHEAD_S
    )
    return celsius >= limit.enter_celsius or soon


def in_use(
    heat: Heat,
    steps: Ladder,
    resting: frozenset[str],
    celsius: float | None,
    fit: ThermalFit,
    at_s: float,
) -> Mapping[str, Tried]:
    """Since when each means is in use, and what was seen then."""
    tried: dict[str, Tried] = {}
    begins = 0
    for knob, end in steps.ends.items():
        if heat.level > begins and knob not in resting:
            first = heat.tried.get(knob)
            if first is None and celsius is not None:
                first = Tried(at_s, celsius, fit)
            if first is not None:
                tried[knob] = first
        begins = end
    return tried


def due(heat: Heat, steps: Ladder, at_s: float) -> Knob | None:
    """The means that was turned last, if it is used up and has had its time; None if not so."""
    ends = steps.ends
    used_up = [knob for knob in ends if knob in heat.tried and heat.level >= ends[knob]]
    last = max(used_up, key=lambda knob: heat.tried[knob].at_s, default=None)
    if last is None or heat.tried[last].judged:
        return None
    return last if at_s - heat.tried[last].at_s >= JUDGED_S else None


def brought_celsius(tried: Tried, celsius: float, at_s: float) -> float:
    """How much cooler it is than it would have been without a means."""
    return tried.fit.ahead(tried.celsius, at_s - tried.at_s) - celsius
