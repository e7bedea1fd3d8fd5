"""Which operating points there are: every combination of what the knobs may be."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from trimtab.domain.knobs import (
    SPECULATION_NGRAM,
    SPECULATION_OFF,
    Knob,
    KvPlacement,
    OperatingPoint,
)
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


def speculations(
    model: ModelSpec, bounds: KnobBounds, target: str, drafts_out: Container[str] = ()
) -> tuple[str, ...]:
    """The modes that bounds and model allow for a variant, the fastest first.

    A mode is what workers *may* do: they draft for a stream only while its measured speed-up pays,
    so that allowing more costs nothing but a draft variant's memory. A draft that is left out for
    now leaves n-grams, which its mode has in it. One that is no smaller than its target isn't used;
    where there is nothing else, the target does without.

    Args:
        model: Its variants.
        bounds: The policy's.
        target: The variant that is drafted for.
        drafts_out: Variants that are left out as drafts.
    """
    known = {
        mode: None
        for mode in bounds.speculation
        if (draft := draft_of(mode)) is None or can_draft(model, draft, target)
    }
    if any(draft_of(mode) in drafts_out for mode in known):
        known[SPECULATION_NGRAM] = None
    if not any((of := draft_of(mode)) is None or is_smaller(model, of, target) for mode in known):
        known[SPECULATION_OFF] = None
    return tuple(sorted(known, key=speed_order))


def can_draft(model: ModelSpec, draft: str, target: str) -> bool:
    """True if a variant can write into another one's KV cache."""
    its, own = model.variant(draft), model.variant(target)
    if its is None or draft == target:
        return False
    return own is None or its.fingerprint == own.fingerprint


def is_smaller(model: ModelSpec, draft: str, target: str) -> bool:
    """True unless a draft is known to hold as much as its target: that one would be as fast."""
    its, own = model.variant(draft), model.variant(target)
    return its is None or own is None or its.weights_bytes < own.weights_bytes


def speed_order(speculation: str, *, pays: bool = True) -> int:
    """Drafting with a variant, then with n-grams, then not at all.

    Args:
        speculation: The mode.
        pays: False for a draft variant that gains nothing: it comes after all that cost no memory.
    """
    if draft_of(speculation) is not None:
        return 0 if pays else 3
    return 2 if speculation == SPECULATION_OFF else 1


def candidates(
    model: ModelSpec,
    bounds: KnobBounds,
    *,
    wanted_threads: int,
    pace_ratio: float,
    kv_placement: KvPlacement,
    pinned: Mapping[Knob, str | int | float],
    drafts_out: Container[str] = (),
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
    allowed = bounds.kv_placement
    placement = kv_placement if kv_placement in allowed or not allowed else allowed[0]
    count = int(pinned.get(Knob.THREADS, threads(bounds, wanted_threads)))
    pace = float(pinned.get(Knob.PACE, pace_ratio))
    modes = {name: speculations(model, bounds, name, drafts_out) for name in names}
    return tuple(
        OperatingPoint(name, size, count, mode, placement, pace)
        for name in names
        for size in sizes
        for mode in modes[name]
    )
