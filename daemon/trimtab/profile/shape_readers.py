"""Shapes from a Hugging Face `config.json` or a GGUF header; what is missing is said or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.catalog.gguf import Header, read_header
from trimtab.errors import BuildError, UsageError
from trimtab.profile.shape import Experts, Shape

MAX_BYTES: Final = 4 * 1024 * 1024
OUTPUT: Final = "output.weight"
"""The tensor of a GGUF that turns the last layer's output into tokens."""
MOST: Final[dict[str, int]] = {
    "layers": 1024,
    "width": 1 << 20,
    "vocabulary": 1 << 24,
    "context": 1 << 28,
    "experts": 4096,
}
"""What no model has: a figure beyond is a mistake in the file."""

GATED: Final = frozenset(
    (
        "llama",
        "mistral",
        "mistral3",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "phi3",
        "phimoe",
        "smollm3",
        "granite",
        "granitemoe",
        "olmo",
        "olmo2",
        "olmoe",
        "cohere",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek2",
        "stablelm",
        "internlm2",
        "exaone",
        "exaone4",
        "nemotron_h",
        "gpt_oss",
        "gpt-oss",
        "minicpm",
        "glm",
        "glm4",
        "qwen2moe",
        "qwen3moe",
        "arcee",
    )
)
PLAIN: Final = frozenset(
    (
        "gpt2",
        "gptj",
        "gpt_neox",
        "gpt_neo",
        "falcon",
        "opt",
        "bloom",
        "mpt",
        "phi",
        "phi2",
        "starcoder",
        "starcoder2",
        "nemotron",
    )
)


class _Fields:
    """Numbers of a configuration, each checked; names are those of the file.

    Args:
        values: The file's fields.
        where: The file.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def number(self, most: int, *names: str) -> int | None:
        """The first of these fields that is there.

        Raises:
            UsageError: It is no number, or an absurd one.
        """
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, list):
                value = max((one for one in value if isinstance(one, int)), default=None)
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{self.where}: {name}: must be a whole number, not {value!r}")
            if not 0 <= value <= most:
                raise UsageError(f"{self.where}: {name}: {value} is no size that a model has")
            return value
        return None

    def needed(self, most: int, *names: str) -> int:
        """The same, refused if it isn't there or zero."""
        value = self.number(most, *names)
        if not value:
            raise UsageError(
                f"{self.where}: {names[0]}: is missing",
                hint="Give the model's own config.json, or its GGUF file.",
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A true or false."""
        value = self._values.get(name, default)
        return value if isinstance(value, bool) else default

    def text(self, name: str) -> str:
        """A text; empty if it isn't there."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""


def read_shape(path: Path) -> Shape:
    """The shape in a file: GGUF by its first bytes, else JSON; a folder's `config.json`.

    Raises:
        UsageError: It can't be read, or isn't a language model's configuration.
    """
    if path.is_dir():
        path = path / "config.json"
    try:
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return parse_gguf(read_header(path), str(path))
            file.seek(0)
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except BuildError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path}: neither a GGUF nor a configuration: it is too large")
    try:
        values = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: neither a GGUF nor JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: this is no configuration: it is no JSON object")
    return parse_config(values, str(path))


