"""Operating points on paper: arithmetic on a shape and a target, nothing measured, nothing loaded.

- total = weights with their scales + KV cache of one conversation + draft + the worker's own;
- tokens/s = bandwidth ÷ (weights at work for a token + KV cache read for it);
- first token = 2 operations × weights at work × prompt ÷ operations a second, and one token more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.profile.shape import KV_BITS, Shape, decode_tps, weight_bytes
from trimtab.profile.targets import BITS, Target

WORKER_BYTES: Final = 100 * 1024 * 1024
"""The worker beside its weights: interpreter, engine, arena."""

GROUP: Final = 128
"""Quantized weights that share a scale of two bytes; groups of 32 would take four times as much."""

PROMPT_TOKENS: Final = 200
CONTEXTS: Final = (2048, 8192, 32768)
PRECISIONS: Final = ("fp32", "fp16", "int8", "int4_mixed", "int4", "int3")

ACCEPTANCE: Final = 0.6
DRAFTED: Final = 3
PASS_SLOPE: Final = 0.1  # what each further token adds to a pass that is bound by memory
NGRAM_GAIN: Final = (1.0, 1.7)  # free text, code: see docs/triangle.md

_REFERENCE_PARAMETERS: Final = 134.5e6
_REFERENCE_KL: Final[dict[str, float]] = {
    "fp32": 0.0,
    "fp16": 0.0001,
    "int8": 0.0043,
    "int4_mixed": 0.173,
    "int4": 0.363,
    "int3": 1.2,
    "int2": 3.0,
}
"""Mean KL to fp32, measured on SmolLM2-135M; int3 and int2 are assumed, not measured."""

_LOSS: Final[dict[str, str]] = {
    "fp32": "none",
    "fp16": "none to speak of",
    "int8": "small: 1–3 points on common benchmarks",
    "int4_mixed": "some: 2–5 points",
    "int4": "some: 3–8 points; code and small models more",
    "int3": "steep: over 10 points",
    "int2": "steep: mostly unusable",
}
"""Accuracy classes, as in the design's table of means."""


@dataclass(frozen=True, slots=True)
class PaperPoint:
    """One operating point.

    Attributes:
        precision: Of the weights.
        context: Tokens of the conversation.
        kv_type: Type of the KV cache.
        weights_bytes: Bits × parameters.
        scales_bytes: What quantization adds.
        kv_bytes: The whole context's.
        draft_bytes: Weights of the draft model; 0 without one.
        total_bytes: All of it, with the worker's own.
        decode_tps: With half the context in the cache.
        speculative_tps: With drafts, at least and at most.
        first_token_s: After a prompt of `PROMPT_TOKENS`; None if the target's compute is unknown.
        quality_ratio: exp(−assumed mean KL).
        accuracy: Its class in words.
        fits: Whether the target's usable memory holds it.
    """

    precision: str
    context: int
    kv_type: str
    weights_bytes: int
    scales_bytes: int
    kv_bytes: int
    draft_bytes: int
    total_bytes: int
    decode_tps: float
    speculative_tps: tuple[float, float]
    first_token_s: float | None
    quality_ratio: float
    accuracy: str
    fits: bool


def contexts_of(shape: Shape, wanted: Sequence[int] = ()) -> tuple[int, ...]:
    """The contexts to look at: those wanted, else a few within what the model was made for."""
    if wanted:
        return tuple(wanted)
    most = shape.context_length or CONTEXTS[-1]
    return tuple(context for context in CONTEXTS if context <= most) or (most,)


