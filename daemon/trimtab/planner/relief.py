"""Relief that doesn't come: an actuator that changes nothing is left out, and the next one is used.

Giving back the KV of idle conversations comes first when memory is short. If it was done and
neither the memory that they hold has fallen nor the memory that is available has risen, it would be
tried again on every tick, and nothing else would be. So it is distrusted for a while, each time
twice as long, and idle KV no longer counts as memory that could be had.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.decisions import Direction
from trimtab.planner.state import Quarantine, State

IDLE_KV: Final = "idle KV"
LEAST_SHARE: Final = 0.1
DISTRUST_S: Final = 60.0
DISTRUST_MAX_S: Final = 3600.0


def distrusted(state: State, actuator: str) -> bool:
    """True while an actuator is left out because it changed nothing."""
    entry = state.distrust.get(actuator)
    at_s = state.snapshot.at_s if state.snapshot is not None else 0.0
    return entry is not None and at_s < entry.until_s


def idle_bytes(state: State) -> int:
    """Memory that idle conversations hold and would give back."""
    return 0 if distrusted(state, IDLE_KV) else state.demand.idle_bytes


def judge(state: State, at_s: float) -> State:
    """After a tick: hold the last relief against what was measured."""
    settling = state.settling
    if (
        settling is None
        or settling.judged
        or settling.done_s is None
        or settling.failed
        or settling.decision.direction is not Direction.RELIEF
    ):
        return state
    state = replace(state, settling=replace(settling, judged=True))
    trigger = settling.decision.trigger
    before, now = trigger.value, None
    if state.snapshot is not None:
        now = state.snapshot.value("memory.available")
    if before is None or now is None or trigger.threshold is None:
        return state
    expected = min(settling.idle_bytes, max(1.0, trigger.threshold - before))
    fallen = settling.idle_bytes - state.demand.idle_bytes
    if max(fallen, now - before) >= LEAST_SHARE * expected:
        return state
    last = state.distrust.get(IDLE_KV)
    wait_s = DISTRUST_S if last is None else min(2 * last.wait_s, DISTRUST_MAX_S)
    reason = "giving back the KV of idle conversations freed nothing"
    entry = Quarantine(at_s + wait_s, wait_s, reason)
    return replace(state, distrust={**state.distrust, IDLE_KV: entry})
