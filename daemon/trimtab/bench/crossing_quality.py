"""What it costs in accuracy when a conversation's KV crosses from one variant to another.

A child process prefills a text with each variant into a segment of its own, then has each variant
score what follows on each of the segments. The measure is the mean KL divergence from what the same
weights say on their own KV. It is larger the harder a text is to foresee; so what the variants
differ by on the same text, each with its own KV, is measured beside it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.domain.models import ModelSpec, VariantSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.worker.kv_decoder import KvDecoder

_PIECE: Final = 64


@dataclass(frozen=True, slots=True)
class CrossingCost:
    """Mean KL divergences over a text, for every two variants that share a KV shape.

    Attributes:
        crossed: Of the same weights on another's KV from them on their own, by ``weights<KV of``.
        apart: Of the other variant from the weights, each on its own KV, by the same names.
    """

    crossed: dict[str, float]
    apart: dict[str, float]


def crossing_cost(model: ModelSpec, text: str, prefix: int, scored: int) -> CrossingCost:
    """Measure every two variants that share a KV shape.

    Args:
        model: Its variants are compared.
        text: At least ``prefix + scored`` tokens of it are used.
        prefix: Tokens that are prefilled by the variant whose KV it is.
        scored: Tokens that are scored after it.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(_measure, model.variants, text, prefix, scored).result()


def _measure(variants: Sequence[VariantSpec], text: str, prefix: int, scored: int) -> CrossingCost:
    """Runs in the child: one variant is loaded at a time."""
    tokens = _tokens(variants[0], text, prefix + scored)
    segments = {one.name: _prefilled(one, tokens[:prefix]) for one in variants}
    own: dict[str, NDArray[np.float32]] = {}
    crossed: dict[str, float] = {}
    try:
        for weights in variants:
            decoder = _decoder(weights, len(tokens))
            mine = _log_probabilities(decoder, segments[weights.name], tokens, prefix)
            own[weights.name] = mine
            for other in _others(weights, variants):
                theirs = _log_probabilities(decoder, segments[other.name], tokens, prefix)
                crossed[_pair(weights, other)] = _kl(mine, theirs)
    finally:
        for descriptor in segments.values():
            os.close(descriptor)
    apart = {
        _pair(weights, other): _kl(own[weights.name], own[other.name])
        for weights in variants
        for other in _others(weights, variants)
    }
    return CrossingCost(crossed, apart)


def _others(one: VariantSpec, variants: Sequence[VariantSpec]) -> list[VariantSpec]:
    """Those that it can take KV from."""
    return [
        other
        for other in variants
        if other.name != one.name and other.fingerprint == one.fingerprint
    ]


def _pair(weights: VariantSpec, kv_of: VariantSpec) -> str:
    return f"{weights.name}<{kv_of.name}"


def _tokens(variant: VariantSpec, text: str, count: int) -> list[int]:
    from trimtab.worker.tokenizer import Tokenizer
    from trimtab.worker.variant import read_variant
    from trimtab.workers.protocol import Render

    tokenizer = Tokenizer(read_variant(Path(variant.folder)))
    return tokenizer.render(Render(id=1, text=text))[:count]


def _decoder(variant: VariantSpec, context: int) -> KvDecoder:
    from trimtab.worker.kv_decoder import KvDecoder
    from trimtab.worker.variant import read_variant

    return KvDecoder(read_variant(Path(variant.folder)), 1, context, variant.indices_graph)


def _prefilled(variant: VariantSpec, tokens: list[int]) -> int:
    """A descriptor of a segment that holds the variant's KV of the tokens."""
    from trimtab.worker.decoder import Place

    decoder = _decoder(variant, len(tokens) * 2)
    cache = decoder.open(Place(len(tokens) * 2))
    for at in range(0, len(tokens), _PIECE):
        decoder.prefill(cache, tokens[at : at + _PIECE], last=False)
    descriptor = os.dup(cache.descriptor)
    decoder.close(cache)
    return descriptor


def _log_probabilities(
    decoder: KvDecoder, descriptor: int, tokens: list[int], prefix: int
) -> NDArray[np.float32]:
    """What the decoder says after each token beyond the prefix; the segment's prefix stays."""
    import numpy as np

    from trimtab.worker.decoder import Place

    cache = decoder.open(Place(len(tokens), descriptor, prefix))
    rows = []
    for at in range(prefix, len(tokens), _PIECE):
        logits = np.asarray(decoder.verify(cache, tokens[at : at + _PIECE]), np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        rows.append(logits.astype(np.float32))
    decoder.close(cache)
    return np.concatenate(rows)


def _kl(own: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    import numpy as np

    return round(float((np.exp(own) * (own - other)).sum(axis=1).mean()), 4)
