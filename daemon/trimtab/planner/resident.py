"""What a worker holds, loaded and in use: measured here, or estimated from those that were."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Final

from trimtab.domain.models import ModelSpec

FORGET_S: Final = 600.0
"""Working memory that is not used any more is forgotten over so long."""


def estimates(model: ModelSpec, measured: Mapping[str, int]) -> dict[str, int]:
    """Anonymous bytes of a freshly loaded worker, for every variant once one has been measured.

    A manifest tells the memory of weights, and what a worker holds beside them is the same for all
    variants of a model: measured − weights. Held against each other, variants must be told in the
    same measure. With a fixed guess for those that were never loaded, a smaller variant can seem to
    hold more than the larger one that is loaded, and the way down looks closed.

    Args:
        model: Its variants' weights.
        measured: By variant, what was measured.

    Returns:
        The measured ones as they are, the others as weights + the least that was measured beside
        them; nothing at all if no variant of this model was measured.
    """
    known = {variant.name: variant for variant in model.variants}
    beside = [held - known[name].weights_bytes for name, held in measured.items() if name in known]
    if not beside:
        return {}
    own = min(beside)
    return {
        name: measured.get(name, max(0, variant.weights_bytes + own))
        for name, variant in known.items()
    }


def worked(before_bytes: int, now_bytes: int, elapsed_s: float) -> int:
    """A variant's working memory after another look: it goes up at once, and slowly down."""
    if now_bytes >= before_bytes:
        return now_bytes
    return now_bytes + int((before_bytes - now_bytes) * exp(-elapsed_s / FORGET_S))
