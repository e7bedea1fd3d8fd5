"""The part of `step` for requests: their events into the queue, a schedule out of it."""

from __future__ import annotations

from dataclasses import replace

from trimtab.domain.events import RequestArrived, RequestEnded, RequestProgress
from trimtab.domain.scheduling import Schedule
from trimtab.planner import rates, requests
from trimtab.planner.queue_plan import Rate
from trimtab.planner.schedule import consider
from trimtab.planner.state import State
from trimtab.policy.compiled import Policy


def take(
    state: State, event: RequestArrived | RequestProgress | RequestEnded, policy: Policy
) -> State:
    """The state after a request's event."""
    queue = state.queue
    match event:
        case RequestArrived():
            speeds = rates.now(state.rates, queue.speeds, state.point.pace_ratio)
            due = requests.objective(event, policy)
            queue = requests.arrived(queue, event, due, speeds)
        case RequestProgress():
            queue = requests.progressed(queue, event, serving_rate(state))
        case RequestEnded():
            queue = requests.ended(queue, event, serving_rate(state))
    return replace(state, queue=queue)


def serving_rate(state: State) -> Rate | None:
    """The speed of the loaded variant as it was known before, at the pace in force."""
    for rate in state.rates:
        if rate.variant == state.point.variant:
            pace = state.point.pace_ratio
            return Rate(rate.variant, rate.prefill_s / pace, rate.decode_s / pace, rate.quality)
    return None


def schedule(state: State, policy: Policy, at_s: float) -> tuple[State, Schedule | None]:
    """Whom to serve now; None while nothing is loaded, and without requests."""
    if not state.queue.jobs:
        return state, None
    speeds = rates.now(state.rates, state.queue.speeds, state.point.pace_ratio)
    loaded = next((one for one in speeds if one.variant == state.point.variant), None)
    if loaded is None:
        return state, None
    considered = consider(
        state.queue, loaded, rates.fastest(speeds), at_s, policy.admission.max_wait_s
    )
    return replace(state, queue=considered.queue), considered.schedule
