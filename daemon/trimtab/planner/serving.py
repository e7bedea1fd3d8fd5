"""The part of `step` for requests: their events into the queue, a schedule out of it."""

from __future__ import annotations

from dataclasses import replace

from trimtab.domain.events import RequestArrived, RequestEnded, RequestProgress
from trimtab.domain.scheduling import Schedule
from trimtab.planner import rates, requests
from trimtab.planner.predict import known_device
from trimtab.planner.queue_plan import Rate
from trimtab.planner.requests import Queue
from trimtab.planner.schedule import consider
from trimtab.planner.sharing import shared_rate
from trimtab.planner.state import State, changed
from trimtab.policy.compiled import Policy


def take(
    state: State, event: RequestArrived | RequestProgress | RequestEnded, policy: Policy
) -> Queue:
    """The queue after a request's event."""
    queue = state.queue
    match event:
        case RequestArrived():
            count = min(len(queue.jobs) + 1, policy.admission.conversations)
            speeds = [
                shared_rate(rate, queue.speeds, count)
                for rate in rates.now(state.rates, queue.speeds, state.point.pace_ratio)
            ]
            due = requests.objective(event, policy)
            queue = requests.arrived(queue, event, due, speeds, state.point.variant)
        case RequestProgress():
            queue = requests.progressed(queue, event, serving_rate(state))
        case RequestEnded():
            queue = requests.ended(queue, event, serving_rate(state))
    return queue


def with_rates(state: State) -> State:
    """The state with the device's model, and speeds as they are with the threads in force.

    A model of another language model's variants says nothing of these.
    """
    model, device = state.model, state.device
    if model is None:
        return replace(state, rates=())
    if device is None or device.model_id != model.model_id:
        device = known_device(model)
    point = state.point
    threads = state.threads if point.parked else point.threads
    return replace(
        state, device=device, rates=rates.known(model, device, threads, point.speculation)
    )


def serving_rate(state: State) -> Rate | None:
    """The speed of the loaded variant as it was known before, at the pace in force."""
    for rate in state.rates:
        if rate.variant == state.point.variant:
            pace = state.point.pace_ratio
            if pace == 1:
                return rate
            return Rate(rate.variant, rate.prefill_s / pace, rate.decode_s / pace, rate.quality)
    return None


def schedule(
    state: State, queue: Queue, policy: Policy, at_s: float
) -> tuple[State, Schedule | None]:
    """The state with this queue, and whom to serve; None while nothing is loaded or wanted."""
    if not queue.jobs or state.point.variant is None:
        return (state if queue is state.queue else changed(state, queue=queue)), None
    loaded, fastest = rates.loaded_and_fastest(
        state.rates, queue.speeds, state.point.pace_ratio, state.point.variant
    )
    if loaded is None:
        return changed(state, queue=queue), None
    considered = consider(queue, loaded, fastest, at_s, policy.admission)
    return changed(state, queue=considered.queue), considered.schedule
