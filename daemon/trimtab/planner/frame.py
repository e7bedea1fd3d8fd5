"""What of the judgement of all points stays the same from tick to tick.

Which points there are, what each is worth and why it is out hang on the model, the policy and its
bounds, on pins, heat and quarantines: they change a few times an hour. Memory changes on each tick
(`assess`). So the frame is kept for as long as what it was made from is the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from trimtab.domain.knobs import Knob, KvPlacement, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.planner.heat import ladder, restrict
from trimtab.planner.points import candidates, draft_of, is_smaller, speed_order
from trimtab.planner.predict import Basis, Facts, basis
from trimtab.policy.compiled import Corner, KnobBounds, Policy

KEPT_FRAMES: Final = 4
"""A policy on trial and the page of all points have their own."""


class Place(NamedTuple):
    """One point as far as memory has no say.

    Attributes:
        point: The point.
        rank: Smaller is better, among points that may be taken.
        reason: Why it is out; empty if it is in.
    """

    point: OperatingPoint
    rank: tuple[float, ...]
    reason: str


class Line(NamedTuple):
    """All contexts of a variant and a mode of speculation, the largest first.

    Attributes:
        variant: Its name.
        draft: The variant that drafts in this mode; None where none does.
        basis: What their predictions have in common.
        places: The points.
    """

    variant: str | None
    draft: str | None
    basis: Basis
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a frame is made from.

    Attributes:
        model: Its variants.
        policy: In force.
        bounds: The policy's, narrowed by rules in force.
        threads: Engine threads that the configuration asks for.
        heat_level: How far heat has pushed the point down.
        resting: Means that are left out, since they brought nothing.
        kv_placement: Where KV goes now.
        pinned: Knobs that a person fixed.
        quarantine: Variants that are out, and why.
        drafts_out: Variants that are out as drafts, and why.
        facts: What was measured on this device.
        seen: Observed ÷ known speed, by variant, in steps: what is seen wavers.
    """

    model: ModelSpec
    policy: Policy
    bounds: KnobBounds
    threads: int
    heat_level: int
    resting: frozenset[str]
    kv_placement: KvPlacement
    pinned: Mapping[Knob, str | int | float]
    quarantine: Mapping[str, str]
    drafts_out: Mapping[str, str]
    facts: Facts
    seen: Mapping[str, float]


_kept: list[tuple[Inputs, tuple[Line, ...]]] = []


def frame(given: Inputs) -> tuple[Line, ...]:
    """The lines of all points, most precise variant first; made anew only if an input changed."""
    for known, lines in _kept:
        if known == given:
            return lines
    made = _made(given)
    _kept.insert(0, (given, made))
    del _kept[KEPT_FRAMES:]
    return made


def _made(given: Inputs) -> tuple[Line, ...]:
    model, policy, pinned = given.model, given.policy, given.pinned
    steps = ladder(model, given.bounds, given.threads)
    left = restrict(given.heat_level, steps, given.resting)
    points = candidates(
        model,
        given.bounds,
        wanted_threads=left.threads,
        pace_ratio=left.pace_ratio,
        kv_placement=given.kv_placement,
        pinned=pinned,
        drafts_out=given.drafts_out,
    )
    least = 0 if Knob.CONTEXT in pinned else min(policy.floor.context, model.context_length)
    too_small = f"its context is under the policy's floor of {policy.floor.context} tokens"
    by_line: dict[tuple[str | None, str], list[OperatingPoint]] = {}
    for point in points:
        by_line.setdefault((point.variant, point.speculation), []).append(point)
    lines = []
    for (variant, speculation), of_line in by_line.items():
        known = basis(of_line[0], model, given.facts)
        draft = draft_of(speculation)
        out = _variant_out(variant or "", known, given, left.too_hot) or _draft_out(
            draft, variant, given
        )
        missed = late(known, policy, left.pace_ratio * given.seen.get(variant or "", 1.0))
        order = missed, speed_order(speculation, pays=known.drafts_pay)
        places = tuple(
            Place(
                point,
                rank(point, known.quality_ratio, order, policy, model.context_length),
                out or (too_small if point.context < least else ""),
            )
            for point in of_line
        )
        lines.append(Line(variant, draft, known, places))
    return tuple(lines)


def rank(
    point: OperatingPoint,
    quality_ratio: float,
    order: tuple[int, int],
    policy: Policy,
    context_length: int,
) -> tuple[float, ...]:
    """The order of points: what the policy gives up comes last.

    Missed latency objectives first, then quality before context. Where accuracy is what may give,
    a context that is short goes before quality: less than half of what policy and model reach. A
    whole variant is not given for the last half of the context.

    Args:
        point: The point.
        quality_ratio: Its variant's.
        order: How many latency objectives it would miss, and its place by speculation.
        policy: In force.
        context_length: Of the model.
    """
    missed, speed = order
    quality, context = -quality_ratio, -point.context
    if policy.sacrifice is not Corner.ACCURACY:
        return (missed, quality, context, -point.pace_ratio, speed)
    enough = min(policy.knobs.context_max, context_length) / 2
    short = math.ceil(max(0.0, math.log2(enough / point.context))) if point.context else 0
    return (missed, short, quality, context, -point.pace_ratio, speed)


def late(known: Basis, policy: Policy, speed_ratio: float) -> int:
    """How many of the policy's latency objectives are predicted to be missed, if it protects it.

    Args:
        known: What is known of the points' speeds.
        policy: In force.
        speed_ratio: What pace and observation make of them.
    """
    speed, slo = known.speed, policy.slo
    if speed is None or Corner.LATENCY not in policy.protect:
        return 0
    missed = slo.tpot_p95_s is not None and speed.decode_s / speed_ratio > slo.tpot_p95_s
    waits = slo.ttft_p95_s is not None and speed.first_s / speed_ratio > slo.ttft_p95_s
    return missed + waits


def _variant_out(name: str, known: Basis, given: Inputs, too_hot: frozenset[str]) -> str:
    """Why all points of a variant are out whatever the memory, in words; empty if they aren't."""
    if given.model.variant(name) is None:
        return f"the model has no variant {name}"
    if (reason := given.quarantine.get(name)) is not None:
        return f"in quarantine: {reason}"
    if Knob.VARIANT in given.pinned:
        return ""
    if known.quality_ratio < given.policy.floor.quality_ratio:
        return (
            f"its quality {known.quality_ratio:.2f} is under the policy's floor "
            f"of {given.policy.floor.quality_ratio:.2f}"
        )
    return "too hot for it" if name in too_hot else ""


def _draft_out(draft: str | None, variant: str | None, given: Inputs) -> str:
    """Why nothing can be drafted by that variant now, in words; empty if it can."""
    if draft is None:
        return ""
    if (reason := given.drafts_out.get(draft)) is not None:
        return f"its draft {draft} is left out for now: {reason}"
    if not is_smaller(given.model, draft, variant or ""):
        return f"its draft {draft} is no smaller than {variant} itself"
    return ""
