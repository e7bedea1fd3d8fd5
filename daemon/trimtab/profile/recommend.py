"""Which variants to have for this device and policy, and why: from measurements, or on paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.planner.predict import loaded_bytes
from trimtab.policy.compiled import Policy

MIB: Final = 2**20
CONTEXT_TOKENS: Final = 2048
DISTINCT_RATIO: Final = 0.9
"""A variant that holds more than this share of a better one's memory isn't a step down."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What is advised for one variant.

    Attributes:
        variant: Its name.
        take: Whether to have it.
        here: Whether it is here already.
        memory_bytes: What it holds with a conversation of `CONTEXT_TOKENS`.
        decode_tps: Tokens a second; None if unknown.
        quality_ratio: exp(−mean KL).
        why: In words.
    """

    variant: str
    take: bool
    here: bool
    memory_bytes: int
    decode_tps: float | None
    quality_ratio: float
    why: str


def recommend(
    model: ModelSpec, policy: Policy, room_bytes: int, here: frozenset[str]
) -> tuple[Advice, ...]:
    """Advice for each variant, most precise first.

    A device needs a ladder: the best variant that fits in quiet times, and below it smaller ones
    for when memory gets scarce, down to the smallest that the policy allows. What doesn't fit, what
    the policy excludes, and what is no smaller than a better one, is left.

    Args:
        model: All variants that can be had, with their figures.
        policy: In force on the device.
        room_bytes: Memory for the model in quiet times, headroom not taken off.
        here: Names of the variants that are here already.
    """
    advice: list[Advice] = []
    kept: VariantSpec | None = None
    headroom = policy.memory.headroom_bytes if policy.memory is not None else 0
    for variant in model.variants:
        memory = memory_bytes(variant)
        why = _against(variant, memory, policy, room_bytes - headroom, kept)
        take = not why
        if take:
            why = _for(variant, policy, kept)
            kept = variant
        advice.append(
            Advice(
                variant.name,
                take,
                variant.name in here,
                memory,
                variant.decode_tps,
                variant.quality,
                why,
            )
        )
    return tuple(advice)


def memory_bytes(variant: VariantSpec) -> int:
    """A worker with one conversation."""
    tokens = min(CONTEXT_TOKENS, variant.context_length)
    return loaded_bytes(variant, {}) + tokens * variant.kv_bytes_per_token


def _against(
    variant: VariantSpec, memory: int, policy: Policy, room: int, kept: VariantSpec | None
) -> str:
    """Why not to have it; empty if nothing speaks against it."""
    allowed = policy.knobs.variants
    if allowed and variant.name not in allowed:
        return f"the policy {policy.name} doesn't use it"
    if variant.quality < policy.floor.quality_ratio:
        return (
            f"its quality {variant.quality:.2f} is under the policy's floor "
            f"of {policy.floor.quality_ratio:.2f}"
        )
    if memory > room:
        return f"it needs {memory / MIB:.0f} MiB, and {max(0, room) / MIB:.0f} MiB are left for it"
    if kept is not None and memory > DISTINCT_RATIO * memory_bytes(kept):
        faster = (variant.decode_tps or 0) > 1.1 * (kept.decode_tps or 0)
        if not faster:
            return f"it is hardly smaller than {kept.name}, and not as good"
    return ""


def _for(variant: VariantSpec, policy: Policy, kept: VariantSpec | None) -> str:
    """What it is good for."""
    parts = []
    if kept is None:
        parts.append("the best that fits in quiet times")
    else:
        saved = memory_bytes(kept) - memory_bytes(variant)
        parts.append(f"a step down from {kept.name} that frees {saved / MIB:.0f} MiB")
        if variant.decode_tps and kept.decode_tps and variant.decode_tps > kept.decode_tps:
            parts.append(f"{variant.decode_tps / kept.decode_tps:.1f} × as fast")
    tpot = policy.slo.tpot_p95_s
    if tpot is not None and variant.decode_tps and 1 / variant.decode_tps > tpot:
        parts.append(f"slower than the {1 / tpot:.0f} tokens/s that the policy wants")
    return ", ".join(parts)
