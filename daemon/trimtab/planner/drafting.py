"""What drafting makes of a variant's speed: measured, else from what passes and drafts cost.

A pass of the target over k + 1 tokens takes one token's time, which is that of reading the weights,
and the work of k tokens more, which is that of reading a prompt. If each draft is right with
probability a, a round gives 1 + a + … + aᵏ tokens for k drafts and that pass. A draft variant is
right about as often as its quality is near the target's: measured, the share of equal likeliest
tokens and exp(−mean KL) differ by a few hundredths.

Workers draft only while it pays, so that no mode is ever slower than none.
"""

from __future__ import annotations

from math import log
from typing import Final

from trimtab.domain.decisions import Source
from trimtab.domain.models import VariantSpec
from trimtab.planner.device import DeviceModel, Estimate

MOST_DRAFTS: Final = 4
NGRAM_ERROR: Final = 0.25
"""Standard error where n-gram drafting was never measured: it depends on the text."""
DRAFT_ERROR: Final = 0.20
WORTH: Final = 1.04
"""What workers ask of a round of drafts (`worker.speculation`): one that promises less is never
made, and its draft lies in memory for nothing."""

UNMEASURED_WORTH: Final = 1.10
"""The same where the speeds aren't of this device. By sizes alone, or by what was seen when they
were built, SmolLM2's fp32 gains 0.17 to 0.67 with any smaller variant, and int8 nothing with any;
such guesses are off by some hundredths."""

_SEEN_HERE: Final = (Source.MEASURED, Source.FITTED, Source.SCALED)


def ngram_ratio(device: DeviceModel, variant: VariantSpec) -> Estimate:
    """Speed with n-gram drafts ÷ without, on the kind of text on which it gains least.

    What will be asked isn't known, and more is seen soon enough. The error is how far the kinds
    that were measured lie above it, on average.
    """
    texts = {text for _, text in device.speculation}
    gains = [max(1.0, device.speculation_ratio(variant, text)) for text in sorted(texts)]
    if not gains:
        return Estimate(1.0, NGRAM_ERROR, Source.ASSUMED)
    least = min(gains)
    above = sum(log(gain / least) for gain in gains) / len(gains)
    measured = any(name == variant.name for name, _ in device.speculation)
    return Estimate(least, above, Source.MEASURED if measured else Source.BYTES)


def worth(target: Source, draft: Source) -> float:
    """What a draft variant must promise over n-grams to be taken for faster.

    Args:
        target: How the target's speed was found.
        draft: How the draft's was.
    """
    return WORTH if target in _SEEN_HERE and draft in _SEEN_HERE else UNMEASURED_WORTH


def draft_ratio(
    variant: VariantSpec, draft: VariantSpec, token_s: float, draft_s: float, prefill_s: float
) -> Estimate:
    """Speed with a draft variant ÷ without.

    Args:
        variant: The target.
        draft: What drafts for it.
        token_s: A token of the target's.
        draft_s: A token of the draft's.
        prefill_s: A token of a prompt, read by the target.
    """
    right = min(1.0, draft.quality / variant.quality) if variant.quality > 0 else 0.0
    best, tokens = 1.0, 1.0
    for drafts in range(1, MOST_DRAFTS + 1):
        tokens += right**drafts
        round_s = token_s + drafts * (draft_s + prefill_s)
        best = max(best, tokens * token_s / round_s)
    return Estimate(best, DRAFT_ERROR, Source.SCALED)