def paper_point(
    shape: Shape,
    target: Target,
    precision: str,
    context: int,
    kv_type: str,
    draft: Shape | None = None,
) -> PaperPoint:
    """One point.

    Args:
        shape: The model.
        target: The device.
        precision: A name in `BITS`.
        context: Tokens of the conversation.
        kv_type: A name in `KV_BITS`.
        draft: A model that drafts, at int4; None for n-gram drafts.
    """
    bits = BITS[precision]
    weights = weight_bytes(shape.parameters, bits)
    scales = scale_bytes(shape.parameters, bits)
    kv = shape.kv_bytes(context, kv_type)
    drafts = 0
    if draft is not None:
        drafts = weight_bytes(draft.parameters, 4) + scale_bytes(draft.parameters, 4)
        drafts += draft.kv_bytes(context, kv_type)
    total = weights + scales + kv + drafts + WORKER_BYTES
    token_s = _token_s(shape, target, precision, context // 2, kv_type)
    ops = 2 * shape.active_parameters * min(PROMPT_TOKENS, context)
    first_s = None if target.compute is None else ops / target.compute + token_s
    return PaperPoint(
        precision=precision,
        context=context,
        kv_type=kv_type,
        weights_bytes=weights,
        scales_bytes=scales,
        kv_bytes=kv,
        draft_bytes=drafts,
        total_bytes=total,
        decode_tps=1 / token_s,
        speculative_tps=_speculative(shape, target, token_s, draft),
        first_token_s=first_s,
        quality_ratio=quality_ratio(shape, precision),
        accuracy=_LOSS[precision],
        fits=total <= target.usable_bytes,
    )


def paper_points(
    shape: Shape,
    target: Target,
    *,
    contexts: Sequence[int],
    kv_types: Sequence[str],
    precisions: Sequence[str] = PRECISIONS,
    draft: Shape | None = None,
) -> tuple[PaperPoint, ...]:
    """All combinations, most precise first."""
    return tuple(
        paper_point(shape, target, precision, context, kv_type, draft)
        for precision in precisions
        for context in contexts
        for kv_type in kv_types
    )


def scale_bytes(parameters: int, bits: float) -> int:
    """Two bytes for each group of quantized weights."""
    return 0 if bits >= 16 else math.ceil(parameters / GROUP * 2)


def quality_ratio(shape: Shape, precision: str) -> float:
    """exp(−mean KL), assumed from SmolLM2-135M.

    There it was measured; larger models lose less, about with the inverse square root of their
    size (a 7B loses a seventh of it at int4: 0.05 nats).
    """
    size = max(1, shape.parameters) / _REFERENCE_PARAMETERS
    return math.exp(-_REFERENCE_KL[precision] / math.sqrt(max(0.25, size)))


def tokens_of_a_round(acceptance: float, drafted: int) -> float:
    """Tokens that a round of drafting gives: 1 + a + a² + … + aᵏ."""
    return float(sum(acceptance**power for power in range(drafted + 1)))


def _token_s(shape: Shape, target: Target, precision: str, tokens: int, kv_type: str) -> float:
    read = shape.active_parameters * BITS[precision] / 8
    weights_s = 1 / decode_tps(target.weights_bandwidth(precision), read)
    return weights_s + shape.kv_bytes(tokens, kv_type) / target.bandwidth


def _speculative(
    shape: Shape, target: Target, token_s: float, draft: Shape | None
) -> tuple[float, float]:
    """Tokens/s with drafts: never less than without, since drafting that doesn't pay goes off."""
    if draft is None:
        low, high = NGRAM_GAIN
        return low / token_s, high / token_s
    draft_s = draft.active_parameters / 2 / target.weights_bandwidth("int4")
    round_s = DRAFTED * draft_s + token_s * (1 + PASS_SLOPE * DRAFTED)
    gain = tokens_of_a_round(ACCEPTANCE, DRAFTED) * token_s / round_s
    return 1 / token_s, max(1.0, gain) / token_s


def kv_table(shape: Shape, contexts: Sequence[int]) -> dict[str, dict[int, int]]:
    """KV bytes by type and context."""
    return {
        kv_type: {context: shape.kv_bytes(context, kv_type) for context in contexts}
        for kv_type in KV_BITS
    }
