"""Attention whose queries are scaled before it, not its scores after: the engine's fast kernel.

GroupQueryAttention multiplies each score by `scale`. onnxruntime has a kernel for a row times a
matrix that reads the keys half as fast again as its others do, and takes it only where nothing is
multiplied: with `scale` 1. So the queries are multiplied instead. A power of two changes no digit
of a floating-point number, and a rotation no length, so that the graph computes the same bits; any
other scale stays where it is. The kernel itself rounds otherwise than flash attention does.

The kernel is only taken with the engine's flash attention off: see `trimtab.worker.attention`.
"""

from __future__ import annotations

from math import frexp
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from trimtab.domain.models import SCALED_QUERIES

_OPERATOR: Final = "GroupQueryAttention"
_PLAIN: Final = {
    "num_heads",
    "kv_num_heads",
    "scale",
    "do_rotary",
    "rotary_interleaved",
    "local_window_size",
    "softcap",
}
_OFF: Final = {"local_window_size": -1, "softcap": 0.0}
_FLOAT: Final = TensorProto.FLOAT
_KEYS: Final = 3
_KNOWN_INPUTS: Final = 9
"""Up to the cosines and sines; what comes after changes the scores, or gives another kernel."""


def scale_queries(model: Any, head_size: int) -> bool:
    """Scale the queries of all layers, if all of them can be; the model is marked then.

    Args:
        model: The graph, which is changed.
        head_size: Numbers of a head.

    Returns:
        True if they were.
    """
    layers = [node for node in model.graph.node if node.op_type == _OPERATOR]
    caches = {i.name for i in model.graph.input if i.type.tensor_type.elem_type == _FLOAT}
    if not layers or not all(_can_be_scaled(node, caches) for node in layers):
        return False
    scales: dict[tuple[float, int, int], str] = {}
    for node in layers:
        _scale(model.graph, node, head_size, scales)
    entry = model.metadata_props.add()
    entry.key, entry.value = SCALED_QUERIES, "1"
    return True


def _attributes(node: Any) -> dict[str, Any]:
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def _can_be_scaled(node: Any, caches: set[str]) -> bool:
    """True if nothing else happens to the scores, and all is computed in numbers of 32 bits."""
    attributes = _attributes(node)
    scale = float(attributes.get("scale", 0.0))
    return (
        set(attributes) <= _PLAIN
        and all(attributes.get(name, off) == off for name, off in _OFF.items())
        and not any(node.input[_KNOWN_INPUTS:])
        and node.input[_KEYS] in caches
        and scale > 0
        and scale != 1
        and frexp(scale)[0] == 0.5
    )


def _scale(
    graph: Any, node: Any, head_size: int, scales: dict[tuple[float, int, int], str]
) -> None:
    """Put a product before the layer's queries, which may come in one row with keys and values."""
    attributes = _attributes(node)
    queries = attributes["num_heads"] * head_size
    others = 0 if node.input[1] else 2 * attributes["kv_num_heads"] * head_size
    key = (attributes["scale"], queries, others)
    if key not in scales:
        scales[key] = f"/trimtab/query_scale/{len(scales)}"
        factors = np.ones(queries + others, np.float32)
        factors[:queries] = attributes["scale"]
        graph.initializer.append(numpy_helper.from_array(factors, scales[key]))
    scaled = f"{node.name}/trimtab/scaled_query"
    product = helper.make_node("Mul", [node.input[0], scales[key]], [scaled], name=scaled)
    graph.node.insert(list(graph.node).index(node), product)
    node.input[0] = scaled
    next(entry for entry in node.attribute if entry.name == "scale").f = 1.0
