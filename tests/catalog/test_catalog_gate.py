"""What builds and is wrong is refused: by its structure, and by what its weights say.

The tiny model's folder is given the marks of what the builder makes of other models. They were read
off real builds: a mistral and a phi3 with a window of 64 in a context of 512 (genai_config.json
names the window and no layers, and no attention node has one), a phi3 with longrope (the tables of
positions come out of an If, whose Greater has its number from a Constant), an olmo (RMS norms), a
granite-moe-hybrid with four experts (no node of experts), and a gemma2 (its windowed layer has it).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from trimtab.catalog.gate import refuse_wrong
from trimtab.catalog.graph import read_graph
from trimtab.errors import CatalogError

TINY = Path(__file__).parent.parent / "tiny"
ON: dict[str, Any] = {"sliding_window": 64, "use_sliding_window": True}
NO_LAYERS: dict[str, Any] = {"window_size": 64, "slide_key_value_cache": False, "layers": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    to = tmp_path / "odd"
    shutil.copytree(TINY / "int4", to, ignore=shutil.ignore_patterns("*.indices.onnx"))
    return to


def call_it(folder: Path, architecture: str, **decoder: Any) -> None:
    """Change what the builder's configuration says of the model."""
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["type"] = architecture
    config["model"]["decoder"] |= decoder
    path.write_text(json.dumps(config))


def give_windows(folder: Path, *windows: int) -> None:
    """Change how many tokens the attention nodes see."""
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    nodes = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    for node, window in zip(nodes, windows, strict=True):
        for attribute in [a for a in node.attribute if a.name == "local_window_size"]:
            node.attribute.remove(attribute)
        node.attribute.append(onnx.helper.make_attribute("local_window_size", window))
    onnx.save(model, str(folder / "model.onnx"))


def give_second_factors(folder: Path, until: int | None) -> None:
    """Have the tables of positions chosen by the length, as the builder does for longrope.

    Args:
        folder: The variant's.
        until: The number that the length is compared with; None: one that is computed.
    """
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    graph, make = model.graph, onnx.helper
    branch = make.make_graph([], "branch", [], [])
    names = ["length", "limit"] if until is not None else ["length", "other_length"]
    if until is not None:
        value = make.make_tensor("value", onnx.TensorProto.INT64, [], [until])
        graph.node.append(make.make_node("Constant", [], ["limit"], value=value))
    graph.node.append(make.make_node("Greater", names, ["longer"]))
    choice = make.make_node(
        "If", ["longer"], ["cos", "sin"], then_branch=branch, else_branch=branch
    )
    graph.node.append(choice)
    for node in [node for node in graph.node if node.op_type == "GroupQueryAttention"]:
        node.input[7], node.input[8] = "cos", "sin"
    onnx.save(model, str(folder / "model.onnx"))


def hugging_face(folder: Path, **fields: Any) -> None:
    (folder / "config.json").write_text(json.dumps(fields))


def check(folder: Path, origin: Path | None = None) -> None:
    refuse_wrong(folder, read_graph(folder), origin)


def test_a_whole_graph_passes(folder: Path) -> None:
    check(folder)
    hugging_face(folder, model_type="llama", sliding_window=None)
    check(folder)


@pytest.mark.parametrize("architecture", ["mistral", "phi3"])
def test_a_window_that_no_layer_keeps_to_is_refused_with_the_way_out(
    folder: Path, architecture: str
) -> None:
    call_it(folder, architecture, sliding_window=NO_LAYERS)

    with pytest.raises(CatalogError, match="window of 64 tokens for 2 layers") as refused:
        check(folder)
    assert "keeps to it in 0" in refused.value.message
    assert "context_length" in refused.value.hint
    assert refused.value.code == "graph_wrong"


def test_a_window_that_is_known_from_hugging_face_alone_is_refused_too(folder: Path) -> None:
    hugging_face(folder, model_type="mistral", sliding_window=512)

    with pytest.raises(CatalogError, match="window of 512 tokens for 2 layers"):
        check(folder)


def test_a_window_as_long_as_the_context_is_none(folder: Path) -> None:
    call_it(folder, "mistral", sliding_window=NO_LAYERS | {"window_size": 2048})
    check(folder)


