"""Whether to move, and where to: the rules of stability around the choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from trimtab.domain.actions import Action, HandoverMode, SetSpeculation, SwitchWorker
from trimtab.domain.decisions import Decision, Direction, Trigger
from trimtab.domain.knobs import PARKED, SPECULATION_NGRAM, Knob, KvPlacement, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.planner import choose, value
from trimtab.planner.assess import Assessed, Fit, assess, mib, pinned_knobs, situation
from trimtab.planner.faults import worth_another_try
from trimtab.planner.foresight import trend_bytes_s
from trimtab.planner.placement import give_way, last_rung, place_kv, safe_while_parked
from trimtab.planner.plan import Move, carry_out, needs_worker, relieve_beside
from trimtab.planner.points import draft_of
from trimtab.planner.relief import distrusted, idle_bytes
from trimtab.planner.standing import rests, waits_for
from trimtab.planner.state import State
from trimtab.policy.combine import combine
from trimtab.policy.compiled import Policy, TemperatureLimit

HEAT_WORDS: Final = {
    Knob.PACE: "a slower pace rests",
    Knob.THREADS: "fewer threads rest",
    Knob.VARIANT: "smaller variants rest",
}


RELIEF_EVERY_S: Final = 1.0
"""While actions run: what is just being written to disk can't be given back before it is there."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What `decide` gives back: see `controller.Step`."""

    state: State
    actions: tuple[Action, ...] = ()
    decision: Decision | None = None


def decide(state: State, policy: Policy, at_s: float, cause: str) -> Decided:
    """Move if something must or may be moved.

    Args:
        state: With the event taken in.
        policy: In force.
        at_s: Now.
        cause: What happened, in words; empty on an ordinary tick.
    """
    if state.model is None:
        if state.point.parked or state.running is not None:
            return Decided(state)
        trigger = Trigger("model", text="there is no model any more")
        return _move(state, policy, at_s, Move(PARKED, None, trigger, Direction.PARK), ())
    if state.snapshot is None:
        return Decided(state)  # nothing has been seen yet
    if state.waiting_for:
        return _while_moving(state, policy, at_s)
    bounds = combine(state.rules.verdicts, policy.knobs)
    judged = assess(state, policy, bounds.knobs, state.model, at_s)
    state = value.weigh(state, policy, judged, at_s)
    move = (
        _from_nothing(state, policy, judged, at_s, cause)
        if state.point.parked
        else _from_point(state, policy, judged, at_s, cause)
    )
    if isinstance(move, State):
        return Decided(move)
    return _move(state, policy, at_s, move, judged)


def _move(
    state: State, policy: Policy, at_s: float, move: Move, judged: tuple[Assessed, ...]
) -> Decided:
    new_state, actions, decision = carry_out(state, policy, at_s, move, judged)
    return Decided(new_state, actions, decision)


# ---------------------------------------------------------------- nothing is loaded


def _from_nothing(
    state: State, policy: Policy, judged: tuple[Assessed, ...], at_s: float, cause: str
) -> Move | State:
    """Load something: at once, or if parking was decided and nobody waits, once there is room."""
    relief = _relief(state, policy) or safe_while_parked(state, policy)
    if relief is not None:
        return relief
    if at_s < state.retry_s or _stays_parked(state, policy, at_s):
        return state
    if (again := _lost_one(state, judged)) is not None:
        trigger = Trigger("worker", text=cause or _why_it_went(state))
        return Move(again.point, again, trigger, Direction.START)
    demand = state.demand
    urgent = not state.parked or state.wanted or demand.held + demand.waiting > 0
    target = choose.safest(judged) if urgent else choose.best(judged, Fit.ROOMY)
    if target is None:
        return (
            give_way(state, policy, judged, _short_of_memory(state, policy))
            or _in_spite_of_quarantine(state, policy, at_s)
            or _nothing_better(state)
        )
    if urgent:
        waiting = "a request waits" if demand.waiting or state.wanted else "at start"
        text = cause or ("streams are held and it fits" if demand.held else waiting)
        return Move(target.point, target, Trigger("demand", text=text), Direction.START)
    return _when_it_has_lasted(state, policy, target, at_s, Direction.START)


def _lost_one(state: State, judged: tuple[Assessed, ...]) -> Assessed | None:
    """The point that was lost, if it may be taken again."""
    again = None if state.lost_point is None else choose.find(judged, state.lost_point)
    return again if again is not None and not again.reason and again.fit <= Fit.NOW else None


