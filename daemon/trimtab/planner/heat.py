"""Heat is answered with pace first, then with fewer threads, then with smaller variants.

A ratchet: the level goes up by one when the temperature has reached the enter threshold, or is
about to, and the last level has had its cooldown; down by one when it has stayed below the leave
threshold for the dwell time. Between the thresholds, and while nothing can be read, it stays.

A level is not given back while the temperature would tend over the limit again without it: how much
cooler a level is than the one above was seen when that one was left. Where nothing says so it is
tried; if it has to be taken again, the next wait is twice as long, up to an hour, until a level
that was given back has held for an hour.

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
from trimtab.planner.state import Heat, Left, Tried
from trimtab.policy.compiled import KnobBounds, Policy

PACES: Final = (1.0, 0.8, 0.6, 0.4, 0.2)
JUDGED_S: Final = 30.0
"""How long a means is used before it is asked what it has brought."""

LEAST_CELSIUS: Final = 0.5
"""What it has to have brought by then. A small board takes minutes to cool, but a fraction of a
degree shows within half a minute."""

WAIT_MAX_S: Final = 3600.0
HELD_S: Final = 3600.0
"""A level that was given back and not taken again for so long was rightly given back."""

AHEAD_S: Final = 300.0
"""Where the temperature will be by then is where it tends. Not the end of the fitted course itself:
that lies anywhere when the temperature has come to rest and only trembles."""

SETTLED_CELSIUS: Final = 0.5
SETTLED_SLOPES: Final = 12.0
SETTLED_S: Final = 1800.0
SPARE_CELSIUS: Final = 1.0
"""Predicted so near to the limit counts as over it."""

BELIEVED_S: Final = 86400.0
"""What was seen of a level is forgotten after a day: once a day it may be tried again."""

COLDEST_CELSIUS: Final = 0.0
"""What is warmer than this is taken to be warmed by the engine's power: an upper bound."""

COLDEST_AGAIN_CELSIUS: Final = -40.0
"""The same where a level that was given back had to be taken again: the bound may be why."""

POWER_RATIO: Final = 2.0
"""How much more power a larger variant draws at most."""


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

    def hands_over(self, level: int) -> bool:
        """True if giving a level back changes the threads: a variant waits for its own step."""
        slower = len(self.paces) - 1
        return slower < level <= slower + len(self.threads) - 1

    def knob(self, level: int) -> Knob | None:
        """The knob that this level turns; None if there is no such level."""
        return next((knob for knob, end in self.ends.items() if 0 < level <= end), None)

    def name(self, level: int) -> str:
        """What this level takes away from the one above; empty if there is no such level."""
        slower, fewer = len(self.paces) - 1, len(self.threads) - 1
        if 0 < level <= slower:
            return f"pace {self.paces[level - 1]:g} to {self.paces[level]:g}"
        level -= slower
        if 0 < level <= fewer:
            return f"threads {self.threads[level - 1]} to {self.threads[level]}"
        level -= fewer
        return f"variant {self.hottest[level - 1]}" if 0 < level < len(self.hottest) else ""

    def power_ratio(self, level: int) -> float:
        """How much more power the level above has, at most."""
        slower = len(self.paces) - 1
        if level <= slower:
            return self.paces[level - 1] / self.paces[level]
        if self.hands_over(level):
            return self.threads[level - slower - 1] / self.threads[level - slower]
        return POWER_RATIO


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
    heat: Heat,
    celsius: float | None,
    fit: ThermalFit,
    policy: Policy,
    steps: Ladder,
    at_s: float,
    *,
    may_switch: bool = True,
) -> Heat:
    """The ratchet after a tick.

    Args:
        heat: So far.
        celsius: The temperature; None if it can't be read.
        fit: The model of heat, as far as this level goes.
        policy: In force.
        steps: The levels that there are.
        at_s: Now.
        may_switch: Whether the budget of switches an hour allows a hand-over.
    """
    limit = policy.temperature
    if limit is None:
        return Heat()
    heat = _held(heat, at_s)
    if celsius is None:
        return replace(heat, cool_since_s=None)
    if over(celsius, fit, policy):
        cooled_down = at_s - heat.changed_s >= policy.stability.cooldown_s
        if heat.level < steps.most and cooled_down:
            return _taken(heat, celsius, fit, policy, steps.name(heat.level + 1), at_s)
        return replace(heat, cool_since_s=None)
    heat = _settled(heat, celsius, fit, steps, at_s)
    if heat.level == 0 or celsius > limit.leave_celsius:
        return replace(heat, cool_since_s=None)
    if kept_for_celsius(heat, celsius, fit, policy, steps, at_s) is not None:
        return replace(heat, cool_since_s=None)
    since_s = heat.cool_since_s if heat.cool_since_s is not None else at_s
    lasted = at_s - since_s >= max(policy.stability.dwell_s, heat.wait_s)
    if lasted and (may_switch or not steps.hands_over(heat.level)):
        return replace(
            heat,
            level=heat.level - 1,
            changed_s=at_s,
            cool_since_s=at_s,
            given=(*heat.given, at_s),
        )
    return replace(heat, cool_since_s=since_s)


