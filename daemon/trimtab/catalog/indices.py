"""A second graph beside the builder's, whose head runs only for the rows that are asked for.

The builder's graph computes logits for every token of a prompt, although only the last one is
needed. Here a `Gather` over the new input `logits_indices` stands before the head: an empty list
skips the head, all rows give what the original gives, bit for bit. The weights' file is shared, so
the second graph costs some hundred kilobytes. onnxruntime-genai's Generator can't run it; the
decoder that owns its KV cache does. Where it can, it also has its queries scaled before attention
(`trimtab.catalog.queries`).
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import TensorProto, helper

from trimtab.catalog.queries import scale_queries
from trimtab.errors import CatalogError

INDICES_GRAPH: Final = "model.indices.onnx"
INPUT: Final = "logits_indices"
HEADS: Final = ("MatMul", "MatMulNBits", "Gemm")
_ROWS: Final = "logits_rows"
_GATHERED: Final = "/trimtab/logits_rows/output_0"


def write_indices_graph(folder: Path, graph: str, head_size: int, published: str = "") -> str:
    """Write the second graph beside the first.

    One that is there may be named by a manifest: it stays, and if this one has other bytes, they
    are in its name.

    Args:
        folder: The variant's folder.
        graph: The file name of the builder's graph.
        head_size: Numbers of an attention head.
        published: File name of the one that the model's manifest names: it is good enough where
            the folder can't be written.

    Returns:
        The second graph's file name.

    Raises:
        CatalogError: The graph has no head that can be found, or the folder can't be written.
    """
    path = folder / graph
    try:
        model = onnx.load(str(path), load_external_data=False)
        _insert_gather(model.graph, path)
        scale_queries(model, head_size)
        data = model.SerializeToString()
        name = _free_name(folder, data)
        if not (folder / name).exists():
            partial = folder / f".{name}.partial"
            partial.write_bytes(data)
            partial.rename(folder / name)
    except OSError as error:
        if published and (folder / published).is_file():
            return published
        raise CatalogError(f"{folder}: {error.strerror}") from error
    return name


def is_second_graph(name: str) -> bool:
    """True if a file of a variant is one of those that `write_indices_graph` makes."""
    first = Path(INDICES_GRAPH)
    return name == INDICES_GRAPH or (
        name.startswith(f"{first.stem}-") and name.endswith(first.suffix)
    )


def _free_name(folder: Path, data: bytes) -> str:
    """A name under which nothing else lies."""
    first = folder / INDICES_GRAPH
    if not first.exists() or first.read_bytes() == data:
        return INDICES_GRAPH
    return f"{first.stem}-{sha256(data).hexdigest()[:8]}{first.suffix}"


def _insert_gather(graph: Any, path: Path) -> None:
    makers = {output: node for node in graph.node for output in node.output}
    head = _head(makers, path)
    rows = helper.make_tensor_value_info(INPUT, TensorProto.INT64, [_ROWS])
    graph.input.append(rows)
    gather = helper.make_node(
        "Gather", [head.input[0], INPUT], [_GATHERED], name="/trimtab/logits_rows", axis=1
    )
    between = _between(makers, head)
    head.input[0] = _GATHERED
    graph.node.insert(list(graph.node).index(head), gather)
    for info in [info for info in graph.value_info if info.name in between]:
        graph.value_info.remove(info)
    for output in graph.output:
        if output.name == "logits":
            output.type.tensor_type.shape.dim[1].dim_param = _ROWS


def _head(makers: dict[str, Any], path: Path) -> Any:
    """The last matrix product before `logits`."""
    node = makers.get("logits")
    while node is not None and node.op_type not in HEADS:
        sources = [makers[name] for name in node.input if name in makers]
        node = next((source for source in sources if source.op_type != "Constant"), None)
    if node is None:
        raise CatalogError(f"{path}: no matrix product makes the logits")
    return node


def _between(makers: dict[str, Any], head: Any) -> set[str]:
    """Values from the head to the logits, whose recorded shapes no longer hold."""
    names: set[str] = set(head.output)
    node = makers["logits"]
    while node is not head:
        names.update(node.output)
        sources = [makers[name] for name in node.input if name in makers]
        node = next(source for source in sources if source.op_type != "Constant")
    return names
