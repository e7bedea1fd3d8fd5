"""Whether everything is at rest, so that the next full look may come later than usual.

Nothing is lost by it: whatever happens (a request, an order, a worker's death) is told to the core
at once, and the available memory goes on being looked at between two full looks.
"""

from __future__ import annotations

from typing import Final

from trimtab.planner.state import State
from trimtab.policy.compiled import Policy

COOL_CELSIUS: Final = 10.0
"""So far below its limit the temperature can't reach it before the next look, with no work done."""

COUNTING_S: Final = 60.0
"""So long after a rule's test began to hold, another few seconds no longer matter to its `for`."""

TREND_S: Final = 120.0
"""Memory that would last this long at the rate at which it goes isn't being taken away."""


def calm(state: State, policy: Policy) -> bool:
    """True if no request is there, nothing is under way or awaited, and no limit is near."""
    demand = state.demand
    at_work = demand.running or demand.waiting or demand.held or state.wanted
    return not (
        at_work
        or _unfinished(state)
        or _counting(state)
        or _warm(state, policy)
        or _filling(state, policy)
    )


def _unfinished(state: State) -> bool:
    """True if an action runs, its effect is to be measured, or another point is to be taken."""
    return bool(
        state.running is not None
        or state.waiting_for
        or state.settling is not None
        or state.beside
        or state.better is not None
        or state.lost_point is not None
    )


def _counting(state: State) -> bool:
    """True if a rule may be about to come in force or to be left: a test has begun to hold."""
    if state.snapshot is None:
        return True
    lately_s = state.snapshot.at_s - COUNTING_S
    return any(
        leaf.since_s is not None and leaf.since_s > lately_s
        for rule in state.rules.states
        for leaf in (rule.leave if rule.verdict.in_force else rule.when)
    )


def _warm(state: State, policy: Policy) -> bool:
    limit, snapshot = policy.temperature, state.snapshot
    if limit is None or snapshot is None:
        return False
    celsius = snapshot.value("temperature.max")
    hot = celsius is not None and celsius > limit.enter_celsius - COOL_CELSIUS
    return hot or state.heat.level > 0


def _filling(state: State, policy: Policy) -> bool:
    limit, snapshot = policy.memory, state.snapshot
    if limit is None or snapshot is None or state.fill_bytes_s <= 0:
        return False
    available = snapshot.value("memory.available")
    return available is None or available - limit.headroom_bytes < state.fill_bytes_s * TREND_S