def _in_spite_of_quarantine(state: State, policy: Policy, at_s: float) -> Move | None:
    """Streams are held and nothing else can be taken: what has failed may work by now.

    A quarantine can last longer than a stream may be held. A few tries in that time cost little,
    and without one all that is held ends with an error.
    """
    model, tries = state.model, worth_another_try(state, policy.handover.hold_max_s, at_s)
    if model is None or not tries or not state.demand.held:
        return None
    left = {name: one for name, one in state.quarantine.items() if name not in tries}
    bounds = combine(state.rules.verdicts, policy.knobs)
    judged = assess(replace(state, quarantine=left), policy, bounds.knobs, model, at_s)
    target = _lost_one(state, judged) or choose.safest(judged)
    if target is None:
        return None
    name = target.point.variant or ""
    text = (
        f"streams are held and nothing else can be taken: {name} is tried in spite of its "
        f"quarantine ({state.quarantine[name].reason})"
    )
    return Move(target.point, target, Trigger("demand", text=text), Direction.START)


def _why_it_went(state: State) -> str:
    """Why what was in force before isn't loaded any more."""
    settling = state.settling
    if settling is None or not settling.failed:
        return "the worker was lost"
    return f"{settling.decision.target.variant}, for which it had to go, did not load"


def _stays_parked(state: State, policy: Policy, at_s: float) -> bool:
    """True if what it was parked for may still be so.

    Where memory can't be seen any more nothing says that there is some again. Where the last start
    from parked had to be taken back, the next one waits.
    """
    if not state.parked:
        return False
    unseen = policy.memory is not None and situation(state).available_bytes is None
    return unseen or at_s - state.changed_s < state.unpark_wait_s


def _nothing_better(state: State) -> State:
    """No other point is waiting to be taken; the same state where none was, as on most ticks."""
    return state if state.better is None else replace(state, better=None)


# ---------------------------------------------------------------- something is loaded


def _from_point(
    state: State, policy: Policy, judged: tuple[Assessed, ...], at_s: float, cause: str
) -> Move | State:
    if (relief := _relief(state, policy)) is not None:
        return relief
    current = choose.find(judged, state.point)
    model = state.model
    assert model is not None
    must = current is None or bool(current.reason) or current.fit > Fit.KEPT
    hard = _is_short(state, policy) if current is None else current.fit is Fit.OVER
    if must and (hard or not state.paused):
        move = _must_move(state, policy, judged, current, model, at_s, cause)
        if move is not None and (hard or not rests(state, move.target, at_s)):
            return move
    if state.paused or current is None:
        return _nothing_better(state)
    if (move := place_kv(state, policy, current, at_s)) is not None:
        return move
    target = choose.best(value.preferred(state, judged), Fit.ROOMY)
    pays = target is not None and target.point.variant == state.queue.home != state.point.variant
    if target is None or not (pays or target.rank < current.rank):
        return _nothing_better(state)
    direction = _direction(state, target) if pays else Direction.UP
    return _when_it_has_lasted(state, policy, target, at_s, direction)


def _is_short(state: State, policy: Policy) -> bool:
    """True if less memory is available than the policy keeps free, whatever is in force."""
    available, limit = situation(state).available_bytes, policy.memory
    return limit is not None and available is not None and available < limit.headroom_bytes


def _relief(state: State, policy: Policy) -> Move | None:
    """The controller's own relief comes first: memory that no running conversation needs."""
    limit = policy.memory
    available = state.snapshot.value("memory.available") if state.snapshot is not None else None
    if limit is None or available is None or not idle_bytes(state):
        return None
    if available >= limit.headroom_bytes:
        return None
    text = (
        f"{mib(available)} of memory are available, under the limit of "
        f"{mib(limit.headroom_bytes)}, and conversations that have ended hold "
        f"{mib(state.demand.idle_bytes)}"
    )
    trigger = Trigger("memory.available", available, limit.headroom_bytes, text=text)
    wanted = int(limit.leave_bytes - available)
    return Move(state.point, None, trigger, Direction.RELIEF, wanted)


def _must_move(
    state: State,
    policy: Policy,
    judged: tuple[Assessed, ...],
    current: Assessed | None,
    model: ModelSpec,
    at_s: float,
    cause: str,
) -> Move | None:
    """The way out of a point that can't stay; None if there is nothing better than to stay."""
    target = _way_out(state, judged, current, model, at_s)
    trigger = _why(state, policy, current, at_s, cause)
    if target is None:
        rung = last_rung(state, policy, judged, trigger) or give_way(state, policy, judged, trigger)
        if rung is not None:
            return rung
        text = f"{trigger.text}; no variant fits"
        return Move(PARKED, None, replace(trigger, text=text), Direction.PARK)
    if target.point == state.point or _over_budget(state, policy, target.point, at_s):
        return None
    if current is not None and not current.reason and target.fit >= current.fit:
        return None  # a conversation could outgrow the limit, and nowhere is better
    return Move(target.point, target, trigger, _direction(state, target))


