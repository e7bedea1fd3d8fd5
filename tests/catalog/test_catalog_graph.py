"""What a graph says about itself, and the second graph beside it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import onnx
import pytest

from trimtab.catalog.fingerprint import kv_fingerprint
from trimtab.catalog.graph import read_graph
from trimtab.catalog.indices import write_indices_graph
from trimtab.catalog.manifest import Kv
from trimtab.errors import CatalogError

TINY = Path(__file__).parent.parent / "tiny"


@pytest.fixture
def int8(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY / "int8", tmp_path / "int8"))


@pytest.mark.parametrize("name", ["fp32", "int8", "int4"])
def test_precision_shape_and_positions_are_read_from_the_graph(name: str) -> None:
    facts = read_graph(TINY / name)

    assert facts.precision == name
    assert not facts.mixed
    assert facts.kv == Kv(layers=2, heads=2, head_size=16)
    assert facts.kv_dtype == "float32"
    assert facts.rope.theta == 10000.0
    assert facts.rope.rotary_dim == 16
    assert facts.inputs == ("input_ids", "attention_mask")
    assert facts.files == ("model.onnx", "model.onnx.data")


def test_the_fingerprint_changes_with_all_that_a_cache_depends_on() -> None:
    facts = read_graph(TINY / "int8")
    base = ("m", "tok", facts.kv, "float32", facts.rope, "")
    others = [
        ("other", "tok", facts.kv, "float32", facts.rope, ""),
        ("m", "other", facts.kv, "float32", facts.rope, ""),
        ("m", "tok", Kv(layers=2, heads=1, head_size=16), "float32", facts.rope, ""),
        ("m", "tok", facts.kv, "int8", facts.rope, ""),
        ("m", "tok", facts.kv, "int8", facts.rope, "scales"),
    ]

    prints = {kv_fingerprint(*parts) for parts in (base, *others)}

    assert len(prints) == 6
    assert facts.scales == ""
    assert kv_fingerprint(*base) in prints


def test_the_second_graph_shares_the_weights_and_gathers_before_the_head(int8: Path) -> None:
    name = write_indices_graph(int8, "model.onnx", 16)

    graph = onnx.load(str(int8 / name), load_external_data=False).graph
    gather = next(node for node in graph.node if node.name == "/trimtab/logits_rows")
    head = next(node for node in graph.node if gather.output[0] in node.input)
    assert "logits_indices" in [value.name for value in graph.input]
    assert head.op_type == "MatMulNBits"
    assert head.output[0] == "logits"
    assert (int8 / name).stat().st_size < 30_000
    assert list(int8.glob(".*")) == []


def test_a_graph_without_a_head_has_no_second_graph(int8: Path) -> None:
    model = onnx.load(str(int8 / "model.onnx"), load_external_data=False)
    head = next(node for node in model.graph.node if node.output[0] == "logits")
    model.graph.node.remove(head)
    onnx.save(model, str(int8 / "model.onnx"))

    with pytest.raises(CatalogError, match="no matrix product makes the logits"):
        write_indices_graph(int8, "model.onnx", 16)


def test_a_folder_of_another_kind_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CatalogError) as caught:
        read_graph(tmp_path)

    assert "has no genai_config.json" in caught.value.message
    assert "models build --from" in caught.value.hint


def test_bad_json_is_named_with_line_and_column(int8: Path) -> None:
    (int8 / "genai_config.json").write_text('{"model":\n  {"type": }}', encoding="utf-8")

    with pytest.raises(CatalogError, match=r"genai_config\.json:2:12: Expecting value"):
        read_graph(int8)


def test_a_missing_field_is_named(int8: Path) -> None:
    config = json.loads((int8 / "genai_config.json").read_text(encoding="utf-8"))
    del config["model"]["decoder"]["head_size"]
    (int8 / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")

    with pytest.raises(CatalogError, match="field 'head_size' is missing"):
        read_graph(int8)


def test_a_damaged_graph_is_one_sentence(int8: Path) -> None:
    os.truncate(int8 / "model.onnx", 5000)

    with pytest.raises(CatalogError, match=r"model\.onnx: not an onnx graph, or damaged"):
        read_graph(int8)


def test_missing_weights_are_named(int8: Path) -> None:
    (int8 / "model.onnx.data").unlink()

    with pytest.raises(CatalogError, match=r"lacks model\.onnx\.data"):
        read_graph(int8)


def test_weights_cut_off_before_the_tables_are_named(int8: Path) -> None:
    os.truncate(int8 / "model.onnx.data", 140_000)

    with pytest.raises(CatalogError, match="was cut off"):
        read_graph(int8)


def test_a_graph_that_points_out_of_its_folder_is_refused(int8: Path) -> None:
    model = onnx.load(str(int8 / "model.onnx"), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../other/weights"
    onnx.save(model, str(int8 / "model.onnx"))

    with pytest.raises(CatalogError, match="outside its folder"):
        read_graph(int8)
