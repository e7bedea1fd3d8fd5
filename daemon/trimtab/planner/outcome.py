"""How actions ended, and what came of a decision once it had settled."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.actions import Park, SwitchWorker
from trimtab.domain.decisions import Decision, Direction, Outcome
from trimtab.domain.events import ActionEnded, OutcomeKind
from trimtab.domain.knobs import Knob
from trimtab.planner.faults import quarantined
from trimtab.planner.plan import waits_to_grow
from trimtab.planner.serving import with_rates
from trimtab.planner.state import State

SETTLE_S: Final = 3.0


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
            state, settling=replace(settling, took_s=took_s, done_s=event.at_s, failed=event.reason)
        )
    if state.waiting_for:
        return replace(state, settling=replace(settling, took_s=took_s))
    decision = settling.decision
    if decision.direction is Direction.UP and waits_to_grow(decision.source, decision.target):
        state = replace(state, last_up_s=event.at_s)
    return replace(state, settling=replace(settling, took_s=took_s, done_s=event.at_s))


def settle(state: State, at_s: float) -> tuple[State, Decision | None]:
    """The record of the last decision with its measured effect, once it has settled."""
    settling = state.settling
    if settling is None or settling.done_s is None or at_s - settling.done_s < SETTLE_S:
        return state, None
    return replace(state, settling=None), concluded(state)


def concluded(state: State) -> Decision | None:
    """The settling decision with what is known of its effect now; None if none is settling."""
    settling = state.settling
    if settling is None:
        return None
    available = state.snapshot.value("memory.available") if state.snapshot is not None else None
    kind = OutcomeKind.DONE
    if settling.failed:
        kind = OutcomeKind.FAILED
    elif settling.done_s is None:
        kind = OutcomeKind.SUPERSEDED
    result = Outcome(
        kind=kind,
        took_s=settling.took_s,
        available_before_bytes=settling.available_bytes,
        available_after_bytes=None if available is None else int(available),
        reason=settling.failed,
    )
    return replace(settling.decision, outcome=result)
