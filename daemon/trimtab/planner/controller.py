"""`step`: one event in, a new state, actions and a decision record out. Pure.

The same function runs in the daemon, in scenario tests, in the simulator and in replay. It decides
when something happened that can matter: a tick, the end of an action, the loss of a worker, another
policy, model or pin. Requests' events change the schedule alone, and who is refused by it is
recorded; what they teach counts at the next tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from trimtab.domain.actions import Action
from trimtab.domain.decisions import Decision
from trimtab.domain.events import (
    ActionEnded,
    DraftFailed,
    Event,
    ModelChanged,
    PausedSet,
    PinCleared,
    PinSet,
    PolicyChanged,
    RequestArrived,
    RequestEnded,
    RequestProgress,
    RequestWaiting,
    Tick,
    WorkerLost,
    WorkerMeasured,
)
from trimtab.domain.knobs import PARKED
from trimtab.domain.scheduling import Schedule
from trimtab.planner import faults, observe, outcome, relief, serving, shedding
from trimtab.planner.decide import decide
from trimtab.planner.state import Pin, State
from trimtab.policy.compiled import Policy

NO_CAUSE: Final = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What came of one event.

    Attributes:
        state: The controller's memory from now on.
        actions: To be carried out in this order; each one's outcome comes back as `ActionEnded`.
        decision: The record, if something was decided.
        settled: Earlier records with their outcomes, which have just become known: they have
            settled, or this step's decision took their place.
        schedule: Whom the engine serves from now on and who is refused; None: as before.
    """

    state: State
    actions: Sequence[Action] = ()
    decision: Decision | None = None
    settled: tuple[Decision, ...] = ()
    schedule: Schedule | None = None


def step(state: State, event: Event, policy: Policy) -> Step:
    """React to one event under the policy in force."""
    settled: tuple[Decision, ...] = ()
    cause = NO_CAUSE
    match event:
        case Tick():
            state = relief.judge(observe.tick(state, event, policy), policy, event.at_s)
            state, settled = outcome.settle(state, event.at_s)
        case ActionEnded():
            state = outcome.ended(state, event)
        case WorkerLost():
            state = faults.lost(state, event)
            cause = f"the worker for {event.variant} was lost ({event.reason})"
        case DraftFailed():
            state = faults.draft_failed(state, event)
        case WorkerMeasured():
            state = observe.measured(state, event)
            return Step(state)
        case RequestArrived() | RequestProgress() | RequestEnded():
            queue = serving.take(state, event, policy)
            state, schedule = serving.schedule(state, queue, policy, event.at_s)
            state, refused = shedding.record(shedding.noted(state, schedule), policy, event.at_s)
            return Step(state, decision=refused, schedule=schedule)
        case _:
            state, cause = _told(state, event)
    if not isinstance(event, Tick) and _seen_before_the_last_change(state):
        return Step(state, settled=settled)  # a tick is due, and it will see what there is now
    chosen = decide(state, policy, event.at_s, cause)
    settled += outcome.replaced(state, chosen.state, event.at_s)
    state, schedule = serving.schedule(chosen.state, chosen.state.queue, policy, event.at_s)
    state, decision = shedding.noted(state, schedule), chosen.decision
    if decision is None:
        state, decision = shedding.record(state, policy, event.at_s)
    return Step(state, chosen.actions, decision, settled, schedule)


def _seen_before_the_last_change(state: State) -> bool:
    """True if the last snapshot shows memory as it was before the point changed.

    The worker that a hand-over has just loaded would be counted twice, or the one that it has just
    ended not at all: a decision on that would take back a step that was right.
    """
    return state.snapshot is not None and state.snapshot.at_s < state.changed_s


def _told(state: State, event: Event) -> tuple[State, str]:
    """What people and the catalog say."""
    match event:
        case ModelChanged(model=model):
            name = model.model_id if model is not None else "none"
            queue = replace(state.queue, shadows=(), home=None)
            state = serving.with_rates(replace(state, model=model, queue=queue))
            return state, f"the model is now {name}"
        case PolicyChanged(revision=revision):
            return replace(state, better=None), f"policy revision {revision} came into force"
        case RequestWaiting():
            return replace(state, wanted=state.point == PARKED), "a request waits"
        case PinSet(knobs=knobs, until_s=until_s, by=by):
            return replace(state, pin=Pin(dict(knobs), until_s, by)), f"pinned by {by}"
        case PinCleared(by=by):
            return replace(state, pin=None, better=None), f"unpinned by {by}"
        case PausedSet(paused=paused, by=by):
            return replace(state, paused=paused), f"{'paused' if paused else 'resumed'} by {by}"
        case _:
            return state, NO_CAUSE
