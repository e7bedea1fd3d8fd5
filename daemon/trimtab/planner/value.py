"""Which variant pays best, where the policy leaves the choice.

Limits come first: only variants that may be taken now are compared. Then the shadows of the last
requests say on which of them a request earns most (`shadow`). Where latency may give, or nothing is
known of the workload yet, the most precise variant that fits is the choice, as without this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from trimtab.domain.actions import HandoverMode
from trimtab.domain.decisions import Trigger
from trimtab.domain.knobs import Knob
from trimtab.planner.assess import Assessed, Fit, pinned_knobs
from trimtab.planner.plan import mode
from trimtab.planner.requests import with_home
from trimtab.planner.state import State
from trimtab.policy.compiled import Corner, Policy

STAY_S: Final = 600.0
"""How long a change of variant is taken to last: what it costs is spread over it."""


def weigh(state: State, policy: Policy, judged: tuple[Assessed, ...], at_s: float) -> State:
    """The state with the home variant chosen among those that may be taken now."""
    if Corner.LATENCY not in policy.protect or Knob.VARIANT in pinned_knobs(state, at_s):
        if state.queue.home is None:
            return state
        return replace(state, queue=replace(state.queue, home=None))
    costs = _costs(state, policy, judged) if state.queue.shadows else {}
    queue = with_home(state.queue, allowed(state, judged), costs)
    return state if queue is state.queue else replace(state, queue=queue)


def allowed(state: State, judged: Iterable[Assessed]) -> frozenset[str]:
    """Variants with room to spare, and the loaded one while it may stay."""
    return frozenset(
        one.point.variant
        for one in judged
        if one.point.variant is not None
        and not one.reason
        and (
            one.fit is Fit.ROOMY
            or (one.point.variant == state.point.variant and one.fit <= Fit.KEPT)
        )
    )


def _costs(state: State, policy: Policy, judged: Iterable[Assessed]) -> dict[str, float]:
    """What changing to a variant costs, as a share of what is earned while it serves.

    Where both workers fit, requests go on meanwhile. Where the old one has to go first, nothing is
    earned while the new one loads.
    """
    costs: dict[str, float] = {}
    for one in judged:
        name = one.point.variant
        if name is None or name in costs or name == state.point.variant or one.reason:
            continue
        breaks = mode(state, policy, one) is HandoverMode.BREAK_BEFORE_MAKE
        costs[name] = state.load_s.get(name, 0.0) / STAY_S if breaks else 0.0
    return costs


def preferred(state: State, judged: tuple[Assessed, ...]) -> tuple[Assessed, ...]:
    """The points of the home variant; all points while there is no home."""
    home = state.queue.home
    if home is None:
        return judged
    return tuple([one for one in judged if one.point.variant == home]) or judged


def trigger(state: State, target: Assessed, held_s: float) -> Trigger | None:
    """Why the home variant is worth moving to, in words; None if another reason counts."""
    queue, name, here = state.queue, target.point.variant, state.point.variant
    if name is None or here is None or name == here or queue.home != name:
        return None
    better, worse = queue.earned(name), queue.earned(here)
    count = max([one.count for _, one in queue.shadows], default=0.0)
    text = (
        f"of the last {count:.0f} requests, each would have been worth {better:.2f} on {name} "
        f"and {worse:.2f} on {here} (quality, if in time)"
    )
    return Trigger("value", better, worse, held_s, text)
