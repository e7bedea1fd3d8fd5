"""From a choice to actions and the decision record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from trimtab.domain.actions import (
    Action,
    GiveWay,
    HandoverMode,
    LongAction,
    Park,
    PlaceIdleKv,
    ReleaseIdleKv,
    SetContext,
    SetPace,
    SetSpeculation,
    SwitchWorker,
)
from trimtab.domain.decisions import Decision, Direction, Rejected, Trigger
from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.planner import choose
from trimtab.planner.assess import Assessed, situation
from trimtab.planner.points import draft_of
from trimtab.planner.relief import idle_bytes
from trimtab.planner.state import Settling, State
from trimtab.policy.compiled import Policy

TAKEN_BACK_DWELLS: Final = 4
SURVIVED_DWELLS: Final = 10
UP_WAIT_MAX_S: Final = 3600.0
UNPARK_WAIT_MAX_S: Final = 60.0
WORTH_LOADS: Final = 4
USUAL_LOAD_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """A choice: where to, what is expected of it, and what made it necessary.

    ``release_bytes`` of KV that nobody uses are given back first. Where nothing else moves,
    ``give_way_bytes`` are, of conversations that can wait.
    """

    target: OperatingPoint
    chosen: Assessed | None
    trigger: Trigger
    direction: Direction
    release_bytes: int = 0
    give_way_bytes: int = 0


def carry_out(
    state: State, policy: Policy, at_s: float, move: Move, judged: tuple[Assessed, ...]
) -> tuple[State, tuple[Action, ...], Decision]:
    """Actions in an order in which every prefix is safe, and the record."""
    actions = _actions(state, policy, move)
    decision = _record(state, policy, at_s, move, judged)
    running = _what_takes_time(state.point, actions)
    down = move.direction in (Direction.DOWN, Direction.PARK)
    grows = down and waits_to_grow(state.point, move.target)
    state = replace(
        state,
        running=running,
        waiting_for=frozenset(action.id for action in actions),
        settling=_settling(state, decision),
        beside=(),
        up_wait_s=grown_wait(state, policy, at_s) if grows else state.up_wait_s,
        unpark_wait_s=_unpark_wait(state, at_s, move),
        better=None,
        wanted=False,
        next_action=state.next_action + len(actions),
        next_decision=state.next_decision + 1,
    )
    return state, actions, decision


def _record(
    state: State, policy: Policy, at_s: float, move: Move, judged: tuple[Assessed, ...]
) -> Decision:
    winner = move.chosen
    return Decision(
        id=state.next_decision,
        at_s=at_s,
        direction=move.direction,
        trigger=move.trigger,
        source=state.point,
        target=move.target,
        predicted=None if winner is None else winner.predicted,
        runner_up=None if winner is None else choose.runner_up(judged, winner, state.point, policy),
        excluded=_left_out(judged, winner, policy),
        policy=policy.name,
        revision=policy.revision,
    )


def _left_out(
    judged: tuple[Assessed, ...], winner: Assessed | None, policy: Policy
) -> tuple[Rejected, ...]:
    """Why other variants couldn't be taken, and why the one that was has no other draft."""
    drafts = () if winner is None else choose.unused_drafts(judged, winner, policy)
    return (*choose.exclusions(judged, policy), *drafts)


def _settling(state: State, decision: Decision) -> Settling:
    """What a decision's effect will be held against."""
    speeds = state.queue.speeds
    return Settling(
        decision,
        situation(state).available_bytes,
        idle_bytes=state.demand.idle_bytes,
        running_bytes=state.demand.running_bytes,
        held_bytes=state.demand.worker_bytes,
        kv_tokens=state.demand.kv_tokens,
        celsius=None if state.snapshot is None else state.snapshot.value("temperature.max"),
        seen_s=speeds.seen_s.get(decision.target.variant or "", 0.0),
    )


def relieve_beside(
    state: State, policy: Policy, at_s: float, move: Move
) -> tuple[State, tuple[Action, ...], Decision]:
    """Give idle KV back while other actions run, which go on; their decision is still settling."""
    release = ReleaseIdleKv(state.next_action, move.release_bytes)
    decision = _record(state, policy, at_s, move, ())
    state = replace(
        state,
        waiting_for=state.waiting_for | {release.id},
        relieved_s=at_s,
        beside=(*state.beside, replace(_settling(state, decision), action=release.id)),
        next_action=release.id + 1,
        next_decision=decision.id + 1,
    )
    return state, (release,), decision


def grown_wait(state: State, policy: Policy, at_s: float) -> float:
    """The wait before the next step up, after this step down: doubled if it takes one back."""
    since_s = at_s - state.last_up_s
    dwell_s = max(policy.stability.dwell_s, 1.0)
    if since_s < TAKEN_BACK_DWELLS * dwell_s:
        return min(2 * max(state.up_wait_s, dwell_s), UP_WAIT_MAX_S)
    return 0.0 if since_s > SURVIVED_DWELLS * dwell_s else state.up_wait_s


