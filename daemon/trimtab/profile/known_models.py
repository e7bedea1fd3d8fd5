"""Shapes of common models, from their publishers' `config.json`. Only what is public and certain.

`parameters` as the publishers state them is checked by a test for each of them.
"""

from __future__ import annotations

from typing import Final

from trimtab.profile.shape import Experts, Shape

_SOURCE: Final = "the publisher's config.json"


def _shape(
    name: str,
    architecture: str,
    sizes: tuple[int, int, int, int, int, int, int],
    *,
    tied: bool,
    context: int,
    experts: Experts | None = None,
    window: int = 0,
) -> Shape:
    hidden, intermediate, layers, heads, kv_heads, head_size, vocabulary = sizes
    return Shape(
        name,
        architecture,
        hidden,
        layers,
        heads,
        kv_heads,
        head_size,
        intermediate,
        vocabulary,
        tied,
        context_length=context,
        experts=experts,
        window=window,
        source=_SOURCE,
    )


# hidden, intermediate, layers, heads, KV heads, head size, vocabulary
KNOWN: Final[dict[str, Shape]] = {
    shape.name: shape
    for shape in (
        _shape("smollm2-135m", "llama", (576, 1536, 30, 9, 3, 64, 49152), tied=True, context=8192),
        _shape("smollm2-360m", "llama", (960, 2560, 32, 15, 5, 64, 49152), tied=True, context=8192),
        _shape(
            "smollm2-1.7b", "llama", (2048, 8192, 24, 32, 32, 64, 49152), tied=True, context=8192
        ),
        _shape(
            "tinyllama-1.1b", "llama", (2048, 5632, 22, 32, 4, 64, 32000), tied=False, context=2048
        ),
        _shape(
            "llama-2-7b", "llama", (4096, 11008, 32, 32, 32, 128, 32000), tied=False, context=4096
        ),
        _shape(
            "llama-3.1-8b",
            "llama",
            (4096, 14336, 32, 32, 8, 128, 128256),
            tied=False,
            context=131072,
        ),
        _shape(
            "llama-3.2-1b", "llama", (2048, 8192, 16, 32, 8, 64, 128256), tied=True, context=131072
        ),
        _shape(
            "llama-3.2-3b", "llama", (3072, 8192, 28, 24, 8, 128, 128256), tied=True, context=131072
        ),
        _shape(
            "mistral-7b-v0.3",
            "mistral",
            (4096, 14336, 32, 32, 8, 128, 32768),
            tied=False,
            context=32768,
        ),
        _shape(
            "mixtral-8x7b",
            "mixtral",
            (4096, 14336, 32, 32, 8, 128, 32000),
            tied=False,
            context=32768,
            experts=Experts(8, 2, 14336),
        ),
        _shape(
            "qwen2.5-0.5b", "qwen2", (896, 4864, 24, 14, 2, 64, 151936), tied=True, context=32768
        ),
        _shape(
            "qwen2.5-1.5b", "qwen2", (1536, 8960, 28, 12, 2, 128, 151936), tied=True, context=32768
        ),
        _shape(
            "qwen2.5-3b", "qwen2", (2048, 11008, 36, 16, 2, 128, 151936), tied=True, context=32768
        ),
        _shape(
            "qwen2.5-7b", "qwen2", (3584, 18944, 28, 28, 4, 128, 152064), tied=False, context=32768
        ),
        _shape(
            "qwen3-0.6b", "qwen3", (1024, 3072, 28, 16, 8, 128, 151936), tied=True, context=40960
        ),
        _shape(
            "qwen3-1.7b", "qwen3", (2048, 6144, 28, 16, 8, 128, 151936), tied=True, context=40960
        ),
        _shape("qwen3-4b", "qwen3", (2560, 9728, 36, 32, 8, 128, 151936), tied=True, context=40960),
        _shape(
            "qwen3-8b", "qwen3", (4096, 12288, 36, 32, 8, 128, 151936), tied=False, context=40960
        ),
        _shape(
            "qwen3-30b-a3b",
            "qwen3_moe",
            (2048, 6144, 48, 32, 4, 128, 151936),
            tied=False,
            context=40960,
            experts=Experts(128, 8, 768),
        ),
        _shape(
            "gemma-2-2b",
            "gemma2",
            (2304, 9216, 26, 8, 4, 256, 256000),
            tied=True,
            context=8192,
            window=4096,
        ),
        _shape(
            "gemma-3-1b",
            "gemma3_text",
            (1152, 6912, 26, 4, 1, 256, 262144),
            tied=True,
            context=32768,
            window=512,
        ),
        _shape(
            "phi-3-mini-4k", "phi3", (3072, 8192, 32, 32, 32, 96, 32064), tied=False, context=4096
        ),
    )
}
