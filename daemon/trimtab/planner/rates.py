"""Speeds of the variants: as known before, and as they are now.

What was never measured follows from bytes: a token reads all weights once, so that tokens a second
are bandwidth ÷ bytes, with the bandwidth that the other variants show.
"""

from __future__ import annotations

from math import inf
from statistics import median
from typing import Final

from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.planner.queue_plan import Rate
from trimtab.planner.speeds import Speeds

BANDWIDTH_BYTES_S: Final = 8e9
"""Of a small board, where no variant was ever measured; observation corrects it within seconds."""

PREFILL_PER_DECODE: Final = 6.0
"""How much faster a prompt is read than an answer is written, where it wasn't measured."""


def known(model: ModelSpec) -> tuple[Rate, ...]:
    """The speeds that the model's manifest or profile gives, in the model's order."""
    seen = [
        variant.decode_tps * variant.weights_bytes
        for variant in model.variants
        if variant.decode_tps
    ]
    bandwidth = median(seen) if seen else BANDWIDTH_BYTES_S
    return tuple(_rate(variant, bandwidth) for variant in model.variants)


def _rate(variant: VariantSpec, bandwidth: float) -> Rate:
    decode = variant.decode_tps or bandwidth / max(1, variant.weights_bytes)
    prefill = variant.prefill_tps or decode * PREFILL_PER_DECODE
    return Rate(variant.name, 1 / prefill, 1 / decode, variant.quality)


def now(rates: tuple[Rate, ...], speeds: Speeds, pace_ratio: float) -> list[Rate]:
    """The same, corrected by what was observed and slowed down by the pace."""
    out = []
    for rate in rates:
        slow = 1 / (speeds.factor(rate.variant) * pace_ratio)
        out.append(Rate(rate.variant, rate.prefill_s * slow, rate.decode_s * slow, rate.quality))
    return out


def loaded_and_fastest(
    rates: tuple[Rate, ...], speeds: Speeds, pace_ratio: float, loaded: str | None
) -> tuple[Rate | None, Rate]:
    """The loaded variant's speed now, and the best of each speed: what nobody could do is lost."""
    here = None
    prefill_s = decode_s = inf
    for rate in rates:  # at every token mark: no calls
        slow = 1 / (speeds.common * speeds.own.get(rate.variant, 1.0) * pace_ratio)
        if rate.prefill_s * slow < prefill_s:
            prefill_s = rate.prefill_s * slow
        if rate.decode_s * slow < decode_s:
            decode_s = rate.decode_s * slow
        if rate.variant == loaded:
            here = Rate(loaded, rate.prefill_s * slow, rate.decode_s * slow, rate.quality)
    return here, Rate("", prefill_s, decode_s, 1.0)
