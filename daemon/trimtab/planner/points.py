"""Which operating points there are: every combination of what the knobs may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.domain.knobs import SPECULATION_OFF, Knob, KvPlacement, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.policy.compiled import KnobBounds

DRAFT: Final = "draft:"


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


def draft_of(speculation: str) -> str | None:
    """The variant that drafts in this mode; None where none does."""
    return speculation.removeprefix(DRAFT) if speculation.startswith(DRAFT) else None


def speculations(model: ModelSpec, bounds: KnobBounds) -> tuple[str, ...]:
    """The modes that bounds and model allow, the fastest first.

    A mode is what workers *may* do: they draft for a stream only while its measured speed-up pays,
    so that allowing more costs nothing but a draft variant's memory.
    """
    known = [
        mode
        for mode in bounds.speculation
        if (draft := draft_of(mode)) is None or model.variant(draft) is not None
    ]
    return tuple(sorted(known or [SPECULATION_OFF], key=speed_order))


def speed_order(speculation: str) -> int:
    """Drafting with a variant, then with n-grams, then not at all."""
    if draft_of(speculation) is not None:
        return 0
    return 2 if speculation == SPECULATION_OFF else 1


def candidates(
    model: ModelSpec,
    bounds: KnobBounds,
    *,
    wanted_threads: int,
    pace_ratio: float,
    kv_placement: KvPlacement,
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
    modes = speculations(model, bounds)
    allowed = bounds.kv_placement
    placement = kv_placement if kv_placement in allowed or not allowed else allowed[0]
    count = int(pinned.get(Knob.THREADS, threads(bounds, wanted_threads)))
    pace = float(pinned.get(Knob.PACE, pace_ratio))
    return tuple(
        OperatingPoint(name, size, count, mode, placement, pace)
        for name in names
        for size in sizes
        for mode in modes
        if draft_of(mode) != name
    )
