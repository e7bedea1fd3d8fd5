"""A candidate policy in shadow: it decides on what is really seen, and acts on nothing. Pure.

The candidate goes through the same `step` as the policy in force. Where it would have another
variant loaded, available memory is corrected by what the two would hold; what it decides counts as
done at once. Ticks that fall into a real hand-over are left out, since the memory of two workers
belongs to neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from trimtab.domain.decisions import Decision, Direction
from trimtab.domain.events import (
    ActionEnded,
    DraftFailed,
    Event,
    ModelChanged,
    OutcomeKind,
    PausedSet,
    PinCleared,
    PinSet,
    PolicyChanged,
    RequestArrived,
    RequestEnded,
    RequestProgress,
    RequestWaiting,
    Tick,
    WorkerMeasured,
)
from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.readings import Reading, Snapshot
from trimtab.planner.assess import facts
from trimtab.planner.controller import Step, step
from trimtab.planner.predict import Situation, predict
from trimtab.planner.state import Heat, State
from trimtab.policy.compiled import Policy
from trimtab.policy.evaluate import RulesState

MOST_SPANS: Final = 200
MOST_STEPS: Final = 8
LONGEST_GAP_S: Final = 10.0
"""A longer time between two ticks was no time in which anything was compared."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one policy came to, over the time that was compared.

    Attributes:
        quality_s: Integral of the loaded variant's quality.
        speed_s: Integral of the predicted tokens/s of one conversation.
        parked_s: Time with nothing loaded.
        below_s: Time with less memory available than its own headroom.
        least_bytes: Least available memory; None if none was known.
        switches: Changes of the loaded variant.
        decisions: Decisions made.
    """

    quality_s: float = 0.0
    speed_s: float = 0.0
    parked_s: float = 0.0
    below_s: float = 0.0
    least_bytes: float | None = None
    switches: int = 0
    decisions: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which the two would not have been at the same point.

    Attributes:
        from_s: Since the trial began.
        to_s: Likewise; the last tick that was seen so.
        real: What was in force.
        candidate: What the candidate would have had.
        why: The candidate's reason for being where it is; empty if it never moved.
    """

    from_s: float
    to_s: float
    real: OperatingPoint
    candidate: OperatingPoint
    why: str


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial under way.

    Attributes:
        policy: The candidate.
        state: Its own.
        began_s: Monotonic time of the start.
        compared_s: Time that counts: between ticks that both saw.
        apart_s: Of that, the time in which they were at different points.
        spans: The times in which they were apart, the first ones.
        real: What the policy in force came to.
        candidate: What the candidate would have come to.
        last_tick_s: When they were last compared; None after a gap.
        last_real: What was in force then.
        last_decision: Number of the real decision that comes next.
        why: The candidate's reason for its last decision.
    """

    policy: Policy
    state: State
    began_s: float
    compared_s: float = 0.0
    apart_s: float = 0.0
    spans: tuple[Span, ...] = ()
    real: Side = field(default_factory=Side)
    candidate: Side = field(default_factory=Side)
    last_tick_s: float | None = None
    last_real: OperatingPoint | None = None
    last_decision: int = 0
    why: str = ""


def begin(policy: Policy, real: State, at_s: float) -> Trial:
    """Start a trial from what is in force now."""
    state = replace(
        real,
        rules=RulesState(),
        heat=Heat(),
        running=None,
        waiting_for=frozenset(),
        settling=None,
        beside=(),
        better=None,
    )
    trial = Trial(policy, state, at_s, last_decision=real.next_decision)
    return _advance(trial, PolicyChanged(at_s, policy.revision))


def observe(trial: Trial, event: Event, real: State, policy: Policy) -> Trial:
    """Show the candidate an event.

    Args:
        trial: So far.
        event: What really happened.
        real: The controller's state after it.
        policy: In force.
    """
    match event:
        case Tick():
            if real.running is not None:
                return replace(trial, last_tick_s=None)
            seen = _as_it_would_be(trial, event, real)
            trial = _advance(trial, seen)
            return _compare(trial, event, seen, real, policy)
        case (
            ModelChanged()
            | PinSet()
            | PinCleared()
            | PausedSet()
            | RequestWaiting()
            | RequestArrived()
            | WorkerMeasured()
            | DraftFailed()
        ):
            return _advance(trial, event)
        case RequestProgress() | RequestEnded():
            if trial.state.point.variant != real.point.variant:
                # How long it took says nothing of the variant that the candidate would have.
                event = replace(event, prefill_s=0.0, decode_s=0.0)
            return _advance(trial, event)
        case _:
            return trial


def _advance(trial: Trial, event: Event) -> Trial:
    """One event through the candidate's own `step`; what it decides is done at once."""
    state, decisions, why = trial.state, 0, trial.why
    waiting: list[Event] = [event]
    for _ in range(MOST_STEPS):
        if not waiting:
            break
        result = step(state, waiting.pop(0), trial.policy)
        state = result.state
        if result.decision is not None:
            decisions += 1
            if result.decision.direction is not Direction.SHED:
                why = result.decision.trigger.text
            waiting = _done(result, result.decision, event.at_s)
    side = replace(trial.candidate, decisions=trial.candidate.decisions + decisions)
    return replace(trial, state=state, candidate=side, why=why)


