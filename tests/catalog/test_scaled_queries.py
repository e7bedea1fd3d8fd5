"""Queries scaled before attention, on the tiny model's graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from trimtab.catalog.own_kv import indices_are_exact
from trimtab.catalog.queries import scale_queries
from trimtab.domain.models import SCALED_QUERIES

TINY = Path(__file__).parent.parent / "tiny"
HEAD_SIZE = 16


def read(path: Path = TINY / "int8" / "model.onnx") -> Any:
    return onnx.load(str(path), load_external_data=False)


def layers(model: Any) -> list[Any]:
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def attribute(node: Any, name: str) -> Any:
    return helper.get_attribute_value(next(one for one in node.attribute if one.name == name))


def factors_of(model: Any) -> dict[str, Any]:
    """What queries are multiplied by, by its name."""
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if "query_scale" in tensor.name
    }


def test_the_queries_alone_are_multiplied_and_the_scores_no_more() -> None:
    model = read()
    heads = attribute(layers(model)[0], "num_heads")
    kv_heads = attribute(layers(model)[0], "kv_num_heads")
    scale = attribute(layers(model)[0], "scale")

    assert scale_queries(model, HEAD_SIZE)

    makers = {output: node for node in model.graph.node for output in node.output}
    values = factors_of(model)
    for node in layers(model):
        product = makers[node.input[0]]
        factors = values[product.input[1]]
        assert product.op_type == "Mul"
        assert attribute(node, "scale") == 1
        np.testing.assert_array_equal(factors[: heads * HEAD_SIZE], scale)
        np.testing.assert_array_equal(factors[heads * HEAD_SIZE :], 1)
        assert len(factors) == (heads + 2 * kv_heads) * HEAD_SIZE
    assert [entry.key for entry in model.metadata_props] == [SCALED_QUERIES]


def test_queries_that_come_alone_are_multiplied_alone() -> None:
    model = read()
    for node in layers(model):
        node.input[1], node.input[2] = "keys", "values"

    assert scale_queries(model, HEAD_SIZE)

    (factors,) = factors_of(model).values()
    assert len(factors) == attribute(layers(model)[0], "num_heads") * HEAD_SIZE
    assert len(set(factors.tolist())) == 1


def set_attribute(name: str, value: Any) -> Callable[[Any], None]:
    def change(node: Any) -> None:
        for one in [one for one in node.attribute if one.name == name]:
            node.attribute.remove(one)
        node.attribute.append(helper.make_attribute(name, value))

    return change


def with_input(node: Any) -> None:
    while len(node.input) < 12:
        node.input.append("")
    node.input[11] = "head_sink"


def test_other_numbers_than_of_32_bits_are_left_as_they_are() -> None:
    model = read()
    for entry in model.graph.input:
        if entry.name.startswith("past_"):
            entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16

    assert not scale_queries(model, HEAD_SIZE)


@pytest.mark.parametrize(
    "change",
    [
        set_attribute("scale", 0.0884),
        set_attribute("scale", 0.0),
        set_attribute("scale", 1.0),
        set_attribute("local_window_size", 64),
        set_attribute("softcap", 30.0),
        set_attribute("k_quant_type", "PER_CHANNEL"),
        set_attribute("smooth_softmax", 1),
        with_input,
    ],
    ids=["rounds", "unsaid", "one", "window", "softcap", "quantized", "smooth", "sink"],
)
def test_a_layer_that_cannot_be_scaled_leaves_all_as_they_are(
    change: Callable[[Any], None],
) -> None:
    model = read()
    change(layers(model)[-1])
    before = model.SerializeToString()

    assert not scale_queries(model, HEAD_SIZE)
    assert model.SerializeToString() == before


def test_the_engine_computes_the_same_bits(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TINY / "int4", tmp_path / "int4"))
    request = {
        "folder": str(folder),
        "threads": 1,
        "kv": (2, 2, HEAD_SIZE),
        "kv_dtype": "float32",
        "graph": "model.onnx",
        "indices_graph": "model.indices.onnx",
    }
    tokens = np.arange(96) % 200 + 4

    assert SCALED_QUERIES.encode() in (folder / "model.indices.onnx").read_bytes()
    assert indices_are_exact(request, tokens)
