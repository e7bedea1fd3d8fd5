"""Which operating points there are: every combination of what the knobs may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.policy.compiled import KnobBounds

SMALLEST_CONTEXT: Final = 256


def contexts(model: ModelSpec, bounds: KnobBounds) -> tuple[int, ...]:
    """Contexts from the largest allowed one, halving, down to the smallest; largest first."""
    top = min(bounds.context_max, model.context_length)
    bottom = min(bounds.context_min, top)
    steps = [top]
    while steps[-1] // 2 > bottom:
        steps.append(steps[-1] // 2)
    if bottom < steps[-1]:
        steps.append(bottom)
    return tuple(steps)


def threads(bounds: KnobBounds, wanted: int) -> int:
    """The configured thread count, within the bounds."""
    most = bounds.threads_max if bounds.threads_max is not None else wanted
    return max(bounds.threads_min, min(wanted, most))


def candidates(
    model: ModelSpec,
    bounds: KnobBounds,
    *,
    wanted_threads: int,
    pace_ratio: float,
    pinned: Mapping[Knob, str | int | float],
) -> tuple[OperatingPoint, ...]:
    """All points within the bounds; a pinned knob has its pinned value, whatever the bounds say.

    Most precise variant first, and for each the largest context first.
    """
    names = [variant.name for variant in model.variants]
    if bounds.variants:
        names = [name for name in names if name in bounds.variants]
    if Knob.VARIANT in pinned:
        names = [str(pinned[Knob.VARIANT])]
    sizes = contexts(model, bounds)
    if Knob.CONTEXT in pinned:
        sizes = (int(pinned[Knob.CONTEXT]),)
    count = int(pinned.get(Knob.THREADS, threads(bounds, wanted_threads)))
    pace = float(pinned.get(Knob.PACE, pace_ratio))
    return tuple(
        OperatingPoint(variant=name, context=size, threads=count, pace_ratio=pace)
        for name in names
        for size in sizes
    )
