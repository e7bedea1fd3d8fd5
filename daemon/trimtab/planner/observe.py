"""What ticks and measurements change in the state, before anything is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from trimtab.domain.events import Demand, Tick, WorkerMeasured
from trimtab.planner.foresight import TREND_TICKS
from trimtab.planner.heat import advance, in_use, ladder
from trimtab.planner.points import draft_of
from trimtab.planner.predict import beside_bytes, loaded_bytes
from trimtab.planner.relief import judge_heat, resting
from trimtab.planner.resident import estimates, worked
from trimtab.planner.state import Heat, Quarantine, State, changed
from trimtab.policy.combine import combine
from trimtab.policy.compiled import Policy
from trimtab.policy.evaluate import Verdict, evaluate

HOUR_S: Final = 3600.0


def tick(state: State, event: Tick, policy: Policy) -> State:
    """Take in a snapshot."""
    at_s = event.at_s
    rules, verdicts = evaluate(policy, state.rules, event.snapshot, event.wall_minute)
    state = _heated(state, event, policy, verdicts)
    pin = state.pin
    if pin is not None and pin.until_s is not None and at_s >= pin.until_s:
        pin = None
    fall_bytes_s = _fall_rate(state, event)
    return changed(
        state,
        snapshot=event.snapshot,
        demand=event.demand,
        rules=rules,
        pin=pin,
        fall_bytes_s=fall_bytes_s,
        fill_bytes_s=min(state.fall_bytes_s, fall_bytes_s),
        falls_bytes_s=(*state.falls_bytes_s[-TREND_TICKS + 1 :], fall_bytes_s),
        quarantine=_current(state.quarantine, at_s),
        drafts_out=_current(state.drafts_out, at_s),
        working=_working(state, event),
        handovers=tuple(time_s for time_s in state.handovers if at_s - time_s < HOUR_S),
        wanted=state.wanted and event.demand.waiting > 0,
    )


def _heated(state: State, event: Tick, policy: Policy, verdicts: tuple[Verdict, ...]) -> State:
    """The model of heat, the ratchet, and what its means have brought so far."""
    at_s, celsius = event.at_s, event.snapshot.value("temperature.max")
    thermal = state.thermal
    if thermal.at_s is not None and thermal.at_s <= state.heat.changed_s:
        thermal = thermal.turned()  # what was fitted is of the load before the level moved
    thermal = thermal.seen(at_s, celsius)
    if policy.temperature is None or state.model is None:
        heat = state.heat if policy.temperature is not None else Heat()
        same = thermal is state.thermal and heat == state.heat
        return state if same else changed(state, thermal=thermal, heat=heat)
    steps = ladder(state.model, combine(verdicts, policy.knobs).knobs, state.threads)
    state = judge_heat(changed(state, thermal=thermal), steps, celsius, policy, at_s)
    left = policy.stability.switches_per_hour - len(state.handovers)
    heat = advance(state.heat, celsius, thermal, policy, steps, at_s, may_switch=left > 0)
    tried = in_use(heat, steps, resting(state, at_s), celsius, thermal, at_s)
    return changed(state, heat=replace(heat, tried=tried))


def measured(state: State, event: WorkerMeasured) -> State:
    """Remember what a worker really holds, how wrong that was predicted, and its load time.

    A draft beside it holds what is known of that one; the rest is the variant's own.
    """
    name, model = event.variant, state.model
    spec = model.variant(name) if model is not None else None
    draft = model.variant(event.draft) if model is not None else None
    held = event.resident_bytes
    if draft is not None and model is not None:
        held -= beside_bytes(draft, estimates(model, state.resident))
    doubt, before = state.doubt, state.resident.get(name)
    if before is not None:
        doubt = doubt.again(name, before, held)
    elif spec is not None and model is not None:
        doubt = doubt.first(loaded_bytes(spec, estimates(model, state.resident)), held)
    load_s = dict(state.load_s)
    if event.load_s is not None:
        load_s[name] = event.load_s
    return replace(state, resident={**state.resident, name: held}, doubt=doubt, load_s=load_s)


def _working(state: State, event: Tick) -> Mapping[str, int]:
    """What the serving worker holds beyond what it held when it had just loaded.

    Only where that is all: a draft in the same process, or KV that isn't in segments, would be
    counted twice.
    """
    name, demand, before = state.point.variant, event.demand, state.snapshot
    if name is None or demand.worker_bytes is None or before is None or name not in state.resident:
        return state.working
    if state.running is not None or demand.kv_tokens or draft_of(state.point.speculation):
        return state.working
    extra = max(0, demand.worker_bytes - state.resident[name])
    known = state.working.get(name, 0)
    now = worked(known, extra, event.snapshot.at_s - before.at_s)
    return state.working if now == known else {**state.working, name: now}


def _fall_rate(state: State, event: Tick) -> float:
    """How fast others took memory since the last tick, in bytes/s.

    While a hand-over is under way the change is our own and says nothing about others.
    """
    before = state.snapshot
    if before is None:
        return 0.0
    past, now = before.value("memory.available"), event.snapshot.value("memory.available")
    elapsed_s = event.snapshot.at_s - before.at_s
    if past is None or now is None or elapsed_s <= 0 or state.running is not None:
        return state.fall_bytes_s
    own = _own_bytes(event.demand) - _own_bytes(state.demand)
    return max(0.0, (past - now - own) / elapsed_s)


def _own_bytes(demand: Demand) -> int:
    """Memory that the worker and conversations hold."""
    return (demand.worker_bytes or 0) + demand.running_bytes + demand.idle_bytes


def _current(known: Mapping[str, Quarantine], at_s: float) -> dict[str, Quarantine]:
    """Quarantines that are on, and those that ended less than an hour ago (they count double)."""
    return {
        name: quarantine for name, quarantine in known.items() if at_s < quarantine.until_s + HOUR_S
    }
