"""Which decoder serves a variant, and why it isn't the one that was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.errors import LoadError
from trimtab.worker.decoder import Decoder
from trimtab.worker.generator import GeneratorDecoder
from trimtab.worker.variant import VariantFacts


@dataclass(frozen=True, slots=True)
class Choice:
    """A decoder that has loaded the variant.

    Attributes:
        decoder: Ready to compute.
        reason: Why it isn't the one that was asked for; empty otherwise.
    """

    decoder: Decoder
    reason: str = ""


def choose_decoder(facts: VariantFacts, wanted: str, threads: int) -> Choice:
    """Load the variant with the decoder that was asked for, or with the one that can.

    Args:
        facts: The variant.
        wanted: ``auto``, ``generator`` or ``kv``.
        threads: Engine threads.

    Raises:
        LoadError: No decoder can run it.
    """
    if wanted not in ("auto", "generator", "kv"):
        raise LoadError(
            f"decoder: {wanted!r} is none of auto, generator and kv", code="invalid_request"
        )
    return Choice(GeneratorDecoder(facts, threads))