def _taken(
    heat: Heat, celsius: float, fit: ThermalFit, policy: Policy, name: str, at_s: float
) -> Heat:
    """The next level. If it was given back lately, that was too early: the next wait is longer."""
    left = heat.left
    if fit.well_known() and policy.temperature is not None:
        tends = max(fit.ahead(celsius, AHEAD_S), policy.temperature.enter_celsius)
        left = {**left, name: Left(at_s, tends)}
    wait_s, given = heat.wait_s, heat.given
    if given:
        wait_s = min(2 * max(wait_s, policy.stability.dwell_s, 1.0), WAIT_MAX_S)
    return Heat(heat.level + 1, at_s, None, heat.tried, wait_s, given[:-1], left)


def _held(heat: Heat, at_s: float) -> Heat:
    """Once what was given back has held for long, the wait is forgotten."""
    if not heat.given or at_s - heat.given[-1] < HELD_S:
        return heat
    return replace(heat, wait_s=0.0, given=())


def _settled(heat: Heat, celsius: float, fit: ThermalFit, steps: Ladder, at_s: float) -> Heat:
    """What this level has brought against the one above, once the temperature has settled."""
    name = steps.name(heat.level)
    left = heat.left.get(name)
    if left is None or left.brought_celsius is not None or fit.weight < SETTLED_SLOPES:
        return heat
    rate = fit.slope / fit.weight
    tends = fit.ahead(celsius, AHEAD_S) if fit.steady() is not None else celsius + rate * AHEAD_S
    if abs(tends - celsius) > SETTLED_CELSIUS and at_s - heat.changed_s < SETTLED_S:
        return heat
    known = replace(left, brought_celsius=max(0.0, left.celsius - tends))
    return replace(heat, left={**heat.left, name: known})


def kept_for_celsius(
    heat: Heat, celsius: float, fit: ThermalFit, policy: Policy, steps: Ladder, at_s: float
) -> float | None:
    """Where the temperature is predicted to tend without the level that is kept for that.

    Returns:
        None if the prediction doesn't keep it: nothing is known, it would stay cool enough there,
        or it isn't cool enough here to ask.
    """
    limit = policy.temperature
    if limit is None or heat.level == 0 or celsius > limit.leave_celsius:
        return None
    back = given_back_celsius(heat, celsius, fit, steps, at_s)
    return back if back is not None and back > limit.enter_celsius - SPARE_CELSIUS else None


def given_back_celsius(
    heat: Heat, celsius: float, fit: ThermalFit, steps: Ladder, at_s: float
) -> float | None:
    """Where the temperature would tend at the level above; None if nothing says so.

    As much warmer than this level as was seen when that one was left; before this level has
    settled, where that one tended. But not warmer than its power can make it: a device that
    something else has cooled meanwhile tells nothing else by it.
    """
    left = heat.left.get(steps.name(heat.level))
    if left is None or at_s - left.at_s > BELIEVED_S:
        return None
    tends = fit.ahead(celsius, AHEAD_S) if fit.steady() is not None else celsius
    seen = left.celsius if left.brought_celsius is None else tends + left.brought_celsius
    coldest = COLDEST_AGAIN_CELSIUS if heat.wait_s else COLDEST_CELSIUS
    return min(seen, coldest + steps.power_ratio(heat.level) * (tends - coldest))


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