def _way_out(
    state: State,
    judged: tuple[Assessed, ...],
    current: Assessed | None,
    model: ModelSpec,
    at_s: float,
) -> Assessed | None:
    """Cheap knobs before dear ones, and no step up by the way unless nothing else is left."""
    here = model.variant(state.point.variant or "")
    if distrusted(state, Knob.CONTEXT):
        judged = tuple(one for one in judged if not _shrinks(state.point, one.point))
    same = tuple(one for one in judged if one.point.variant == state.point.variant)
    instant = tuple(one for one in same if not needs_worker(state.point, one.point))
    draft = draft_of(state.point.speculation)
    as_it_drafts = (one for one in instant if draft_of(one.point.speculation) == draft)
    if (cheapest := choose.best(as_it_drafts, Fit.KEPT)) is not None:
        return cheapest
    if (cheap := choose.best(instant, Fit.KEPT)) is not None:
        return cheap
    if (stay := choose.best(same, Fit.KEPT)) is not None:
        return stay
    if here is not None and not pinned_knobs(state, at_s):
        modest = tuple(one for one in judged if one.predicted.quality_ratio <= here.quality)
        if state.queue.home is not None:
            home = choose.best(value.preferred(state, modest), Fit.ROOMY)
            if home is not None:
                return home
        if (lower := choose.safest(modest)) is not None:
            return lower
    return choose.safest(judged)


def _shrinks(source: OperatingPoint, target: OperatingPoint) -> bool:
    return target.variant == source.variant and target.context < source.context


def _direction(state: State, target: Assessed) -> Direction:
    model = state.model
    here = model.variant(state.point.variant or "") if model is not None else None
    if here is None or here.name == target.point.variant:
        smaller = _height(target.point) <= _height(state.point)
        return Direction.DOWN if smaller else Direction.UP
    return Direction.DOWN if target.predicted.quality_ratio <= here.quality else Direction.UP


def _height(point: OperatingPoint) -> tuple[float, ...]:
    """How high a point of one variant stands: what takes more memory or makes more heat is higher.

    Among the knobs that change together, the dearest one to move tells.
    """
    placement = list(KvPlacement).index(point.kv_placement)
    return (point.context, -placement, point.threads, point.pace_ratio)


def _over_budget(state: State, policy: Policy, target: OperatingPoint, at_s: float) -> bool:
    """True if this would be a hand-over for more threads alone, and they are used up this hour.

    Fewer threads than there might be break no limit, so that this one can wait.
    """
    here = state.point
    if here.variant != target.variant or here.threads >= target.threads:
        return False
    if replace(here, threads=target.threads, pace_ratio=target.pace_ratio) != target:
        return False
    if target.pace_ratio < here.pace_ratio or Knob.THREADS in pinned_knobs(state, at_s):
        return False
    least = combine(state.rules.verdicts, policy.knobs).knobs.threads_min
    spent = len(state.handovers) >= policy.stability.switches_per_hour
    return spent and here.threads >= least


def _when_it_has_lasted(
    state: State, policy: Policy, target: Assessed, at_s: float, direction: Direction
) -> Move | State:
    """Step up once a better point has been there for long enough; remember since when."""
    since_s = state.better_since_s if state.better is not None else at_s
    waiting = replace(state, better=target.point, better_since_s=since_s)
    if waits_for(state, policy, target, since_s, at_s):
        return waiting
    available = situation(state).available_bytes
    limit = policy.memory
    held_s = at_s - since_s
    if (pays := value.trigger(state, target, held_s)) is not None:
        return Move(target.point, target, pays, direction)
    if limit is not None and available is not None:
        text = (
            f"for {held_s:.0f} s there has been room to keep {mib(limit.leave_bytes)} free "
            f"after the step ({mib(available)} are available)"
        )
        trigger = Trigger("memory.available", available, limit.leave_bytes, held_s, text)
    else:
        trigger = Trigger("better", for_s=held_s, text=f"it could be taken for {held_s:.0f} s")
    return Move(target.point, target, trigger, direction)


# ---------------------------------------------------------------- reasons


