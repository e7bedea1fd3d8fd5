"""Heat is answered with pace first and with smaller variants after that, one level at a time.

A ratchet: the level goes up by one when the temperature has reached the enter threshold, or is
about to, and the last level has had its cooldown; down by one when it has stayed below the leave
threshold for the dwell time. Between the thresholds, and while nothing can be read, it stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.models import ModelSpec
from trimtab.planner.foresight import HEAT_AHEAD_S, ThermalFit
from trimtab.planner.state import Heat
from trimtab.policy.compiled import KnobBounds, Policy

PACES: Final = (1.0, 0.8, 0.6, 0.4, 0.2)


def pace_steps(bounds: KnobBounds) -> tuple[float, ...]:
    """The paces that the bounds allow, fastest first; at least one."""
    top, bottom = bounds.pace_max_ratio, bounds.pace_min_ratio
    between = tuple(pace for pace in PACES if bottom < pace < top)
    return (top, *between) if bottom >= top else (top, *between, bottom)


def restrict(heat: Heat, model: ModelSpec, bounds: KnobBounds) -> tuple[float, frozenset[str]]:
    """The pace at this level, and the variants that are too hot for it."""
    paces = pace_steps(bounds)
    pace = paces[min(heat.level, len(paces) - 1)]
    surplus = max(0, heat.level - (len(paces) - 1))
    hottest = sorted(model.variants, key=lambda variant: -variant.weights_bytes)
    return pace, frozenset(variant.name for variant in hottest[:surplus])


def most_levels(model: ModelSpec, bounds: KnobBounds) -> int:
    """The level at which only the slowest pace and the smallest variant are left."""
    return len(pace_steps(bounds)) - 1 + max(0, len(model.variants) - 1)


def advance(
    heat: Heat, celsius: float | None, fit: ThermalFit, policy: Policy, most: int, at_s: float
) -> Heat:
    """The ratchet after a tick."""
    limit = policy.temperature
    if limit is None:
        return Heat()
    if celsius is None:
        return replace(heat, cool_since_s=None)
    soon = celsius > limit.leave_celsius and (
        fit.time_to_s(limit.enter_celsius, celsius) < HEAT_AHEAD_S
    )
    if celsius >= limit.enter_celsius or soon:
        cooled_down = at_s - heat.changed_s >= policy.stability.cooldown_s
        if heat.level < most and cooled_down:
            return Heat(heat.level + 1, at_s)
        return replace(heat, cool_since_s=None)
    if celsius > limit.leave_celsius or heat.level == 0:
        return replace(heat, cool_since_s=None)
    since_s = heat.cool_since_s if heat.cool_since_s is not None else at_s
    if at_s - since_s >= policy.stability.dwell_s:
        return Heat(heat.level - 1, at_s, at_s)
    return replace(heat, cool_since_s=since_s)
