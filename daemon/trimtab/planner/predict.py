"""What an operating point will hold and do, from the manifest or from what was measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trimtab.domain.decisions import Prediction
from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.planner.points import draft_of

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
        resident: Measured anonymous bytes of a freshly loaded worker, by variant.
    """

    available_bytes: int | None
    held_bytes: int
    kv_tokens: int
    resident: Mapping[str, int]


def loaded_bytes(variant: VariantSpec, resident: Mapping[str, int]) -> int:
    """Memory of a worker that has just loaded the variant: measured, else from the manifest."""
    measured = resident.get(variant.name)
    return measured if measured is not None else WORKER_BYTES + variant.weights_bytes


def predict(point: OperatingPoint, model: ModelSpec, situation: Situation) -> Prediction:
    """What ``point`` would hold and do now.

    Memory is weights + KV bytes/token × cached tokens + the worker's own; the reserve adds the KV
    of one conversation that fills the whole context. Memory available afterwards is what is
    available now, plus what the present worker gives back, less what the new one takes.
    """
    variant = model.variant(point.variant) if point.variant is not None else None
    if variant is None:
        memory = reserved = 0
        decode_tps = ttft_s = None
        quality = 0.0
    else:
        weights = loaded_bytes(variant, situation.resident)
        draft = model.variant(draft_of(point.speculation) or "")
        if draft is not None:  # in the same process and the same KV: its weights alone
            weights += loaded_bytes(draft, situation.resident) - WORKER_BYTES
        memory = weights + variant.kv_bytes_per_token * situation.kv_tokens
        reserved = weights + variant.kv_bytes_per_token * max(point.context, situation.kv_tokens)
        decode_tps = variant.decode_tps * point.pace_ratio if variant.decode_tps else None
        prefill_tps = variant.prefill_tps * point.pace_ratio if variant.prefill_tps else None
        ttft_s = TYPICAL_PROMPT_TOKENS / prefill_tps if prefill_tps else None
        quality = variant.quality
    available = situation.available_bytes
    if available is not None:
        available = available + situation.held_bytes - memory
    return Prediction(memory, reserved, available, decode_tps, ttft_s, quality)
