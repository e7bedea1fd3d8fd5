"""Which point to take: the best that fits, the best that could be stepped up to, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trimtab.domain.decisions import Rejected
from trimtab.domain.knobs import OperatingPoint
from trimtab.planner.assess import Assessed, Fit, mib
from trimtab.planner.points import draft_of
from trimtab.policy.compiled import Policy


def best(judged: Iterable[Assessed], worst_fit: Fit) -> Assessed | None:
    """The best point that may be taken with a fit at least this good; None if there is none."""
    allowed = [one for one in judged if not one.reason and one.fit <= worst_fit]
    return min(allowed, key=lambda one: one.rank, default=None)


def safest(judged: Iterable[Assessed]) -> Assessed | None:
    """The best point that fits: a whole conversation if possible, else what is cached now."""
    points = tuple(judged)
    return best(points, Fit.KEPT) or best(points, Fit.NOW)


def find(judged: Iterable[Assessed], point: OperatingPoint) -> Assessed | None:
    """The judgement of one point; None if it is no candidate at all."""
    # Whole points are compared only within the variant: there may be hundreds.
    return next(
        (one for one in judged if one.point.variant == point.variant and one.point == point), None
    )


def is_out(one: Assessed) -> bool:
    """True if a point can't be taken now; `why_out` says why."""
    return bool(one.reason) or one.fit > Fit.KEPT


def why_out(one: Assessed, policy: Policy) -> str:
    """Why a point can't be taken now, in words; empty if it can."""
    if one.reason:
        return one.reason
    limit, available = policy.memory, one.predicted.available_bytes
    if limit is None or available is None:
        return ""
    if one.fit is Fit.OVER:
        return (
            f"it would leave {mib(available)}, under the headroom of "
            f"{mib(limit.headroom_bytes)}; it needs {mib(one.predicted.memory_bytes)}"
        )
    if one.fit is Fit.NOW:
        grown = available - one.predicted.reserved_bytes + one.predicted.memory_bytes
        doubt = one.predicted.doubt_bytes
        if grown - doubt >= limit.headroom_bytes:
            return "memory is falling too fast for it"
        if grown >= limit.headroom_bytes:
            return (
                f"it may need {mib(doubt)} more than predicted, and would leave {mib(grown)}, "
                f"too close to the headroom of {mib(limit.headroom_bytes)}"
            )
        return (
            f"a conversation of {one.point.context} tokens would leave {mib(grown)}, "
            f"under the headroom of {mib(limit.headroom_bytes)}"
        )
    return ""


def why_lost(one: Assessed, winner: Assessed, policy: Policy) -> str:
    """Why a point was not chosen though another was."""
    if out := why_out(one, policy):
        return out
    if one.fit is Fit.KEPT and winner.fit is Fit.ROOMY and policy.memory is not None:
        return f"it would not keep {mib(policy.memory.leave_bytes)} available"
    if one.rank[0] > winner.rank[0]:
        return "it is predicted to miss a latency objective"
    ours, theirs = one.predicted.quality_ratio, winner.predicted.quality_ratio
    if ours < theirs:
        digits = 2 if round(ours, 2) != round(theirs, 2) else 4
        return f"its quality is {ours:.{digits}f} against {theirs:.{digits}f}"
    if one.point.context < winner.point.context:
        return f"its context is smaller ({one.point.context} tokens)"
    if not one.basis.drafts_pay:
        draft = draft_of(one.point.speculation)
        return f"its draft {draft} is expected to gain nothing over n-grams, and takes memory"
    if one.rank > winner.rank:
        return f"it is the same with speculation {one.point.speculation}"
    return "a step up to it has to wait"


def runner_up(
    judged: Sequence[Assessed], winner: Assessed, source: OperatingPoint, policy: Policy
) -> Rejected | None:
    """The best other point, and why it lost: one that could have been taken, if there is one."""
    others = [one for one in judged if one.point != winner.point and one.point != source]
    best_other = min(
        others,
        key=lambda one: (is_out(one), one.point.variant == winner.point.variant, one.rank),
        default=None,
    )
    if best_other is None:
        return None
    return Rejected(best_other.point, why_lost(best_other, winner, policy))


def exclusions(judged: Iterable[Assessed], policy: Policy) -> tuple[Rejected, ...]:
    """For each variant that can't be taken at all, its most modest point and the reason."""
    by_variant: dict[str | None, list[Assessed]] = {}
    for one in judged:
        by_variant.setdefault(one.point.variant, []).append(one)
    return tuple(
        Rejected(points[-1].point, why_out(points[-1], policy))
        for points in by_variant.values()
        if all(is_out(one) for one in points)
    )


def unused_drafts(
    judged: Iterable[Assessed], winner: Assessed, policy: Policy
) -> tuple[Rejected, ...]:
    """For each draft that the winner could have and hasn't, why: that point with its draft."""
    wanted = winner.point
    return tuple(
        Rejected(one.point, why_lost(one, winner, policy))
        for one in judged
        if draft_of(one.point.speculation) not in (None, draft_of(wanted.speculation))
        and replace(one.point, speculation=wanted.speculation) == wanted
    )