def parse_config(values: Mapping[str, Any], where: str) -> Shape:
    """A Hugging Face configuration; the text part of one that sees as well.

    Raises:
        UsageError: A field is missing or absurd; it names file and field.
    """
    inner = values.get("text_config")
    if isinstance(inner, dict):
        values = {**values, **inner}
    fields = _Fields(values, where)
    architecture = fields.text("model_type")
    assumed: list[str] = []
    hidden = fields.needed(MOST["width"], "hidden_size", "n_embd", "d_model")
    layers = fields.needed(MOST["layers"], "num_hidden_layers", "n_layer", "n_layers")
    heads = fields.needed(MOST["width"], "num_attention_heads", "n_head", "n_heads")
    kv_heads = fields.number(MOST["width"], "num_key_value_heads", "n_head_kv")
    if kv_heads is None:
        kv_heads = heads
        assumed.append("num_key_value_heads isn't given: full attention")
    intermediate = fields.number(
        MOST["width"], "intermediate_size", "n_inner", "ffn_dim", "moe_intermediate_size"
    )
    if not intermediate:
        intermediate = 4 * hidden
        assumed.append("intermediate_size isn't given: four times hidden_size")
    tied = fields.flag("tie_word_embeddings", architecture in PLAIN or _gemma(architecture))
    latent = (fields.number(MOST["width"], "kv_lora_rank") or 0) and (
        fields.needed(MOST["width"], "kv_lora_rank")
        + (fields.number(MOST["width"], "qk_rope_head_dim") or 0)
    )
    return _checked(
        Shape(
            name=fields.text("_name_or_path") or Path(where).parent.name or where,
            architecture=architecture or "unknown",
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_size=fields.number(MOST["width"], "head_dim") or max(1, hidden // heads),
            intermediate=intermediate,
            vocabulary=fields.needed(MOST["vocabulary"], "vocab_size"),
            tied=tied,
            gated=_is_gated(architecture, assumed),
            context_length=fields.number(
                MOST["context"], "max_position_embeddings", "n_positions", "n_ctx"
            )
            or 0,
            experts=_experts(fields, intermediate),
            latent_kv=latent,
            window=_window(fields),
            source=where,
        ),
        assumed,
    )


def parse_gguf(header: Header, where: str) -> Shape:
    """The header of a GGUF.

    Raises:
        UsageError: A field is missing or absurd; it names file and field.
    """
    fields = _Fields(header.values, where)
    architecture = fields.text("general.architecture")
    if not architecture:
        raise UsageError(f"{where}: general.architecture: is missing")
    assumed: list[str] = []
    prefix = f"{architecture}."
    hidden = fields.needed(MOST["width"], f"{prefix}embedding_length")
    heads = fields.needed(MOST["width"], f"{prefix}attention.head_count")
    kv_heads = fields.number(MOST["width"], f"{prefix}attention.head_count_kv")
    if kv_heads is None:
        kv_heads = heads
        assumed.append("attention.head_count_kv isn't given: full attention")
    head_size = fields.number(MOST["width"], f"{prefix}attention.key_length")
    vocabulary = fields.number(
        MOST["vocabulary"], f"{prefix}vocab_size", "tokenizer.ggml.tokens.count"
    )
    if not vocabulary:
        raise UsageError(f"{where}: {prefix}vocab_size: is missing, and so are the tokens")
    count = fields.number(MOST["experts"], f"{prefix}expert_count") or 0
    intermediate = fields.needed(
        MOST["width"], f"{prefix}feed_forward_length", f"{prefix}expert_feed_forward_length"
    )
    experts = None
    if count:
        inner = fields.number(MOST["width"], f"{prefix}expert_feed_forward_length")
        active = fields.needed(MOST["experts"], f"{prefix}expert_used_count")
        experts = Experts(count, active, inner or intermediate)
    return _checked(
        Shape(
            name=fields.text("general.name") or Path(where).stem,
            architecture=architecture,
            hidden=hidden,
            layers=fields.needed(MOST["layers"], f"{prefix}block_count"),
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size or max(1, hidden // heads),
            intermediate=intermediate,
            vocabulary=vocabulary,
            tied=_is_tied(header, assumed),
            gated=_is_gated(architecture, assumed),
            context_length=fields.number(MOST["context"], f"{prefix}context_length") or 0,
            experts=experts,
            window=fields.number(MOST["context"], f"{prefix}attention.sliding_window") or 0,
            source=where,
        ),
        assumed,
    )


def _is_tied(header: Header, assumed: list[str]) -> bool:
    """Whether the output uses the embedding's weights: it has none of its own in the file then."""
    if OUTPUT in header.tensors:
        return False
    parts = header.values.get("split.count", 1)
    if not header.tensors or (isinstance(parts, int) and parts > 1):
        assumed.append("this file doesn't say whether the output is tied: taken as tied")
    return True


def _experts(fields: _Fields, intermediate: int) -> Experts | None:
    count = fields.number(MOST["experts"], "num_local_experts", "num_experts", "n_routed_experts")
    if not count:
        return None
    active = fields.needed(
        MOST["experts"], "num_experts_per_tok", "experts_per_token", "moe_topk", "top_k"
    )
    if active > count:
        raise UsageError(f"{fields.where}: num_experts_per_tok: {active} of {count} experts")
    inner = fields.number(MOST["width"], "moe_intermediate_size") or intermediate
    shared = fields.number(MOST["width"], "shared_expert_intermediate_size") or inner * (
        fields.number(MOST["experts"], "n_shared_experts") or 0
    )
    dense = fields.number(MOST["layers"], "first_k_dense_replace") or 0
    return Experts(count, active, inner, shared, dense)


def _window(fields: _Fields) -> int:
    """Tokens that windowed layers look back; some configurations name a window they don't use."""
    used = fields.flag("use_sliding_window", True)
    return (fields.number(MOST["context"], "sliding_window") or 0) if used else 0


def _is_gated(architecture: str, assumed: list[str]) -> bool:
    if architecture in GATED or _gemma(architecture):
        return True
    if architecture in PLAIN:
        return False
    assumed.append(
        f"the architecture {architecture or '(none given)'} isn't known here: "
        "taken as one like llama (gated feed-forward part, no windows)"
    )
    return True


def _gemma(architecture: str) -> bool:
    return architecture.startswith("gemma")


def _checked(shape: Shape, assumed: list[str]) -> Shape:
    """Refuse what can't be; say what was assumed."""
    if shape.heads % max(1, shape.kv_heads):
        raise UsageError(
            f"{shape.source}: {shape.heads} attention heads can't share {shape.kv_heads} KV heads"
        )
    if shape.latent_kv:
        assumed.append("latent attention: its projections are counted as grouped-query attention's")
    return replace(shape, assumed=tuple(assumed))
