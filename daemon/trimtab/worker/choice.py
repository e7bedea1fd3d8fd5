"""Which decoder serves a variant, and why it isn't the one that was asked for."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from trimtab.errors import LoadError
from trimtab.lean import give_back_free_memory
from trimtab.worker.decoder import Decoder
from trimtab.worker.generator import GeneratorDecoder
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.kv_graph import UnsuitableError
from trimtab.worker.variant import VariantFacts
from trimtab.workers.protocol import Load


@dataclass(frozen=True, slots=True)
class Choice:
    """A decoder that has loaded the variant.

    Attributes:
        decoder: Ready to compute.
        reason: Why it isn't the one that was asked for; empty otherwise.
    """

    decoder: Decoder
    reason: str = ""


def choose_decoder(facts: VariantFacts, load: Load) -> Choice:
    """Load the variant with the decoder that was asked for, or with the one that can.

    The decoder that owns its KV comes first: it is no slower, and its conversations can be handed
    over, put on disk and brought back. It also comes where a draft variant was asked for, which
    needs its KV. The Generator serves the graphs that it can't.

    Args:
        facts: The variant.
        load: What was asked for.

    Raises:
        LoadError: No decoder can run it.
    """
    if load.decoder not in ("auto", "generator", "kv"):
        raise LoadError(
            f"decoder: {load.decoder!r} is none of auto, generator and kv", code="invalid_request"
        )
    if load.decoder == "generator" and not load.draft:
        return Choice(GeneratorDecoder(facts, load.threads))
    context = min(load.context, facts.context)
    try:
        return Choice(KvDecoder(facts, load.threads, context, load.indices_graph, load.rope))
    except UnsuitableError as error:
        reason = error.message
    # Not while the error is at hand: it holds what has been loaded, and all is loaded once more.
    gc.collect()
    give_back_free_memory()
    return Choice(GeneratorDecoder(facts, load.threads), reason)
