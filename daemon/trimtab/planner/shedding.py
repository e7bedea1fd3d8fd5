"""The records of requests that were refused: a decision like others, at most one a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.decisions import Decision, Direction, Trigger
from trimtab.domain.scheduling import Schedule
from trimtab.planner.state import State
from trimtab.policy.compiled import Policy

SIGNAL: Final = "requests.shed"
EVERY_S: Final = 1.0


def noted(state: State, schedule: Schedule | None) -> State:
    """The state with the schedule's refusals, which are still to be recorded."""
    if schedule is None or not schedule.shed:
        return state
    reason = schedule.shed[-1].reason
    return replace(state, shed=state.shed + len(schedule.shed), shed_reason=reason)


def record(state: State, policy: Policy, at_s: float) -> tuple[State, Decision | None]:
    """A record of what has been refused since the last one; None if there is nothing, or too soon.

    In a rush hundreds may be refused: the first is recorded at once, the others together.
    """
    if not state.shed or at_s < state.shed_recorded_s + EVERY_S:
        return state, None
    reason = state.shed_reason if state.shed == 1 else f"as for the last one, {state.shed_reason}"
    decision = Decision(
        id=state.next_decision,
        at_s=at_s,
        direction=Direction.SHED,
        trigger=Trigger(SIGNAL, float(state.shed), text=reason),
        source=state.point,
        target=state.point,
        predicted=None,
        runner_up=None,
        excluded=(),
        policy=policy.name,
        revision=policy.revision,
    )
    state = replace(state, shed=0, shed_recorded_s=at_s, next_decision=state.next_decision + 1)
    return state, decision
