"""How actions ended, and what came of a decision once it had settled."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.actions import Park, SwitchWorker
from trimtab.domain.decisions import Decision, Direction, Outcome
from trimtab.domain.events import ActionEnded, OutcomeKind
from trimtab.domain.knobs import Knob
from trimtab.planner.faults import quarantined
from trimtab.planner.heat import JUDGED_S
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
        state = replace(state, parked=isinstance(running, Park))
        if isinstance(running, SwitchWorker):
            state = replace(state, handovers=(*state.handovers, event.at_s), lost_point=None)
    if event.kind is OutcomeKind.FAILED and event.variant is not None:
        state = quarantined(state, event.variant, event.reason, event.at_s)
    return _account(state, event)


def _account(state: State, event: ActionEnded) -> State:
    """Write the action's end into the decision that is settling."""
    settling = state.settling
    if settling is None:
        return state
    took_s = settling.took_s + event.took_s
    if event.kind is OutcomeKind.FAILED:
        return replace(
            state,
            settling=replace(
                settling, took_s=took_s, done_s=event.at_s, failed=event.reason or UNSAID
            ),
        )
    if state.waiting_for:
        return replace(state, settling=replace(settling, took_s=took_s))
    if settling.decision.direction is Direction.UP:
        state = replace(state, last_up_s=event.at_s)
    return replace(state, settling=replace(settling, took_s=took_s, done_s=event.at_s))


def settle(state: State, at_s: float) -> tuple[State, Decision | None]:
    """The record of the last decision with its measured effect, once it has settled."""
    settling = state.settling
    if settling is None or settling.done_s is None:
        return state, None
    if at_s - settling.done_s < settle_s(settling.decision):
        return state, None
    return replace(state, settling=None), _concluded(state, settling, at_s)


def settle_s(decision: Decision) -> float:
    """How long to wait before a decision's effect is measured: heat takes its time."""
    return HEAT_SETTLE_S if decision.trigger.signal == HEAT_SIGNAL else SETTLE_S


def replaced(before: State, after: State, at_s: float) -> Decision | None:
    """The record of a decision that was settling when the next one took its place.

    It has no other chance of an outcome: what is known of it now is all that will be.
    """
    old, new = before.settling, after.settling
    if old is None or new is None or old.decision.id == new.decision.id:
        return None
    return _concluded(before, old, at_s)


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
        reason=settling.failed,
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
