"""What each policy would take on a paper device: asked of the real planner, with a paper model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.readings import Reading, Snapshot
from trimtab.errors import PolicyError
from trimtab.planner.assess import Assessed, Fit, assess
from trimtab.planner.choose import safest
from trimtab.planner.state import State
from trimtab.policy.compile import device_variants
from trimtab.policy.compiled import Corner, Policy
from trimtab.policy.load import load_policy
from trimtab.profile.paper import PROMPT_TOKENS, PaperPoint
from trimtab.profile.shape import Shape
from trimtab.profile.targets import Target

BUILT: Final = ("fp32", "int8", "int4_mixed", "int4")
"""Precisions of which trimtab builds variants."""


@dataclass(frozen=True, slots=True)
class Pick:
    """What one policy takes.

    Attributes:
        policy: Its name.
        protects: The corners that it protects, most important first.
        point: The operating point in words.
        variant: Its variant; empty if the model would be parked.
        gives: What is given up for it.
    """

    policy: str
    protects: tuple[str, ...]
    point: str
    variant: str
    gives: str


def paper_model(shape: Shape, points: tuple[PaperPoint, ...], kv_type: str) -> ModelSpec:
    """The variants that trimtab would build, with what paper says of them."""
    context = shape.context_length or max(point.context for point in points)
    variants = []
    for name in BUILT:
        point = next((one for one in points if one.precision == name), None)
        if point is not None:
            variants.append(_variant(name, shape, point, context, kv_type))
    return ModelSpec(
        model_id=shape.name,
        display_name=shape.name,
        architecture=shape.architecture,
        context_length=context,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        tokenizer_hash="",
        has_chat_template=True,
        variants=tuple(variants),
    )


def picks(model: ModelSpec, target: Target, folder: Path, names: tuple[str, ...]) -> list[Pick]:
    """What each of the policies takes; one that doesn't load is left out with its reason."""
    found = []
    for name in names:
        try:
            policy = load_policy(name, folder, device_variants(model)).require()
        except PolicyError as error:
            found.append(Pick(name, (), "doesn't load", "", error.message.splitlines()[0]))
            continue
        found.append(pick(model, target, policy))
    return found


def pick(model: ModelSpec, target: Target, policy: Policy) -> Pick:
    """What the planner takes with this much memory free and nothing loaded."""
    available = Reading("memory.available", float(target.usable_bytes), 0.0)
    state = State(model=model, snapshot=Snapshot(0.0, {available.signal: available}))
    judged = assess(state, policy, policy.knobs, model, 0.0)
    best = safest(judged)
    protects = tuple(corner.value for corner in policy.protect)
    if best is None:
        why = next((one.reason for one in judged if one.reason), "nothing fits in memory")
        return Pick(policy.name, protects, "parked", "", why)
    return Pick(
        policy.name,
        protects,
        best.point.describe(),
        best.point.variant or "",
        _gives(best, policy, model),
    )


def _gives(best: Assessed, policy: Policy, model: ModelSpec) -> str:
    """What the point costs, and whether the policy's latency objectives are met.

    A device whose computing speed isn't known says nothing of the first token.
    """
    predicted = best.predicted
    parts = []
    if best.fit is Fit.NOW:
        parts.append("memory: a conversation that fills its context doesn't fit")
    if predicted.quality_ratio < 0.995:
        parts.append(f"accuracy: quality {predicted.quality_ratio:.2f}")
    late = []
    tpot, ttft = policy.slo.tpot_p95_s, policy.slo.ttft_p95_s
    if tpot is not None and predicted.decode_tps and 1 / predicted.decode_tps > tpot:
        late.append(f"{predicted.decode_tps:.1f} tok/s ({1 / tpot:.0f} wanted)")
    variant = model.variant(best.point.variant or "")
    told = variant is not None and variant.prefill_tps is not None
    if told and ttft is not None and predicted.ttft_s is not None and predicted.ttft_s > ttft:
        late.append(f"1st token {predicted.ttft_s:.1f} s ({ttft:g} s wanted)")
    if late:
        parts.append(f"latency: {', '.join(late)}")
    if best.point.context < policy.knobs.context_max:
        parts.append(f"context: {best.point.context} of {policy.knobs.context_max} tokens")
    if not parts:
        return f"nothing ({Corner(policy.sacrifice).value} could)"
    return "; ".join(parts)


def _variant(name: str, shape: Shape, point: PaperPoint, context: int, kv_type: str) -> VariantSpec:
    weights = point.weights_bytes + point.scales_bytes
    prefill = None
    if point.first_token_s is not None:
        prefill_s = max(1e-6, point.first_token_s - 1 / point.decode_tps)
        prefill = min(PROMPT_TOKENS, point.context) / prefill_s
    return VariantSpec(
        name=name,
        precision=name.partition("_")[0],
        folder="",
        weights_bytes=weights,
        disk_bytes=weights,
        kv_bytes_per_token=shape.kv_bytes_per_token(kv_type),
        quality=point.quality_ratio,
        fingerprint=shape.name,
        context_length=context,
        kv_dtype=kv_type,
        decode_tps=point.decode_tps,
        prefill_tps=prefill,
    )
