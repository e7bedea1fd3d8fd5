"""Why a point that could be taken isn't in force: the rules of `decide`, read backwards for people.

Asked for by screens and commands, never on a tick, except for `waits_for`, which `decide` goes by.
"""

from __future__ import annotations

from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.planner import choose, value
from trimtab.planner.assess import Assessed, Fit, mib, pinned_knobs
from trimtab.planner.heat import Ladder, kept_for_celsius, ladder, restrict
from trimtab.planner.plan import needs_worker, waits_to_grow
from trimtab.planner.relief import resting
from trimtab.planner.state import State
from trimtab.policy.combine import combine
from trimtab.policy.compiled import Policy


def waits_for(state: State, policy: Policy, target: Assessed, since_s: float, at_s: float) -> str:
    """What a better point still waits for, in words; empty if it may be taken now.

    Args:
        state: So far.
        policy: In force.
        target: The better point.
        since_s: Since when there has been a better one.
        at_s: Now.
    """
    stability = policy.stability
    # What pays was found over many requests: it has lasted already.
    is_home = state.queue.home == target.point.variant != state.point.variant
    lasts_s = 0.0 if is_home else stability.dwell_s
    if waits_to_grow(state.point, target.point):
        lasts_s = max(lasts_s, state.up_wait_s)
    if (left_s := lasts_s - (at_s - since_s)) > 0:
        told = "an earlier step up was taken back" if lasts_s > stability.dwell_s else "dwell"
        return f"has to last {lasts_s:.0f} s ({told}), {left_s:.0f} s to go"
    rest_s = max(stability.dwell_s, stability.cooldown_s)
    if (left_s := rest_s - (at_s - state.changed_s)) > 0:
        name = "dwell" if stability.dwell_s >= stability.cooldown_s else "cooldown"
        return f"the last step was under {rest_s:.0f} s ago ({name}), {left_s:.0f} s to go"
    if rests(state, target.point, at_s):
        return f"loading failed, and is tried again in {state.retry_s - at_s:.0f} s"
    budget = stability.switches_per_hour
    if needs_worker(state.point, target.point) and len(state.handovers) >= budget:
        return f"the policy's {budget} switches an hour are used up"
    return ""


def rests(state: State, target: OperatingPoint, at_s: float) -> bool:
    """True if another worker would be loaded, and the last one that died is too recent for that."""
    if at_s >= state.retry_s or target.parked:
        return False
    return needs_worker(state.point, target)


def heat_kept(state: State, policy: Policy, at_s: float) -> str:
    """What is kept for heat only since it would get too hot without it, in a sentence.

    Empty if there is no such thing: nothing is kept, what is kept isn't in force (it rests, or a
    person pinned its knob), or it is still too hot here to ask.
    """
    limit, heat = policy.temperature, state.heat
    celsius = state.snapshot.value("temperature.max") if state.snapshot is not None else None
    if limit is None or celsius is None or state.model is None:
        return ""
    steps = ladder(state.model, combine(state.rules.verdicts, policy.knobs).knobs, state.threads)
    would = kept_for_celsius(heat, celsius, state.thermal, policy, steps, at_s)
    knob = steps.knob(heat.level)
    if would is None or knob is None or knob in pinned_knobs(state, at_s):
        return ""
    if knob in resting(state, at_s):
        return ""
    enter = limit.enter_celsius
    side = "over" if would > enter else "too close to"
    digits = 0 if round(would) != round(enter) else 1
    return (
        f"{_kept(knob, heat.level, steps)} the hottest zone, now at {celsius:.0f} °C, is predicted "
        f"to reach {would:.{digits}f} °C, {side} the limit of {enter:.{digits}f} °C"
    )


def _kept(knob: Knob, level: int, steps: Ladder) -> str:
    """What a level keeps, and with what it would be otherwise."""
    above, here = restrict(level - 1, steps, frozenset()), restrict(level, steps, frozenset())
    match knob:
        case Knob.PACE:
            return f"the pace is kept at {here.pace_ratio:.0%}: at {above.pace_ratio:.0%}"
        case Knob.THREADS:
            return f"the threads are kept at {here.threads}: with {above.threads}"
        case _:
            variant = "".join(here.too_hot - above.too_hot)
            return f"{variant} is kept out: with it"


def passed_over(
    state: State, policy: Policy, judged: tuple[Assessed, ...], at_s: float
) -> dict[OperatingPoint, str]:
    """For each point that could be taken and isn't in force, why it isn't.

    Args:
        state: With the home variant that `decide` has chosen.
        policy: In force.
        judged: All points.
        at_s: Now.
    """
    able = [one for one in judged if not choose.is_out(one) and one.point != state.point]
    general = _for_all(state, at_s)
    if general:
        return dict.fromkeys([one.point for one in able], general)
    current = choose.find(judged, state.point)
    target = choose.best(value.preferred(state, judged), Fit.ROOMY)
    return {one.point: _why(state, policy, one, current, target, at_s) for one in able}


def _for_all(state: State, at_s: float) -> str:
    """What holds every point back."""
    if state.waiting_for:
        return "a step is under way"
    if state.point.parked and at_s < state.retry_s:
        return f"loading failed, and is tried again in {state.retry_s - at_s:.0f} s"
    if state.parked and (left_s := state.unpark_wait_s - (at_s - state.changed_s)) > 0:
        return f"the last start had to be taken back, and the next one waits {left_s:.0f} s"
    return "steps are paused" if state.paused else ""


def _why(
    state: State,
    policy: Policy,
    one: Assessed,
    current: Assessed | None,
    target: Assessed | None,
    at_s: float,
) -> str:
    home = state.queue.home
    if target is not None and one.point == target.point and _is_better(state, one, current):
        since_s = state.better_since_s if state.better is not None else at_s
        return waits_for(state, policy, one, since_s, at_s) or "it is taken at the next tick"
    if home is not None and one.point.variant != home:
        return _earns_less(state, one, home)
    if one.fit is Fit.KEPT and policy.memory is not None:
        return f"it would not keep {mib(policy.memory.leave_bytes)} available"
    if target is not None and _is_better(state, target, current):
        told = choose.why_lost(one, target, policy)
        if one.point.variant == target.point.variant:
            return told
        return f"{target.point.variant} comes first: {told}"
    return choose.why_lost(one, current, policy) if current is not None else "nobody asks for it"


def _is_better(state: State, one: Assessed, current: Assessed | None) -> bool:
    if current is None or one.rank < current.rank:
        return True
    return one.point.variant == state.queue.home != state.point.variant


def _earns_less(state: State, one: Assessed, home: str) -> str:
    name = one.point.variant or ""
    theirs, ours = state.queue.earned(home), state.queue.earned(name)
    told = f"requests would earn {ours:.2f} each on it, {theirs:.2f} on {home}"
    return f"{told}: too little more to move for" if ours > theirs else told
