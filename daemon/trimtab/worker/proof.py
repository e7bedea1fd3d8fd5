"""Proof that a variant computes: some load and fail at the first prefill."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trimtab.errors import EngineError, LoadError
from trimtab.worker.decoder import Decoder, Place
from trimtab.worker.sampling import Logits
from trimtab.worker.variant import VariantFacts


def prove(decoder: Decoder, facts: VariantFacts) -> None:
    """Compute a token.

    Raises:
        LoadError: What comes out isn't a distribution over tokens.
    """
    token = _any_token(facts)
    try:
        cache = decoder.open(_small_place(facts))
        logits = decoder.prefill(cache, [token, token], last=True)
        decoder.close(cache)
    except EngineError as error:
        raise LoadError(f"{facts.folder}: it loads and can't compute: {error.message}") from error
    _refuse_numberless(logits, facts.folder)


def prove_draft(decoder: Decoder, target: VariantFacts, folder: Path) -> None:
    """Have the draft write a token after the target.

    Args:
        decoder: Of the target, with the draft.
        target: The variant that is drafted for.
        folder: The draft's, for errors.

    Raises:
        EngineError: It can't, or what comes out isn't a distribution over tokens.
    """

    def best(logits: Logits, _: int) -> int:
        _refuse_numberless(logits, folder)
        return int(logits.argmax())

    token = _any_token(target)
    cache = decoder.open(_small_place(target))
    try:
        decoder.prefill(cache, [token, token], last=False)
        decoder.propose(cache, token, 1, best)
    finally:
        decoder.close(cache)


def _any_token(facts: VariantFacts) -> int:
    return facts.bos if facts.bos is not None and facts.bos < facts.vocabulary else 0


def _small_place(facts: VariantFacts) -> Place:
    return Place(capacity=min(16, facts.context))


def _refuse_numberless(logits: Logits | None, folder: Path) -> None:
    if logits is None or not np.isfinite(logits).all():
        raise LoadError(
            f"{folder}: it loads and computes no finite numbers",
            hint="build the variant again: `trimtab models build`",
        )