def waits_to_grow(source: OperatingPoint, target: OperatingPoint) -> bool:
    """True if the wait before a step up is about such a step: heat has its own for pace, threads.

    A step down of those takes back no step up, and one up of those isn't held back by it.
    """
    return not set(source.changed(target)) <= {Knob.PACE, Knob.THREADS}


def _unpark_wait(state: State, at_s: float, move: Move) -> float:
    """How long it stays parked at least.

    A start from parked that is taken back before it has served for some times as long as the load
    took was hardly worth it: the next one waits as long as a load, and twice as long each time.
    """
    if move.direction is not Direction.PARK:
        return state.unpark_wait_s
    load_s = state.load_s.get(state.point.variant or "", USUAL_LOAD_S)
    if at_s - state.unparked_s >= WORTH_LOADS * load_s:
        return 0.0
    return min(max(2 * state.unpark_wait_s, load_s), UNPARK_WAIT_MAX_S)


def _actions(state: State, policy: Policy, move: Move) -> tuple[Action, ...]:
    if move.direction is Direction.GIVE_WAY:
        return (GiveWay(state.next_action, move.give_way_bytes),)
    wanted = max(move.release_bytes, _short_bytes(state, policy, move))
    if not wanted or not idle_bytes(state):
        return _steps(state, policy, move, state.next_action)
    release = ReleaseIdleKv(state.next_action, wanted)
    if move.direction is Direction.RELIEF:
        return (release,)
    return (release, *_steps(state, policy, move, release.id + 1))


def _short_bytes(state: State, policy: Policy, move: Move) -> int:
    """What is missing for the step while idle KV is kept; 0 if nothing is."""
    limit, chosen = policy.memory, move.chosen
    if limit is None or chosen is None or chosen.predicted.available_bytes is None:
        return 0
    without = chosen.predicted.available_bytes - idle_bytes(state)
    grown = without - (chosen.predicted.reserved_bytes - chosen.predicted.memory_bytes)
    return max(0, limit.leave_bytes - grown)


def _steps(state: State, policy: Policy, move: Move, first: int) -> tuple[Action, ...]:
    if move.target.parked:
        return (Park(first, move.trigger.text),)
    changed = state.point.changed(move.target)
    if needs_worker(state.point, move.target):
        switch = SwitchWorker(first + 1, move.target, mode(state, policy, move.chosen))
        if move.target.context < state.point.context:
            return (SetContext(first, move.target.context), switch)
        return (replace(switch, id=first),)  # pace and a larger context come with the new worker
    instant: list[Action] = []
    if Knob.PACE in changed:
        instant.append(SetPace(first + len(instant), move.target.pace_ratio))
    if Knob.KV_PLACEMENT in changed:
        instant.append(PlaceIdleKv(first + len(instant), move.target.kv_placement))
    last = loads_draft(state.point, move.target.speculation)
    if Knob.SPECULATION in changed and not last:
        instant.append(SetSpeculation(first + len(instant), move.target.speculation))
    if Knob.CONTEXT in changed:
        instant.append(SetContext(first + len(instant), move.target.context))
    if last:
        instant.append(SetSpeculation(first + len(instant), move.target.speculation))
    return tuple(instant) or (_back(state, move.target, first),)


def _back(state: State, loaded: OperatingPoint, number: int) -> Action:
    """Back to what is loaded: what is under way is given up."""
    if isinstance(state.running, SetSpeculation):
        return SetSpeculation(number, loaded.speculation)
    return SwitchWorker(number, loaded, HandoverMode.MAKE_BEFORE_BREAK)


def needs_worker(source: OperatingPoint, target: OperatingPoint) -> bool:
    """True if the change takes another worker: variant or threads.

    A draft comes and goes in the worker that serves.
    """
    return bool({Knob.VARIANT, Knob.THREADS} & set(source.changed(target)))


def loads_draft(source: OperatingPoint, speculation: str) -> bool:
    """True if this mode takes a draft that isn't loaded."""
    return draft_of(speculation) not in (None, draft_of(source.speculation))


def _what_takes_time(source: OperatingPoint, actions: tuple[Action, ...]) -> LongAction | None:
    """The action that loads or ends something: meanwhile memory moves for reasons of our own."""
    for action in actions:
        match action:
            case SwitchWorker() | Park():
                return action
            case SetSpeculation(speculation=speculation) if loads_draft(source, speculation):
                return action
    return None


def mode(state: State, policy: Policy, chosen: Assessed | None) -> HandoverMode:
    """Make before break where predicted memory allows both workers.

    What a disk hasn't taken yet isn't there for a second one, though the kernel says so.
    """
    here, limit = situation(state), policy.memory
    available = here.available_bytes
    if state.point.parked or chosen is None:
        return HandoverMode.BREAK_BEFORE_MAKE
    if limit is None or available is None:
        return HandoverMode.MAKE_BEFORE_BREAK
    left = available - here.unwritten_bytes - chosen.predicted.memory_bytes
    fits = left >= limit.headroom_bytes
    return HandoverMode.MAKE_BEFORE_BREAK if fits else HandoverMode.BREAK_BEFORE_MAKE
