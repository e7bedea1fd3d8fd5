"""What builds and is wrong: graphs that leave out a part of their model.

The engine's builder makes some graphs that load, generate and prove themselves on short texts, and
compute another model: a sliding window that no layer keeps to, experts that aren't there, a norm of
the wrong kind. Here a graph is held against what its folder says of the model: the builder's own
genai_config.json, and Hugging Face's config.json where it is at hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.catalog.graph import GENAI_CONFIG, GraphFacts
from trimtab.errors import CatalogError

HF_CONFIG: Final = "config.json"
WITHOUT_MEAN: Final = frozenset(
    {"SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization"}
)
EXPERTS: Final = frozenset({"MoE", "QMoE", "GatherMatMul", "GatherMatMulNBits"})
NORMS_BY_MEAN: Final = ("olmo",)
"""Families that take the mean off; the builder gives these an RMS norm."""

SWITCHED_ON: Final = ("qwen2", "qwen3")
"""Families whose window is only in use where the configuration says so."""

WHOLE_LAYERS: Final = 28
"""Their first layers without it, where the configuration doesn't say how many."""

FULL_EVERY: Final = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6}
"""Families in which every so manyth layer attends to everything, and the others to the window."""

PATTERNED: Final = ("gemma3", "gemma3_text")
"""Those of them whose configuration may have another number (`sliding_window_pattern`)."""

EXPERT_FAMILIES: Final = ("gptoss", "mixtral")
"""Families of experts whose names don't say so."""


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window that a model should have.

    Attributes:
        tokens: How many tokens a layer of it sees.
        layers: How many layers it is for.
        file: The file that says so.
    """

    tokens: int
    layers: int
    file: Path


def refuse_wrong(folder: Path, facts: GraphFacts, origin: Path | None = None) -> None:
    """Refuse a graph that leaves out a part of its model.

    Args:
        folder: The variant's folder.
        facts: What its graph says.
        origin: The Hugging Face folder that it was built from, where that is at hand.

    Raises:
        CatalogError: With the reason and, where there is one, the way out.
    """
    source = _hugging_face_config(origin or folder)
    architecture = facts.architecture
    if architecture in NORMS_BY_MEAN and facts.operators & WITHOUT_MEAN:
        raise CatalogError(
            f"{folder}: {architecture}'s norm takes the mean off, and the graph's norm doesn't: "
            "the builder writes the wrong norm for it, and the model talks nonsense",
            hint="This family can't be used with this builder.",
            code="graph_wrong",
        )
    if _has_experts(architecture, source) and not facts.operators & EXPERTS:
        raise CatalogError(
            f"{folder}: {architecture} is a mixture of experts, and the graph has none: the "
            "builder left them out",
            hint="This family can't be used with this builder.",
            code="graph_wrong",
        )
    _refuse_second_factors(folder, facts)
    for window in _windows(folder, source, origin or folder, facts.kv.layers):
        _refuse_ignored(folder, window, facts)


def _refuse_second_factors(folder: Path, facts: GraphFacts) -> None:
    until = facts.rope_until
    if until == 0:
        raise CatalogError(
            f"{folder}: the graph turns keys by other factors in long texts (longrope), and "
            "doesn't say where they change",
            code="graph_wrong",
        )
    if until is not None and until < facts.context_length:
        raise CatalogError(
            f"{folder}: past {until} tokens the graph turns new keys by other factors (longrope), "
            "and those in the KV cache stay as they are: the model goes wrong there",
            hint=f"Set model.context_length in {folder / GENAI_CONFIG} to {until} or less: up to "
            "there the graph is right.",
            code="graph_wrong",
        )


def _refuse_ignored(folder: Path, window: Window, facts: GraphFacts) -> None:
    kept = sum(1 for tokens in facts.windows if 0 < tokens <= window.tokens)
    if window.tokens < facts.context_length and kept < window.layers:
        raise CatalogError(
            f"{folder}: {window.file} has a sliding window of {window.tokens} tokens for "
            f"{window.layers} layers, and the graph keeps to it in {kept}: past "
            f"{window.tokens} tokens the model goes wrong",
            hint=f"Set model.context_length in {folder / GENAI_CONFIG} to {window.tokens} "
            "or less: up to there the graph is right.",
            code="graph_wrong",
        )


def _windows(folder: Path, source: Mapping[str, Any], origin: Path, layers: int) -> list[Window]:
    """Windows that the builder's configuration speaks of, and Hugging Face's."""
    found = []
    path = folder / GENAI_CONFIG
    decoder = _object(_read_json(path).get("model")).get("decoder")
    said = _object(_object(decoder).get("sliding_window"))
    tokens = said.get("window_size")
    if isinstance(tokens, int) and tokens > 0:
        named = said.get("layers") or range(layers)  # none named: a window that all should have
        found.append(Window(tokens, len(named), path))
    tokens = source.get("sliding_window")
    in_use = source.get("use_sliding_window", source.get("model_type") not in SWITCHED_ON)
    if isinstance(tokens, int) and tokens > 0 and in_use:
        found.append(Window(tokens, _windowed_layers(source, layers), origin / HF_CONFIG))
    return found


def _windowed_layers(source: Mapping[str, Any], layers: int) -> int:
    """How many layers have the window.

    A folder from a hub often doesn't say which: then it is as transformers 5.24 has it for the
    family (`configuration_gemma2.py` and its like), which is all layers unless it is named here.
    """
    kinds, family = source.get("layer_types"), source.get("model_type")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(1 for kind in kinds if kind == "sliding_attention")
    if family in SWITCHED_ON:
        whole = source.get("max_window_layers")
        return max(0, layers - (whole if isinstance(whole, int) else WHOLE_LAYERS))
    every = FULL_EVERY.get(str(family))
    if every is None:
        return layers
    told = source.get("sliding_window_pattern") if family in PATTERNED else None
    return layers - layers // (told if isinstance(told, int) and told > 0 else every)


def _has_experts(architecture: str, source: Mapping[str, Any]) -> bool:
    for field in ("num_local_experts", "num_experts", "n_routed_experts"):
        if isinstance(source.get(field), int):
            return bool(source[field] > 1)
    return "moe" in architecture or architecture in EXPERT_FAMILIES


def _hugging_face_config(folder: Path) -> dict[str, Any]:
    path = folder / HF_CONFIG
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _object(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CatalogError(f"{path}: it can't be read as JSON: {error}") from error


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
