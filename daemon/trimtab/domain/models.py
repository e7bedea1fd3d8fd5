"""What the planner and the supervisor know about a model and its variants: values, no files.

A *model* is the language model that a user names; a *variant* is one pre-built quantization of it.
All variants of one model share a tokenizer, and most share one shape of KV cache: those whose
`fingerprint` is equal can continue each other's conversations without prefilling again.

The catalog makes these values from a manifest (`trimtab.catalog`); tests make them directly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.tools import ToolFormat

KV_DTYPE_BYTES: Final[dict[str, float]] = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "int8": 1.0,
    "int4": 0.5,
}
"""Bytes of one number in a KV cache, by its type. int4 packs two into a byte."""

_CPU_PROVIDERS: Final = ("cpu", "cpuexecutionprovider")
SCALED_QUERIES: Final = "trimtab.scaled_queries"
"""What the catalog writes into a graph whose attention has its queries scaled, for the worker."""


def other_providers(named: Iterable[str]) -> tuple[str, ...]:
    """Of the engine's execution providers those that need other hardware than the CPU."""
    return tuple(name for name in named if name.lower() not in _CPU_PROVIDERS)


def kv_bytes_per_token(*, layers: int, kv_heads: int, head_size: int, kv_dtype: str) -> int:
    """Bytes that one token adds to the KV cache: a key and a value for each layer and KV head.

    Args:
        layers: Layers that keep a KV cache.
        kv_heads: KV heads of a layer (fewer than attention heads under grouped-query attention).
        head_size: Numbers in one head's key.
        kv_dtype: A name in `KV_DTYPE_BYTES`.

    Returns:
        2 · layers · kv_heads · head_size · bytes per number, rounded up to whole bytes.

    Raises:
        KeyError: If the type is unknown.
    """
    numbers = 2 * layers * kv_heads * head_size
    return math.ceil(numbers * KV_DTYPE_BYTES[kv_dtype])


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One variant, as the planner compares it with the others.

    The three rates were seen once, on the machine that proved the variant, with `proof_threads`
    threads: hints to start from until this device has been measured, and nothing at all on another
    processor (`profile.known` takes them out). None means never measured.

    Attributes:
        name: The variant's name within its model: `int8`, `int4_mixed`.
        precision: Of the weights: `fp32`, `int8`, `int4`.
        folder: The absolute path of its onnxruntime-genai folder.
        weights_bytes: Resident memory of a loaded worker above that of an empty one.
        disk_bytes: All its files together.
        kv_bytes_per_token: What one token adds to its KV cache.
        kv_dtype: The type of its KV cache, a name in `KV_DTYPE_BYTES`.
        quality: exp(−mean KL to the model's best variant) in (0, 1]; 1 is the best variant itself.
        fingerprint: Of tokenizer, KV shape and type, rope settings, and all files of the model's
            variants. Equal fingerprints mean that a KV segment of one variant can be continued by
            the other.
        context_length: Most tokens that the variant was built for.
        load_s: Seconds to load it, warm.
        decode_tps: Tokens a second when it generates for one conversation.
        prefill_tps: Tokens a second when it reads a prompt.
        proof_threads: Threads that those rates were measured with.
        proof_cpu: The processor that they were measured on; empty if it isn't known.
        indices_graph: File name of the graph with `logits_indices` in `folder`; empty if it has
            none.
    """

    name: str
    precision: str
    folder: str
    weights_bytes: int
    disk_bytes: int
    kv_bytes_per_token: int
    quality: float
    fingerprint: str
    context_length: int
    load_s: float | None = None
    decode_tps: float | None = None
    prefill_tps: float | None = None
    proof_threads: int = 1
    proof_cpu: str = ""
    kv_dtype: str = "float32"
    indices_graph: str = ""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions are turned into the keys, where all layers follow one base.

    Attributes:
        theta: The base: pair i of h turns by position · theta^(−i/h).
        rotary_dim: Numbers of a key that are turned; the rest stay.
        interleaved: Pairs lie side by side (true) or half of ``rotary_dim`` apart (false).
    """

    theta: float
    rotary_dim: int
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model and its variants, most precise first.

    Attributes:
        model_id: What clients and the configuration call it: `smollm2-135m`.
        display_name: For people: `SmolLM2-135M-Instruct`.
        architecture: The family of the graph: `llama`.
        context_length: Most tokens that any variant was built for.
        layers: Layers that keep a KV cache.
        kv_heads: KV heads of a layer.
        head_size: Numbers in one head's key.
        tokenizer_hash: SHA-256 over the tokenizer's files; the same for all variants.
        has_chat_template: Whether messages can be turned into a prompt.
        variants: At least one, ordered by falling quality, then falling memory.
        rope: How positions are turned into the keys; None where that follows no single base.
        tool_format: How the chat template has tools called; None if it takes none, or none that we
            know how to read.
    """

    model_id: str
    display_name: str
    architecture: str
    context_length: int
    layers: int
    kv_heads: int
    head_size: int
    tokenizer_hash: str
    has_chat_template: bool
    variants: tuple[VariantSpec, ...] = field(default=())
    rope: RopeSpec | None = None
    tool_format: ToolFormat | None = None

    def variant(self, name: str) -> VariantSpec | None:
        """The variant of that name, or None."""
        for variant in self.variants:  # asked dozens of times a tick: no generator
            if variant.name == name:
                return variant
        return None
