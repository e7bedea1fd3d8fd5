"""Every operating point with its prediction, and whether it may be taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from trimtab.domain.decisions import Prediction
from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.planner.foresight import needed_s, trend_bytes_s
from trimtab.planner.heat import restrict
from trimtab.planner.points import candidates, draft_of, speed_order
from trimtab.planner.predict import Basis, Situation, basis, predict_from
from trimtab.planner.relief import idle_bytes
from trimtab.planner.resident import estimates
from trimtab.planner.state import State
from trimtab.policy.compiled import Corner, KnobBounds, Policy

MIB: Final = 1024 * 1024


class Fit(IntEnum):
    """How a point stands to the memory limit, best first."""

    ROOMY = 0  # a whole conversation fits, and the leave threshold is kept
    KEPT = 1  # a whole conversation fits, and the headroom is kept
    NOW = 2  # the headroom is kept with what is cached now, not with a whole conversation
    OVER = 3  # it isn't


class Assessed(NamedTuple):
    """One point, judged. A tuple, since there are hundreds on each tick.

    Attributes:
        point: The point.
        predicted: What it would hold and do.
        fit: How it stands to the memory limit.
        rank: Smaller is better, among points that may be taken.
        reason: Why it is out; empty if it is in as far as anything but memory goes.
    """

    point: OperatingPoint
    predicted: Prediction
    fit: Fit
    rank: tuple[float, ...]
    reason: str


def mib(size_bytes: float) -> str:
    """A size for people."""
    return f"{size_bytes / MIB:.0f} MiB"


def fit(predicted: Prediction, policy: Policy, margin_bytes: float) -> Fit:
    """Which side of the memory limits a point falls on.

    ``margin_bytes`` is what others will take until the step is done.
    """
    limit = policy.memory
    if limit is None or predicted.available_bytes is None:
        return Fit.ROOMY if limit is None else Fit.KEPT
    now = predicted.available_bytes
    worst = now - (predicted.reserved_bytes - predicted.memory_bytes)
    if worst - margin_bytes >= limit.leave_bytes:
        return Fit.ROOMY
    if worst - margin_bytes >= limit.headroom_bytes:
        return Fit.KEPT
    return Fit.NOW if now >= limit.headroom_bytes else Fit.OVER


def rank(
    point: OperatingPoint,
    quality_ratio: float,
    missed: int,
    policy: Policy,
    speed: int,
    context_length: int,
) -> tuple[float, ...]:
    """The order of points: what the policy gives up comes last.

    Missed latency objectives first, then quality before context. Where accuracy is what may give,
    a context that is short goes before quality: less than half of what policy and model reach. A
    whole variant is not given for the last half of the context.
    """
    quality, context = -quality_ratio, -point.context
    if policy.sacrifice is not Corner.ACCURACY:
        return (missed, quality, context, -point.pace_ratio, speed)
    enough = min(policy.knobs.context_max, context_length) / 2
    short = math.ceil(max(0.0, math.log2(enough / point.context))) if point.context else 0
    return (missed, short, quality, context, -point.pace_ratio, speed)


def late(predicted: Prediction, policy: Policy) -> int:
    """How many of the policy's latency objectives are predicted to be missed, if it protects it."""
    if Corner.LATENCY not in policy.protect:
        return 0
    missed = 0
    slo = policy.slo
    tpot_s, ttft_s = slo.tpot_p95_s, slo.ttft_p95_s
    if tpot_s is not None and predicted.decode_tps:
        missed += 1 / predicted.decode_tps > tpot_s
    if ttft_s is not None and predicted.ttft_s is not None:
        missed += predicted.ttft_s > ttft_s
    return missed


def situation(state: State) -> Situation:
    """What predictions start from, at the last tick."""
    available = state.snapshot.value("memory.available") if state.snapshot is not None else None
    return Situation(
        available_bytes=None if available is None else int(available) + idle_bytes(state),
        held_bytes=state.demand.worker_bytes or 0,
        kv_tokens=state.demand.kv_tokens,
        resident=state.resident if state.model is None else estimates(state.model, state.resident),
    )


def assess(
    state: State, policy: Policy, bounds: KnobBounds, model: ModelSpec, at_s: float
) -> tuple[Assessed, ...]:
    """All points of the model, judged for now."""
    pinned = pinned_knobs(state, at_s)
    pace_ratio, too_hot = restrict(state.heat, model, bounds)
    points = candidates(
        model,
        bounds,
        wanted_threads=state.threads,
        pace_ratio=pace_ratio,
        kv_placement=state.point.kv_placement,
        pinned=pinned,
    )
    here = situation(state)
    horizon_s = needed_s(max(state.load_s.values(), default=None))
    margin = state.fill_bytes_s * horizon_s
    own_margin = trend_bytes_s(state.falls_bytes_s) * horizon_s
    least = 0 if Knob.CONTEXT in pinned else min(policy.floor.context, model.context_length)
    too_small = f"its context is under the policy's floor of {policy.floor.context} tokens"
    lines: dict[tuple[str | None, str], _Line] = {}
    done: dict[tuple[str | None, int, int], tuple[Prediction, Fit]] = {}
    judged = []
    for point in points:
        variant, context = point.variant, point.context
        line = lines.get((variant, point.speculation))
        if line is None:
            known = basis(variant, draft_of(point.speculation), model, here)
            out = _variant_out(variant or "", known, state, policy, model, pinned, too_hot, at_s)
            order = speed_order(point.speculation)
            missed = late(predict_from(known, context, point.pace_ratio, here), policy)
            line = lines[variant, point.speculation] = _Line(known, out, missed, order)
        key = (variant, line.basis.loaded_bytes, context)
        if key not in done:
            predicted = predict_from(line.basis, context, point.pace_ratio, here)
            ahead = own_margin if variant == state.point.variant else margin
            done[key] = predicted, fit(predicted, policy, ahead)
        predicted, fits = done[key]
        judged.append(
            Assessed(
                point,
                predicted,
                fits,
                rank(
                    point,
                    predicted.quality_ratio,
                    line.late,
                    policy,
                    line.speed_order,
                    model.context_length,
                ),
                line.out or (too_small if context < least else ""),
            )
        )
    return tuple(judged)


class _Line(NamedTuple):
    """What all contexts of a variant and a mode of speculation have in common."""

    basis: Basis
    out: str
    late: int
    speed_order: int


def pinned_knobs(state: State, at_s: float) -> Mapping[Knob, str | int | float]:
    """What is pinned at this time."""
    pin = state.pin
    if pin is None or (pin.until_s is not None and at_s >= pin.until_s):
        return {}
    return pin.knobs


def _variant_out(
    name: str,
    known: Basis,
    state: State,
    policy: Policy,
    model: ModelSpec,
    pinned: Mapping[Knob, str | int | float],
    too_hot: frozenset[str],
    at_s: float,
) -> str:
    """Why all points of a variant are out whatever the memory, in words; empty if they aren't."""
    if model.variant(name) is None:
        return f"the model has no variant {name}"
    quarantine = state.quarantine.get(name)
    if quarantine is not None and at_s < quarantine.until_s:
        return f"in quarantine: {quarantine.reason}"
    if Knob.VARIANT in pinned:
        return ""
    if known.quality_ratio < policy.floor.quality_ratio:
        return (
            f"its quality {known.quality_ratio:.2f} is under the policy's floor "
            f"of {policy.floor.quality_ratio:.2f}"
        )
    return "too hot for it" if name in too_hot else ""
