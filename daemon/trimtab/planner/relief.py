"""Relief that doesn't come: a means that changes nothing rests, and the next one is used.

What was turned because memory or heat had reached a limit is held against what was measured. If it
brought less than a tenth of what was expected, it would be turned again and again and nothing else
would be. So it is left out for a while, each time twice as long:

- the KV of idle conversations no longer counts as memory that could be had;
- nor does that of running ones that were to give way and didn't;
- a variant that was stepped down to and holds no less goes into quarantine;
- a smaller context that the worker doesn't keep to is no way out any more;
- pace, threads or smaller variants that cool nothing are given back (`heat`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.decisions import Direction
from trimtab.domain.knobs import Knob
from trimtab.planner.faults import quarantined
from trimtab.planner.heat import LEAST_CELSIUS, Ladder, brought_celsius, due, over
from trimtab.planner.state import Quarantine, Settling, State
from trimtab.policy.compiled import Policy

IDLE_KV: Final = "idle KV"
RUNNING_KV: Final = "running KV"
LEAST_SHARE: Final = 0.1
WORTH_BYTES: Final = 16 * 1024 * 1024
"""A step that was to bring less isn't judged: a worker's memory trembles by as much."""

DISTRUST_S: Final = 60.0
DISTRUST_MAX_S: Final = 3600.0


def distrusted(state: State, means: str) -> bool:
    """True while a means is left out because it changed nothing."""
    at_s = state.snapshot.at_s if state.snapshot is not None else 0.0
    return means in resting(state, at_s)


def resting(state: State, at_s: float) -> frozenset[str]:
    """The means that are left out."""
    return frozenset([name for name, one in state.distrust.items() if at_s < one.until_s])


def idle_bytes(state: State) -> int:
    """Memory that idle conversations hold and would give back."""
    return 0 if distrusted(state, IDLE_KV) else state.demand.idle_bytes


def yielding_bytes(state: State) -> int:
    """Memory that conversations hold and would give back that could wait."""
    return 0 if distrusted(state, RUNNING_KV) else state.demand.yielding_bytes


def held_kv_bytes(state: State) -> int:
    """Memory that conversations hold and would give back while no worker has them."""
    return 0 if distrusted(state, RUNNING_KV) else state.demand.running_bytes


def distrust(state: State, means: str, reason: str, at_s: float) -> State:
    """Leave a means out, twice as long as the last time."""
    last = state.distrust.get(means)
    wait_s = DISTRUST_S if last is None else min(2 * last.wait_s, DISTRUST_MAX_S)
    entry = Quarantine(at_s + wait_s, wait_s, reason)
    return replace(state, distrust={**state.distrust, means: entry})


def trusted(state: State, means: str) -> State:
    """It has brought something: the next time that it doesn't counts as the first."""
    if means not in state.distrust:
        return state
    rest = {name: one for name, one in state.distrust.items() if name != means}
    return replace(state, distrust=rest)


# ---------------------------------------------------------------- memory


def judge(state: State, policy: Policy, at_s: float) -> State:
    """After a tick: hold the last step for memory against what was measured."""
    settling = state.settling
    if settling is None or settling.judged or settling.done_s is None:
        return state
    decision = settling.decision
    if decision.direction is Direction.GIVE_WAY:
        return _judge_giving_way(_seen(state, settling), settling, at_s)
    if settling.failed:
        return state
    if decision.direction is Direction.RELIEF:
        return _judge_idle_kv(_seen(state, settling), settling, at_s)
    if decision.direction is not Direction.DOWN or decision.trigger.signal != "memory.available":
        return state
    if decision.target.variant != decision.source.variant:
        return _judge_variant(_seen(state, settling), settling, policy, at_s)
    if decision.target.context < decision.source.context:
        return _judge_context(_seen(state, settling), settling, at_s)
    return state


def _seen(state: State, settling: Settling) -> State:
    return replace(state, settling=replace(settling, judged=True))


def _available(state: State) -> float | None:
    return state.snapshot.value("memory.available") if state.snapshot is not None else None


def _judge_idle_kv(state: State, settling: Settling, at_s: float) -> State:
    trigger, now = settling.decision.trigger, _available(state)
    if trigger.value is None or now is None or trigger.threshold is None:
        return state
    expected = min(settling.idle_bytes, max(1.0, trigger.threshold - trigger.value))
    fallen = settling.idle_bytes - state.demand.idle_bytes
    if max(fallen, now - trigger.value) >= LEAST_SHARE * expected:
        return trusted(state, IDLE_KV)
    reason = "giving back the KV of idle conversations freed nothing"
    return distrust(state, IDLE_KV, reason, at_s)


def _judge_giving_way(state: State, settling: Settling, at_s: float) -> State:
    fallen = settling.running_bytes - state.demand.running_bytes
    if not settling.failed and fallen > 0:
        return trusted(state, RUNNING_KV)
    reason = settling.failed or "conversations that were to give way gave nothing back"
    return distrust(state, RUNNING_KV, reason, at_s)


def _judge_variant(state: State, settling: Settling, policy: Policy, at_s: float) -> State:
    """The variant that was stepped down to: does the worker hold less, or is more available?"""
    decision, limit, now = settling.decision, policy.memory, _available(state)
    predicted, held, before = decision.predicted, state.demand.worker_bytes, settling.held_bytes
    name = decision.target.variant
    spec = state.model.variant(name or "") if state.model is not None else None
    if predicted is None or held is None or before is None or spec is None or name is None:
        return state
    expected = before - predicted.memory_bytes
    grown = spec.kv_bytes_per_token * (state.demand.kv_tokens - settling.kv_tokens)
    fallen = before - (held - grown)
    risen = (now or 0.0) - (settling.available_bytes or 0)
    short = limit is not None and now is not None and now < limit.headroom_bytes
    if not short or expected < WORTH_BYTES or max(fallen, risen) >= LEAST_SHARE * expected:
        return state
    reason = "stepping down to it freed nothing, and memory is still short"
    return quarantined(state, name, reason, at_s)


def _judge_context(state: State, settling: Settling, at_s: float) -> State:
    """The smaller context: does the worker keep to what its conversations may hold now?"""
    predicted, held = settling.decision.predicted, state.demand.worker_bytes
    if predicted is None or held is None:
        return state
    beyond = held - predicted.reserved_bytes - predicted.doubt_bytes
    if beyond < WORTH_BYTES:
        return trusted(state, Knob.CONTEXT)
    reason = "the worker holds more than a smaller context allows"
    return distrust(state, Knob.CONTEXT, reason, at_s)


# ---------------------------------------------------------------- heat


def judge_heat(
    state: State, steps: Ladder, celsius: float | None, policy: Policy, at_s: float
) -> State:
    """After a tick: hold the means against heat that is used up against what it has brought."""
    heat = state.heat
    means = due(heat, steps, at_s)
    if means is None or celsius is None:
        return state
    tried = heat.tried[means]
    seen = {**heat.tried, means: replace(tried, judged=True)}
    state = replace(state, heat=replace(heat, tried=seen))
    brought = brought_celsius(tried, celsius, at_s)
    if brought >= LEAST_CELSIUS or not over(celsius, state.thermal, policy):
        return trusted(state, means)
    reason = f"nothing got cooler in {at_s - tried.at_s:.0f} s"
    return distrust(state, means, reason, at_s)
