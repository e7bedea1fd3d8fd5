"""What a variant's ``genai_config.json`` says about its graph and its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.domain.models import other_providers
from trimtab.errors import LoadError

CONFIG_NAME: Final = "genai_config.json"
_VERIFY: Final = "`trimtab models verify` says which files differ from what was built"


class SlidingWindow(msgspec.Struct, frozen=True):
    """Layers that only see the last tokens.

    Attributes:
        window_size: How many tokens they see.
        layers: Which layers; empty means all.
    """

    window_size: int = 0
    layers: list[int] = []


class DecoderNames(msgspec.Struct, frozen=True):
    """Names of a graph's inputs or outputs, with ``%d`` for the layer."""

    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    past_key_names: str = "past_key_values.%d.key"
    past_value_names: str = "past_key_values.%d.value"
    present_key_names: str = "present.%d.key"
    present_value_names: str = "present.%d.value"
    logits: str = "logits"


class SessionOptions(msgspec.Struct, frozen=True):
    """How the engine is to run it.

    Attributes:
        provider_options: Execution providers, best first, each by its name with its options.
    """

    provider_options: list[dict[str, Any]] = []


class DecoderFacts(msgspec.Struct, frozen=True):
    """The graph that decodes, as its builder described it."""

    filename: str
    head_size: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    inputs: DecoderNames = DecoderNames()
    outputs: DecoderNames = DecoderNames()
    sliding_window: SlidingWindow | None = None
    session_options: SessionOptions = SessionOptions()

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers other than the CPU's that it is built for."""
        options = self.session_options.provider_options
        return other_providers(name for entry in options for name in entry)


class _Model(msgspec.Struct):
    type: str
    vocab_size: int
    context_length: int
    decoder: DecoderFacts
    eos_token_id: int | list[int] = []
    bos_token_id: int | None = None


class _Config(msgspec.Struct):
    model: _Model


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """A variant's folder and what its configuration says.

    Attributes:
        folder: Where it is.
        family: The builder's name of the architecture: ``llama``.
        vocabulary: Number of token ids that the graph knows.
        context: Most tokens that it was built for.
        eos: Token ids that end an answer.
        bos: Token id that begins a text, if the model has one.
        decoder: The graph.
    """

    folder: Path
    family: str
    vocabulary: int
    context: int
    eos: frozenset[int]
    bos: int | None
    decoder: DecoderFacts


def read_variant(folder: Path) -> VariantFacts:
    """Read a variant's configuration and see that its graph is there.

    Raises:
        LoadError: The folder, its configuration or its graph is missing or damaged.
    """
    path = folder / CONFIG_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadError(
            f"{path}: {error.strerror}",
            hint="`trimtab models list` shows the variants that are there",
            code="model_missing",
        ) from error
    facts = parse_variant(data, folder)
    graph = folder / facts.decoder.filename
    if not graph.is_file():
        raise LoadError(f"{graph} is missing", hint=_VERIFY, code="model_damaged")
    return facts


def parse_variant(data: bytes, folder: Path) -> VariantFacts:
    """Parse the content of ``genai_config.json``.

    Raises:
        LoadError: It is damaged, or a field that is needed is missing.
    """
    try:
        model = msgspec.json.decode(data, type=_Config).model
    except msgspec.DecodeError as error:
        raise LoadError(
            f"{folder / CONFIG_NAME}: {error}", hint=_VERIFY, code="model_damaged"
        ) from error
    eos = model.eos_token_id if isinstance(model.eos_token_id, list) else [model.eos_token_id]
    return VariantFacts(
        folder=folder,
        family=model.type,
        vocabulary=model.vocab_size,
        context=model.context_length,
        eos=frozenset(eos),
        bos=model.bos_token_id,
        decoder=model.decoder,
    )
