"""What it costs in accuracy when a conversation's KV crosses from one variant to another.

A child process prefills a text with each variant into a segment of its own, then has each variant
score what follows on each of the segments. The measure is the mean KL divergence from what the same
weights say on their own KV.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab.domain.models import ModelSpec, VariantSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trimtab.worker.kv_decoder import KvDecoder

_PIECE: Final = 64


def crossing_kl(model: ModelSpec, text: str, prefix: int, scored: int) -> dict[str, float]:
    """Mean KL by pair, named ``weights<KV of``, for every two variants that share a KV shape.

    Args:
        model: Its variants are compared.
        text: At least ``prefix + scored`` tokens of it are used.
        prefix: Tokens that are prefilled by the variant whose KV it is.
        scored: Tokens that are scored after it.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(_measure, model.variants, text, prefix, scored).result()


def _measure(
    variants: tuple[VariantSpec, ...], text: str, prefix: int, scored: int
) -> dict[str, float]:
    """Runs in the child: one variant is loaded at a time."""
    tokens = _tokens(variants[0], text, prefix + scored)
    segments = {one.name: _prefilled(one, tokens[:prefix]) for one in variants}
    divergences: dict[str, float] = {}
    try:
        for weights in variants:
            decoder = _decoder(weights, len(tokens))
            own = _log_probabilities(decoder, segments[weights.name], tokens, prefix)
            for other in variants:
                if other.name == weights.name or other.fingerprint != weights.fingerprint:
                    continue
                crossed = _log_probabilities(decoder, segments[other.name], tokens, prefix)
                divergences[f"{weights.name}<{other.name}"] = round(_kl(own, crossed), 4)
    finally:
        for descriptor in segments.values():
            os.close(descriptor)
    return divergences


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


def _kl(own: NDArray[np.float32], crossed: NDArray[np.float32]) -> float:
    import numpy as np

    return float((np.exp(own) * (own - crossed)).sum(axis=1).mean())