def _why(
    state: State, policy: Policy, current: Assessed | None, at_s: float, cause: str
) -> Trigger:
    """What makes the present point impossible."""
    limit = policy.memory
    if current is not None and current.fit > Fit.KEPT and limit is not None:
        short = _short_of_memory(state, policy)
        text = short.text
        if current.fit is Fit.OVER:
            text += f", under the limit of {mib(limit.headroom_bytes)}"
        else:
            text += (
                f", and a conversation of {current.point.context} tokens would go "
                f"under the limit of {mib(limit.headroom_bytes)}"
            )
            if trend := trend_bytes_s(state.falls_bytes_s):
                text += f", as others take {mib(trend)} a second"
        return replace(short, text=text)
    heat = state.heat
    celsius = state.snapshot.value("temperature.max") if state.snapshot is not None else None
    if celsius is not None and heat.changed_s == at_s and policy.temperature is not None:
        return _heat_trigger(state, policy.temperature, celsius)
    if cause:
        return Trigger("event", text=cause)
    if current is not None and current.reason:
        return Trigger("exclusion", text=current.reason)
    wanted = pinned_knobs(state, at_s).get(Knob.VARIANT, state.point.variant)
    if wanted != state.point.variant:
        return Trigger("pin", text=f"{wanted} is pinned")
    if current is None and (rule := _latest_rule(state, policy)) is not None:
        return rule
    if current is None and celsius is not None and policy.temperature is not None and heat.level:
        return _heat_trigger(state, policy.temperature, celsius)  # a means rests, or has rested
    return Trigger("bounds", text="the point is outside the bounds in force")


def _short_of_memory(state: State, policy: Policy) -> Trigger:
    """What is available, as the reason why a point can't be had."""
    available, limit = situation(state).available_bytes, policy.memory
    threshold = None if limit is None else limit.headroom_bytes
    text = f"{mib(available or 0)} of memory are available"
    return Trigger("memory.available", available, threshold, text=text)


def _heat_trigger(state: State, limit: TemperatureLimit, celsius: float) -> Trigger:
    enter, leave = limit.enter_celsius, limit.leave_celsius
    if celsius <= leave:
        return Trigger(
            "temperature.max",
            celsius,
            leave,
            text=f"{celsius:.0f} °C, under the limit of {leave:.0f} °C",
        )
    text = f"{celsius:.0f} °C, over the limit of {enter:.0f} °C"
    for knob in (Knob.PACE, Knob.THREADS, Knob.VARIANT):
        if distrusted(state, knob):
            text += f"; {HEAT_WORDS[knob]} ({state.distrust[knob].reason})"
    if celsius < enter:
        away_s = state.thermal.time_to_s(enter, celsius)
        text = f"{celsius:.0f} °C, and {enter:.0f} °C would be reached in {away_s:.0f} s"
    return Trigger("temperature.max", celsius, enter, text=text)


def _latest_rule(state: State, policy: Policy) -> Trigger | None:
    """The rule that narrowed the bounds last, as the reason; None if none is in force."""
    bounds = combine(state.rules.verdicts, policy.knobs)
    narrowing = {name for names in bounds.tightened_by.values() for name in names}
    in_force = [
        verdict
        for verdict in state.rules.verdicts
        if verdict.in_force and verdict.rule.name in narrowing
    ]
    if not in_force:
        return None
    latest = max(in_force, key=lambda verdict: verdict.since_s or 0.0)
    why = latest.why or Trigger("rule")
    return replace(why, text=f"rule “{latest.rule.name}” came in force: {why.text}")


# ---------------------------------------------------------------- while actions run


def _while_moving(state: State, policy: Policy, at_s: float) -> Decided:
    """Hold still, but give back KV that nobody uses, and give up a load that finds no room."""
    loading, limit = _may_give_up(state), policy.memory
    relief = _relief(state, policy)
    if relief is not None and at_s - state.relieved_s >= RELIEF_EVERY_S:
        return Decided(*relieve_beside(state, policy, at_s, relief))
    available = situation(state).available_bytes
    if not loading or limit is None or available is None or available >= limit.headroom_bytes:
        return Decided(state)
    text = (
        f"{mib(available)} of memory were left while {loading} was loading, "
        f"under the limit of {mib(limit.headroom_bytes)}"
    )
    trigger = Trigger("memory.available", available, limit.headroom_bytes, text=text)
    back = Move(_without_what_goes(state), None, trigger, Direction.DOWN)
    return _move(state, policy, at_s, back, ())


def _may_give_up(state: State) -> str:
    """What is loading beside what serves, in words; empty if nothing is."""
    match state.running:
        case SwitchWorker(point=point, mode=HandoverMode.MAKE_BEFORE_BREAK):
            is_there = point == state.point or _serves_already(state, point)
            return "" if is_there else point.variant or ""
        case SetSpeculation(speculation=speculation):
            return f"the draft {draft_of(speculation)}"
        case _:
            return ""


def _serves_already(state: State, point: OperatingPoint) -> bool:
    """True if the streams are with the new worker: what is left to do gives memory back."""
    now = state.demand.point
    return now is not None and not needs_worker(now, point)


def _without_what_goes(state: State) -> OperatingPoint:
    """The point that there is while something loads: a draft goes before another one comes."""
    point = state.point
    if isinstance(state.running, SetSpeculation) and draft_of(point.speculation) is not None:
        return replace(point, speculation=SPECULATION_NGRAM)
    return point
