"""How actions ended, and what came of a decision once it had settled."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.actions import Park, SwitchWorker
from trimtab.domain.decisions import Decision, Direction, Outcome
from trimtab.domain.events import ActionEnded, OutcomeKind
from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.planner.assess import kept_out
from trimtab.planner.faults import loaded, not_loaded
from trimtab.planner.heat import JUDGED_S
from trimtab.planner.plan import waits_to_grow
from trimtab.planner.serving import serving_rate, with_rates
from trimtab.planner.state import Settling, State

HEAT_SIGNAL: Final = "temperature.max"
SETTLE_S: Final = 3.0
HEAT_SETTLE_S: Final = JUDGED_S
UNSAID: Final = "no reason was given"
SEEN_LEAST_S: Final = 1.0
"""Engine time from which on a speed is taken for seen since the step."""


def ended(state: State, event: ActionEnded) -> State:
    """Take in an action's outcome: what is in force is what was read back."""
    if event.action not in state.waiting_for:
        return state  # superseded: a later decision does not wait for it
    running = state.running
    was_handover = running is not None and running.id == event.action
    done = event.kind is OutcomeKind.DONE
    before = state.point
    state = replace(
        state,
        point=event.point,
        running=None if was_handover else running,
        waiting_for=state.waiting_for - {event.action},
        changed_s=event.at_s,
        better=None,
    )
    if {Knob.THREADS, Knob.SPECULATION} & set(before.changed(event.point)):
        state = with_rates(state)
    if was_handover and done:
        woken = before.parked and state.parked and not event.point.parked
        unparked_s = event.at_s if woken else state.unparked_s
        state = replace(state, parked=isinstance(running, Park), unparked_s=unparked_s)
        if isinstance(running, SwitchWorker):
            state = replace(state, handovers=(*state.handovers, event.at_s), lost_point=None)
            if before.parked:
                state = loaded(state, running.point.variant or "", event.at_s)
    if event.kind is OutcomeKind.FAILED and event.variant is not None:
        state = not_loaded(state, event.variant, event)
        if event.point.parked and _goes_back(state, event):
            state = _to_come_back(state, before)
    return _account(state, event)


def _goes_back(state: State, event: ActionEnded) -> bool:
    """True if what had to go for a variant that didn't load is to be loaded again.

    That variant was pinned, or wasn't needed and may take some more tries: streams don't wait for
    them.
    """
    one = state.settling
    stepped_up = one is not None and one.decision.direction is Direction.UP
    return kept_out(state, event.at_s) is not None or (event.lost and stepped_up)


def _to_come_back(state: State, before: OperatingPoint) -> State:
    """What had to go first for a variant that didn't load is loaded again.

    An action beside the plan may have ended in between and read back that nothing was loaded.
    """
    source = before if state.settling is None else state.settling.decision.source
    return state if source.parked else replace(state, lost_point=source)


def _account(state: State, event: ActionEnded) -> State:
    """Write the action's end into the decision that it belongs to."""
    settling, failed = state.settling, event.kind is OutcomeKind.FAILED
    if any(one.action == event.action for one in state.beside):
        beside = [_after(one, event) if one.action == event.action else one for one in state.beside]
        state, failed = replace(state, beside=tuple(beside)), False
    elif settling is not None:
        settling = replace(_after(settling, event), done_s=event.at_s if failed else None)
    if settling is None or failed or state.waiting_for:
        return replace(state, settling=settling)
    decision = settling.decision
    if decision.direction is Direction.UP and waits_to_grow(decision.source, decision.target):
        state = replace(state, last_up_s=event.at_s)
    return replace(state, settling=replace(settling, done_s=event.at_s))


def _after(one: Settling, event: ActionEnded) -> Settling:
    one = replace(one, took_s=one.took_s + event.took_s, done_s=event.at_s)
    match event.kind:
        case OutcomeKind.FAILED:
            return replace(one, failed=event.reason or UNSAID)
        case OutcomeKind.DONE:
            return replace(one, lacking=event.reason or one.lacking)
        case _:
            return one


def settling(state: State) -> tuple[Settling, ...]:
    """The decisions whose outcome is still to come, in their order."""
    last = () if state.settling is None else (state.settling,)
    return tuple(sorted((*state.beside, *last), key=_number))


def _number(one: Settling) -> int:
    return one.decision.id


def settle(state: State, at_s: float) -> tuple[State, tuple[Decision, ...]]:
    """The records of decisions with their measured effects, once they have settled."""
    over = [one for one in settling(state) if _has_settled(one, at_s)]
    if not over:
        return state, ()
    left = replace(
        state,
        settling=None if state.settling in over else state.settling,
        beside=tuple([one for one in state.beside if one not in over]),
    )
    return left, tuple([_concluded(state, one, at_s) for one in over])


def _has_settled(one: Settling, at_s: float) -> bool:
    return one.done_s is not None and at_s - one.done_s >= settle_s(one.decision)


def settle_s(decision: Decision) -> float:
    """How long to wait before a decision's effect is measured: heat takes its time."""
    return HEAT_SETTLE_S if decision.trigger.signal == HEAT_SIGNAL else SETTLE_S


def replaced(before: State, after: State, at_s: float) -> tuple[Decision, ...]:
    """The records of decisions that were settling when the next one took their place.

    They have no other chance of an outcome: what is known of it now is all that will be.
    """
    if before.settling is after.settling and before.beside is after.beside:
        return ()
    left = {one.decision.id for one in settling(after)}
    gone = [one for one in settling(before) if one.decision.id not in left]
    return tuple([_concluded(before, one, at_s) for one in gone])


def _concluded(state: State, settling: Settling, at_s: float) -> Decision:
    """The record with what is known of its effect now."""
    done_s, seen = settling.done_s, state.snapshot
    if seen is not None and done_s is not None and seen.at_s < done_s:
        seen = None  # it shows what was before
    available = seen.value("memory.available") if seen is not None else None
    result = Outcome(
        kind=_kind(settling),
        took_s=settling.took_s,
        available_before_bytes=settling.available_bytes,
        available_after_bytes=None if available is None else int(available),
        reason=settling.failed or settling.lacking,
        worker_bytes=state.demand.worker_bytes if seen is not None else None,
        celsius_before=settling.celsius,
        celsius_after=seen.value(HEAT_SIGNAL) if seen is not None else None,
        decode_tps=_decode_tps(state, settling),
        settled_s=None if done_s is None else at_s - done_s,
    )
    return replace(settling.decision, outcome=result)


def _kind(settling: Settling) -> OutcomeKind:
    if settling.failed:
        return OutcomeKind.FAILED
    return OutcomeKind.SUPERSEDED if settling.done_s is None else OutcomeKind.DONE


def _decode_tps(state: State, settling: Settling) -> float | None:
    """The speed of one conversation as seen since the step; None if it has hardly been seen."""
    variant, rate, speeds = (
        settling.decision.target.variant,
        serving_rate(state),
        state.queue.speeds,
    )
    if rate is None or rate.variant != variant:
        return None
    if speeds.seen_s.get(variant, 0.0) - settling.seen_s < SEEN_LEAST_S:
        return None
    return speeds.factor(variant) / rate.decode_s