def test_windows_that_their_layers_keep_to_pass(folder: Path) -> None:
    call_it(folder, "gemma2", sliding_window=NO_LAYERS | {"layers": [0]})
    hugging_face(folder, sliding_window=64, layer_types=["sliding_attention", "full_attention"])
    give_windows(folder, 64, -1)
    check(folder)


def test_a_window_that_some_layers_ignore_is_refused(folder: Path) -> None:
    call_it(folder, "gemma2", sliding_window=NO_LAYERS | {"layers": [0, 1]})
    give_windows(folder, 64, -1)

    with pytest.raises(CatalogError, match="for 2 layers, and the graph keeps to it in 1"):
        check(folder)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"model_type": "gemma2"}, (64, -1)),
        ({"model_type": "gemma2", "sliding_window_pattern": 1}, (64, -1)),
        ({"model_type": "gpt_oss"}, (64, -1)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, (64, -1)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, (64, 64)),
        ({"model_type": "gemma3_text"}, (64, 64)),
        ({"model_type": "qwen2", "max_window_layers": 1, "use_sliding_window": True}, (-1, 64)),
        ({"model_type": "qwen2", "max_window_layers": 0, "use_sliding_window": True}, (64, 64)),
        ({"model_type": "mistral"}, (64, 64)),
    ],
)
def test_windows_are_for_the_layers_that_the_family_has_them_for(
    folder: Path, fields: dict[str, Any], windows: tuple[int, ...]
) -> None:
    """The hub's config.json need not name the layers: the family's own rule holds then."""
    hugging_face(folder, sliding_window=64, **fields)
    give_windows(folder, *windows)
    check(folder)
    give_windows(folder, -1, -1)

    with pytest.raises(CatalogError, match=f"for {windows.count(64)} layers"):
        check(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 64, "use_sliding_window": False},
        {"sliding_window": 64, "model_type": "qwen3"},
        {"model_type": "qwen2", "max_window_layers": 2} | ON,
        {"model_type": "qwen3"} | ON,
    ],
    ids=["switched off", "never switched on", "after the last layer", "after the first 28"],
)
def test_a_window_that_is_not_in_use_is_no_matter(folder: Path, fields: dict[str, Any]) -> None:
    hugging_face(folder, **fields)
    check(folder)


def test_factors_that_change_within_the_context_are_refused_with_the_way_out(folder: Path) -> None:
    give_second_factors(folder, 1024)

    with pytest.raises(CatalogError, match="past 1024 tokens the graph turns") as refused:
        check(folder)
    assert refused.value.code == "graph_wrong"
    assert "context_length" in refused.value.hint
    assert "to 1024 or less" in refused.value.hint


def test_factors_that_change_where_the_context_ends_are_no_matter(folder: Path) -> None:
    give_second_factors(folder, 2048)
    check(folder)


def test_factors_that_change_nobody_knows_where_are_refused(folder: Path) -> None:
    give_second_factors(folder, None)

    with pytest.raises(CatalogError, match="doesn't say where") as refused:
        check(folder)
    assert refused.value.hint == ""


def test_a_norm_of_the_wrong_kind_is_refused(folder: Path) -> None:
    call_it(folder, "olmo")

    with pytest.raises(CatalogError, match="the wrong norm"):
        check(folder)


def test_experts_that_are_left_out_are_refused(folder: Path) -> None:
    call_it(folder, "granitemoehybrid")

    with pytest.raises(CatalogError, match="the builder left them out"):
        check(folder)


def test_a_family_of_experts_without_any_passes_where_its_configuration_says_so(
    folder: Path,
) -> None:
    call_it(folder, "granitemoehybrid")
    hugging_face(folder, num_local_experts=0)
    check(folder)


def test_what_it_was_built_from_counts_where_that_is_at_hand(folder: Path, tmp_path: Path) -> None:
    origin = tmp_path / "weights"
    origin.mkdir()
    hugging_face(origin, num_local_experts=8)

    with pytest.raises(CatalogError, match="mixture of experts"):
        check(folder, origin)


def test_a_damaged_configuration_beside_it_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")

    with pytest.raises(CatalogError, match=r"config\.json: it can't be read as JSON"):
        check(folder)


def test_models_add_refuses_it_in_a_sentence(
    folder: Path, tmp_path: Path, run_models: Callable[..., Any]
) -> None:
    call_it(folder, "olmo")
    done = run_models("add", folder, "--models", tmp_path / "models")

    assert done.code != 0
    assert "wrong norm" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "models" / "odd").exists()
