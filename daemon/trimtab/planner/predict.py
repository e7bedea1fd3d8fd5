"""What an operating point will hold and do, from the manifest or from what was measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from trimtab.domain.decisions import Prediction
from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.planner.doubt import Doubt
from trimtab.planner.points import draft_of
from trimtab.planner.resident import estimates

WORKER_BYTES: Final = 60 * 1024 * 1024
"""Anonymous memory of a worker beside its weights, until this device has been measured: the
interpreter, the engine's libraries and its arena."""

TYPICAL_PROMPT_TOKENS: Final = 200


@dataclass(frozen=True, slots=True)
class Situation:
    """What predictions start from.

    Attributes:
        available_bytes: Memory that is available now, or would be without the KV of conversations
            that have ended; None if it isn't known.
        held_bytes: What the serving worker holds now, and would give back.
        kv_tokens: Tokens cached for the running streams; they move along with a step.
    """

    available_bytes: int | None
    held_bytes: int
    kv_tokens: int


def loaded_bytes(variant: VariantSpec, resident: Mapping[str, int]) -> int:
    """Memory of a worker that has just loaded the variant: measured, else from the manifest."""
    measured = resident.get(variant.name)
    return measured if measured is not None else WORKER_BYTES + variant.weights_bytes


@dataclass(frozen=True, slots=True)
class Basis:
    """What all points of a variant and a draft have in common.

    Attributes:
        loaded_bytes: What the worker holds without any KV.
        kv_bytes_per_token: What one token adds.
        decode_tps: Tokens a second at full pace; None if unknown.
        prefill_tps: Prompt tokens a second at full pace; None if unknown.
        quality_ratio: 0 to 1.
        doubt_bytes: How much more the worker may hold than predicted.
    """

    loaded_bytes: int
    kv_bytes_per_token: int
    decode_tps: float | None
    prefill_tps: float | None
    quality_ratio: float
    doubt_bytes: int = 0


NOTHING: Final = Basis(0, 0, None, None, 0.0)


def basis(
    variant: str | None,
    draft: str | None,
    model: ModelSpec,
    resident: Mapping[str, int],
    doubt: Doubt,
) -> Basis:
    """The basis of a variant with a draft in the same process; `NOTHING` without a variant.

    Args:
        variant: Which.
        draft: The variant that drafts; None: none does.
        model: Its variants.
        resident: Anonymous bytes of a freshly loaded worker, by variant, as measured here.
        doubt: How far a prediction of memory may be wrong.
    """
    spec = model.variant(variant) if variant is not None else None
    if spec is None:
        return NOTHING
    held = estimates(model, resident)
    weights = loaded_bytes(spec, held)
    margin = weights * doubt.margin_ratio(spec.name, measured=spec.name in resident)
    second = model.variant(draft) if draft is not None else None
    if second is not None:  # in the same process and the same KV: its weights alone
        more = loaded_bytes(second, held) - WORKER_BYTES
        weights += more
        margin += more * doubt.margin_ratio(second.name, measured=second.name in resident)
    return Basis(
        weights,
        spec.kv_bytes_per_token,
        spec.decode_tps,
        spec.prefill_tps,
        spec.quality,
        int(margin),
    )


def predict_from(known: Basis, context: int, pace_ratio: float, here: Situation) -> Prediction:
    """The prediction for one context and pace.

    Memory is weights + KV bytes/token × cached tokens + the worker's own; the reserve adds the KV
    of one conversation that fills the whole context. Memory available afterwards is what is
    available now, plus what the present worker gives back, less what the new one takes.
    """
    tokens = here.kv_tokens
    memory = known.loaded_bytes + known.kv_bytes_per_token * tokens
    reserved = known.loaded_bytes + known.kv_bytes_per_token * max(context, tokens)
    decode, prefill = known.decode_tps, known.prefill_tps
    available = here.available_bytes
    return Prediction(
        memory,
        reserved,
        None if available is None else available + here.held_bytes - memory,
        decode * pace_ratio if decode else None,
        TYPICAL_PROMPT_TOKENS / (prefill * pace_ratio) if prefill else None,
        known.quality_ratio,
        known.doubt_bytes,
    )


def predict(
    point: OperatingPoint,
    model: ModelSpec,
    situation: Situation,
    resident: Mapping[str, int],
    doubt: Doubt,
) -> Prediction:
    """What ``point`` would hold and do now."""
    known = basis(point.variant, draft_of(point.speculation), model, resident, doubt)
    if known is NOTHING:
        situation = replace(situation, kv_tokens=0)
    return predict_from(known, point.context, point.pace_ratio, situation)
