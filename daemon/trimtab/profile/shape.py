"""A language model's shape: enough to know its bytes, its KV cache and its work for each token.

All of it is arithmetic on a public configuration; nothing is downloaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

KV_BITS: Final[dict[str, int]] = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts.

    Attributes:
        count: Experts of a layer.
        active: How many of them work for one token.
        intermediate: Their inner width.
        shared_intermediate: Inner width of what works for every token beside them; 0 for nothing.
        dense_layers: First layers without experts.
    """

    count: int
    active: int
    intermediate: int
    shared_intermediate: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only transformer.

    Attributes:
        name: For people.
        architecture: Such as ``llama``.
        hidden: Width of the residual stream.
        layers: Layers, each with attention and a feed-forward part.
        heads: Attention heads.
        kv_heads: KV heads (equal to `heads` under full attention).
        head_size: Numbers in a head's key.
        intermediate: Inner width of the feed-forward part.
        vocabulary: Tokens.
        tied: Whether the output uses the embedding's weights.
        gated: Whether the feed-forward part has three matrices (as llama) or two.
        context_length: Most tokens; 0 if the configuration doesn't say.
        experts: Instead of one feed-forward part; None for a dense model.
        latent_kv: Numbers that one layer keeps for a token under latent attention; 0 without it.
        window: Tokens that windowed layers look back; 0 without windows.
        assumed: What the configuration doesn't say, and what was taken instead.
        source: Where the figures are from.
    """

    name: str
    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool
    gated: bool = True
    context_length: int = 0
    experts: Experts | None = None
    latent_kv: int = 0
    window: int = 0
    assumed: tuple[str, ...] = ()
    source: str = ""

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, once."""
        return self.vocabulary * self.hidden

    @property
    def _attention(self) -> int:
        query_and_output = 2 * self.hidden * self.heads * self.head_size
        return query_and_output + 2 * self.hidden * self.kv_heads * self.head_size

    def _feed_forward(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width

    def _layers(self, experts_at_work: int) -> int:
        """Parameters of all layers with so many experts in each."""
        attention = self.layers * (self._attention + 2 * self.hidden)
        moe = self.experts
        if moe is None:
            return attention + self.layers * self._feed_forward(self.intermediate)
        sparse = self.layers - moe.dense_layers
        one = experts_at_work * self._feed_forward(moe.intermediate)
        one += self._feed_forward(moe.shared_intermediate) + self.hidden * moe.count
        return attention + sparse * one + moe.dense_layers * self._feed_forward(self.intermediate)

    @property
    def parameters(self) -> int:
        """All of them: what memory has to hold."""
        every = self.experts.count if self.experts else 0
        return self._layers(every) + self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def active_parameters(self) -> int:
        """What is read for one token: the layers with the experts at work, and the output.

        Of the embedding only a row is read, unless the output uses the same weights.
        """
        at_work = self.experts.active if self.experts else 0
        return self._layers(at_work) + self.embedding + self.hidden

    def kv_bytes_per_token(self, kv_type: str) -> int:
        """What one token adds to the KV cache, of all layers.

        Args:
            kv_type: A name in `KV_BITS`.
        """
        numbers = self.latent_kv or 2 * self.kv_heads * self.head_size
        return math.ceil(self.layers * numbers * KV_BITS[kv_type] / 8)

    def kv_bytes(self, tokens: int, kv_type: str) -> int:
        """The KV cache of one conversation."""
        return tokens * self.kv_bytes_per_token(kv_type)


def weight_bytes(parameters: int, bits: float) -> int:
    """Weights at so many bits each; what scales add is left to the precision's own figure."""
    return math.ceil(parameters * bits / 8)


def decode_tps(bandwidth_bytes_s: float, read_bytes: float) -> float:
    """Tokens a second where each token reads so many bytes from memory: the bound of decoding."""
    return bandwidth_bytes_s / read_bytes
