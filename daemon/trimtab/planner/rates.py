"""Speeds of the variants: as known before, and as they are now."""

from __future__ import annotations

from math import inf

from trimtab.domain.knobs import SPECULATION_OFF
from trimtab.domain.models import ModelSpec
from trimtab.planner.device import DeviceModel
from trimtab.planner.points import draft_of
from trimtab.planner.predict import known_speed
from trimtab.planner.queue_plan import Rate
from trimtab.planner.speeds import Speeds


def known(
    model: ModelSpec, device: DeviceModel, threads: int, speculation: str = SPECULATION_OFF
) -> tuple[Rate, ...]:
    """The speeds of all variants in this mode of drafting, in the model's order.

    What is observed is held against these, so they must be of the mode that is in force: else what
    drafting gains would be taken for a fault of the profile, and counted twice.
    """
    draft = model.variant(draft_of(speculation) or "")
    rates = []
    for one in model.variants:
        its = draft if draft is not one else None
        mode = speculation if draft is not one else SPECULATION_OFF
        speed = known_speed(device, one, its, threads, mode)
        rates.append(Rate(one.name, speed.prefill_s, speed.decode_s, one.quality))
    return tuple(rates)


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
