"""Where KV goes: idle conversations' early, since that is cheap; running ones' as the last rungs.

Of those, disk comes first where the policy has it. Then conversations wait for others to end: their
KV is given back, and computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from trimtab.domain.decisions import Direction, Trigger
from trimtab.domain.knobs import KvPlacement
from trimtab.planner.assess import Assessed, mib
from trimtab.planner.plan import Move
from trimtab.planner.relief import held_kv_bytes, idle_bytes, yielding_bytes
from trimtab.planner.state import State
from trimtab.policy.combine import combine
from trimtab.policy.compiled import Policy

MEMORY: Final = "memory.available"


def place_kv(state: State, policy: Policy, current: Assessed, at_s: float) -> Move | None:
    """Idle conversations go to disk while memory is short of the leave threshold, and come back.

    A cheap knob: it is turned before memory is so short that they would be dropped. Running ones
    come back first, once there is room for what they hold as well.
    """
    limit, point = policy.memory, state.point
    available = state.snapshot.value(MEMORY) if state.snapshot is not None else None
    if limit is None or available is None:
        return None
    text = f"{mib(available)} of memory are available, {{}} {mib(limit.leave_bytes)}"
    in_memory = point.kv_placement is KvPlacement.MEMORY
    if in_memory and available < limit.leave_bytes and idle_bytes(state):
        wanted, direction, side = KvPlacement.DISK, Direction.DOWN, "under"
    elif not in_memory and available >= limit.leave_bytes + _home_bytes(state, current):
        if at_s - state.changed_s < max(policy.stability.dwell_s, state.up_wait_s):
            return None
        wanted, direction, side = _back(state, policy), Direction.UP, "well over"
    else:
        return None
    if wanted not in _allowed(state, policy) or wanted is point.kv_placement:
        return None
    trigger = Trigger(MEMORY, available, limit.leave_bytes, text=text.format(side))
    return Move(replace(point, kv_placement=wanted), None, trigger, direction)


def _home_bytes(state: State, current: Assessed) -> int:
    """What must be free beyond the leave threshold for KV to go back to memory.

    What runs on disk, which is copied, and what of that the disk hasn't taken, which isn't free
    yet. KV of ended conversations stays on disk until its next turn. So that the next one that
    ends doesn't lead back to disk at once, one that fills its whole context must have room, too.
    """
    predicted, demand = current.predicted, state.demand
    conversation = predicted.reserved_bytes - predicted.memory_bytes
    return conversation + demand.filed_bytes + demand.unwritten_bytes


def last_rung(
    state: State, policy: Policy, judged: Iterable[Assessed], trigger: Trigger
) -> Move | None:
    """Before everything is parked: running conversations' KV goes to disk.

    Only if some point would fit then: it is taken next, unless it is the one in force.
    """
    limit, held_bytes = policy.memory, state.demand.running_bytes
    if limit is None or not held_bytes or state.point.kv_placement is KvPlacement.DISK_ALL:
        return None
    most = _most_left(judged)
    helps = most is not None and most + held_bytes >= limit.headroom_bytes
    if not helps or KvPlacement.DISK_ALL not in _allowed(state, policy):
        return None
    text = (
        f"{trigger.text}; no variant fits, and running conversations hold {mib(held_bytes)} of it"
    )
    target = replace(state.point, kv_placement=KvPlacement.DISK_ALL)
    return Move(target, None, replace(trigger, text=text), Direction.DOWN)


def give_way(
    state: State, policy: Policy, judged: Iterable[Assessed], trigger: Trigger
) -> Move | None:
    """Before everything is parked, or stays so: conversations that can wait give their KV back.

    Only if some point would fit then, with which the others go on: the one for which the least has
    to be given back.
    """
    limit, could_bytes = policy.memory, yielding_bytes(state)
    if limit is None or not could_bytes or (most := _most_left(judged)) is None:
        return None
    if most >= limit.headroom_bytes or most + could_bytes < limit.headroom_bytes:
        return None
    text = f"{trigger.text}; no variant fits, and {_could_wait(could_bytes)}"
    wanted = min(could_bytes, limit.leave_bytes - most)
    return _gives_way(state, replace(trigger, text=text), wanted)


def safe_while_parked(state: State, policy: Policy) -> Move | None:
    """Nothing is loaded, and memory is short all the same: what is held gives its KV back."""
    limit, could_bytes = policy.memory, held_kv_bytes(state)
    available = state.snapshot.value(MEMORY) if state.snapshot is not None else None
    if limit is None or available is None or not could_bytes or available >= limit.headroom_bytes:
        return None
    text = (
        f"{mib(available)} of memory are available while nothing is loaded, under the limit of "
        f"{mib(limit.headroom_bytes)}, and conversations that are held have {mib(could_bytes)}"
    )
    trigger = Trigger(MEMORY, available, limit.headroom_bytes, text=text)
    return _gives_way(state, trigger, min(could_bytes, int(limit.leave_bytes - available)))


def _most_left(judged: Iterable[Assessed]) -> int | None:
    """What would be available at the point that leaves most; None if none may be taken."""
    left = (one.predicted.available_bytes for one in judged if not one.reason)
    return max((free for free in left if free is not None), default=None)


def _could_wait(size_bytes: int) -> str:
    return f"conversations that can wait hold {mib(size_bytes)}"


def _gives_way(state: State, trigger: Trigger, wanted_bytes: int) -> Move:
    return Move(state.point, None, trigger, Direction.GIVE_WAY, give_way_bytes=wanted_bytes)


def _back(state: State, policy: Policy) -> KvPlacement:
    """One rung at a time, where the policy has it."""
    running = state.point.kv_placement is KvPlacement.DISK_ALL
    if running and KvPlacement.DISK in _allowed(state, policy):
        return KvPlacement.DISK
    return KvPlacement.MEMORY


def _allowed(state: State, policy: Policy) -> tuple[KvPlacement, ...]:
    return combine(state.rules.verdicts, policy.knobs).knobs.kv_placement