def _done(result: Step, decision: Decision, at_s: float) -> list[Event]:
    """Every action of a plan has ended well, and the target is in force."""
    return [
        ActionEnded(at_s, action.id, OutcomeKind.DONE, decision.target) for action in result.actions
    ]


def _as_it_would_be(trial: Trial, event: Tick, real: State) -> Tick:
    """The tick as it would look with the candidate's worker in place of the real one."""
    point = trial.state.point
    if point.variant == real.point.variant:
        return event
    held, wanted = event.demand.worker_bytes or 0, 0
    if trial.state.model is not None and not point.parked:
        here = Situation(None, held, event.demand.kv_tokens)
        wanted = predict(point, trial.state.model, here, facts(trial.state)).memory_bytes
    readings = dict(event.snapshot.readings)
    available = event.snapshot.value("memory.available")
    if available is not None:
        corrected = max(0.0, available + held - wanted)
        readings["memory.available"] = Reading(
            "memory.available", corrected, event.at_s, reason="as the candidate would have it"
        )
    snapshot = Snapshot(event.snapshot.at_s, readings, event.snapshot.wall_s)
    demand = replace(event.demand, worker_bytes=None if point.parked else wanted)
    return replace(event, snapshot=snapshot, demand=demand)


def _compare(trial: Trial, event: Tick, seen: Tick, real: State, policy: Policy) -> Trial:
    """Count the time since the last tick for both sides."""
    at_s, last_s = event.at_s, trial.last_tick_s
    elapsed = min(at_s - last_s, LONGEST_GAP_S) if last_s is not None else 0.0
    before = trial.last_real
    switched = before is not None and before.variant not in (None, real.point.variant)
    mine, yours = trial.state.point, real.point
    in_force = _count(trial.real, yours, event, real, policy, elapsed)
    candidate = _count(trial.candidate, mine, seen, real, trial.policy, elapsed)
    apart = mine != yours
    handovers = sum(moment >= trial.began_s for moment in trial.state.handovers)
    return replace(
        trial,
        compared_s=trial.compared_s + elapsed,
        apart_s=trial.apart_s + (elapsed if apart else 0.0),
        spans=_spans(trial, yours, mine, at_s - trial.began_s) if apart else trial.spans,
        real=replace(
            in_force,
            switches=trial.real.switches + switched,
            decisions=trial.real.decisions + real.next_decision - trial.last_decision,
        ),
        candidate=replace(candidate, switches=handovers),
        last_tick_s=at_s,
        last_real=yours,
        last_decision=real.next_decision,
    )


def _count(
    side: Side, point: OperatingPoint, event: Tick, real: State, policy: Policy, elapsed: float
) -> Side:
    available = event.snapshot.value("memory.available")
    quality = speed = 0.0
    if real.model is not None and not point.parked:
        here = Situation(None, 0, event.demand.kv_tokens, real.queue.speeds)
        predicted = predict(point, real.model, here, facts(real))
        quality, speed = predicted.quality_ratio, predicted.decode_tps or 0.0
    least = side.least_bytes
    if available is not None:
        least = available if least is None else min(least, available)
    short = (
        available is not None
        and policy.memory is not None
        and available < policy.memory.headroom_bytes
    )
    return replace(
        side,
        quality_s=side.quality_s + quality * elapsed,
        speed_s=side.speed_s + speed * elapsed,
        parked_s=side.parked_s + (elapsed if point.parked else 0.0),
        below_s=side.below_s + (elapsed if short else 0.0),
        least_bytes=least,
    )


def _spans(
    trial: Trial, yours: OperatingPoint, mine: OperatingPoint, at_s: float
) -> tuple[Span, ...]:
    """The spans with this moment in them."""
    last = trial.spans[-1] if trial.spans else None
    if last is not None and (last.real, last.candidate) == (yours, mine):
        return (*trial.spans[:-1], replace(last, to_s=at_s))
    if len(trial.spans) >= MOST_SPANS:
        return trial.spans
    return (*trial.spans, Span(at_s, at_s, yours, mine, trial.why))
