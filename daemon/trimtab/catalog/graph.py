"""What a variant's graph says about itself: the shape of its KV cache, its weights, its positions.

It imports onnx and numpy, so only commands that build, add or verify import it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto

from trimtab.catalog.manifest import Kv, KvDtype, Rope
from trimtab.domain.models import other_providers
from trimtab.errors import CatalogError

KV_TYPES: Final[dict[int, KvDtype]] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "int4",
}
WEIGHT_TYPES: Final[dict[int, str]] = {
    TensorProto.FLOAT: "fp32",
    TensorProto.FLOAT16: "fp16",
    TensorProto.BFLOAT16: "bf16",
}
ROPE_ROWS: Final = 256
FIRST_SCALE: Final = 12  # input of GroupQueryAttention: of keys, and the next one of values
GENAI_CONFIG: Final = "genai_config.json"


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What a variant's folder tells without loading it.

    Attributes:
        graph: The graph's file name.
        architecture: The engine's name for the family: `llama`.
        context_length: Tokens that the tables of positions were made for.
        vocabulary: Rows of logits' last dimension.
        kv: Layers, heads and head size of the cache.
        kv_dtype: A name of `domain.models.KV_DTYPE_BYTES`.
        precision: Of most weights: `fp32`, `int8`, `int4`.
        mixed: Whether a second precision holds more than a tenth of the weights.
        rope: How positions are turned into the keys.
        rope_until: Tokens up to which the graph turns keys by the same factors; beyond, it turns
            new ones by others (longrope). None if they never change, 0 if it can't be read.
        inputs: Inputs of the graph other than the cache's.
        providers: Execution providers other than the CPU's that it is built for.
        files: Names of the files that the graph needs, its own first.
        operators: Kinds of nodes in it.
        windows: How many tokens each attention node sees, in the graph's order; 0 for all.
        scales: A hash of what a quantized cache's numbers are multiplied by; empty for others.
    """

    graph: str
    architecture: str
    context_length: int
    vocabulary: int
    kv: Kv
    kv_dtype: KvDtype
    precision: str
    mixed: bool
    rope: Rope
    rope_until: int | None
    inputs: tuple[str, ...]
    providers: tuple[str, ...]
    files: tuple[str, ...]
    operators: frozenset[str]
    windows: tuple[int, ...]
    scales: str


def read_graph(folder: Path) -> GraphFacts:
    """Read genai_config.json and the graph beside it; weights stay on disk.

    Raises:
        CatalogError: A file is missing or damaged, or the graph isn't a text model with a KV cache.
    """
    config = _config(folder)
    try:
        model, decoder = config["model"], config["model"]["decoder"]
        name, head_size = str(decoder["filename"]), int(decoder["head_size"])
        context, vocabulary = int(model["context_length"]), int(model["vocab_size"])
        architecture = str(model["type"])
    except (KeyError, TypeError, ValueError) as error:
        raise CatalogError(
            f"{folder / GENAI_CONFIG}: model: field {error} is missing or not of its kind",
            hint="It isn't the folder of a text model that onnxruntime-genai's builder made.",
        ) from error
    graph = load_graph(folder / name)
    layers, heads, kv_dtype = _cache_shape(graph, folder / name)
    external = _external_files(graph)
    for file in external:
        _inside(folder, file)
    precision, mixed = _precision(graph)
    return GraphFacts(
        graph=name,
        architecture=architecture,
        context_length=context,
        vocabulary=vocabulary,
        kv=Kv(layers=layers, heads=heads, head_size=head_size),
        kv_dtype=kv_dtype,
        precision=precision,
        mixed=mixed,
        rope=_rope(graph, folder),
        rope_until=_rope_until(graph),
        inputs=tuple(i.name for i in graph.input if not i.name.startswith("past_")),
        providers=_providers(decoder),
        files=(name, *external),
        operators=frozenset(node.op_type for node in graph.node),
        windows=_windows(graph),
        scales=_scales(graph, folder),
    )


def _providers(decoder: Any) -> tuple[str, ...]:
    """Those of the configuration's decoder; what isn't of their kind is left to the engine."""
    options = decoder.get("session_options")
    entries = options.get("provider_options") if isinstance(options, dict) else None
    return other_providers(
        name for entry in entries or () if isinstance(entry, dict) for name in entry
    )


def load_graph(path: Path) -> Any:
    """The graph of an onnx file, without its external data.

    Raises:
        CatalogError: It can't be read or isn't onnx.
    """
    try:
        return onnx.load(str(path), load_external_data=False).graph
    except OSError as error:
        raise CatalogError(f"{path}: {error.strerror}") from error
    except Exception as error:  # protobuf's own exceptions share no useful base
        raise CatalogError(f"{path}: not an onnx graph, or damaged: {error}") from error


def _config(folder: Path) -> Any:
    path = folder / GENAI_CONFIG
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CatalogError(
            f"{folder} has no {GENAI_CONFIG}",
            hint="Give the folders of variants that onnxruntime-genai's builder made; a Hugging "
            "Face folder or GGUF is built with `trimtab models build --from`.",
        ) from error
    except OSError as error:
        raise CatalogError(f"{path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise CatalogError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from error
    except ValueError as error:
        raise CatalogError(f"{path}: not JSON: {error}") from error


def _inside(folder: Path, file: str) -> None:
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise CatalogError(f"{folder}: the graph keeps weights in {file}, outside its folder")
    if not (folder / file).is_file():
        raise CatalogError(f"{folder} lacks {file}, which holds the graph's weights")


def _cache_shape(graph: Any, path: Path) -> tuple[int, int, KvDtype]:
    """(layers, KV heads, type), which must be the same for every layer."""
    keys = [i for i in graph.input if i.name.startswith("past_") and i.name.endswith(".key")]
    if not keys:
        raise CatalogError(f"{path}: the graph has no past_key_values: it isn't a text decoder")
    shapes = {
        (i.type.tensor_type.shape.dim[1].dim_value, i.type.tensor_type.elem_type) for i in keys
    }
    if len(shapes) > 1:
        raise CatalogError(f"{path}: layers with KV caches of several shapes aren't supported")
    heads, element = shapes.pop()
    if heads <= 0 or element not in KV_TYPES:
        raise CatalogError(f"{path}: a KV cache of {heads} heads of type {element} isn't supported")
    return len(keys), heads, KV_TYPES[element]


def _external_files(graph: Any) -> list[str]:
    names = {
        entry.value
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(names)


def _attribute(node: Any, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _windows(graph: Any) -> tuple[int, ...]:
    attention = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    return tuple(max(0, _attribute(node, "local_window_size", 0)) for node in attention)


def _precision(graph: Any) -> tuple[str, bool]:
    """The precision of most weights that are multiplied, and whether there is a second one."""
    sizes: Counter[str] = Counter()
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            bits = _attribute(node, "bits", 4)
            sizes[f"int{bits}"] += _attribute(node, "K", 0) * _attribute(node, "N", 0)
        elif node.op_type in ("MatMul", "Gemm"):
            for name in node.input:
                tensor = initializers.get(name)
                if tensor is not None and tensor.data_type in WEIGHT_TYPES:
                    sizes[WEIGHT_TYPES[tensor.data_type]] += math.prod(tensor.dims)
    if not sizes:
        return "unknown", False
    ranked = sizes.most_common()
    return ranked[0][0], sum(size for _, size in ranked[1:]) * 10 > sizes.total()


def _rope(graph: Any, folder: Path) -> Rope:
    """The rotary settings from the attention nodes and their tables of cosines and sines."""
    nodes = [n for n in graph.node if n.op_type == "GroupQueryAttention"]
    turned = [n for n in nodes if len(n.input) > 8 and n.input[7]]
    tables = sorted({(n.input[7], n.input[8]) for n in turned})
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    if len(tables) != 1 or any(name not in initializers for name in tables[0]):
        return Rope(digest="tables:" + ",".join(name for pair in tables for name in pair))
    cos, sin = (_table(initializers[name], folder) for name in tables[0])
    rows = np.concatenate([cos[:ROPE_ROWS], sin[:ROPE_ROWS]]).astype(np.float64)
    theta = _theta(np.arctan2(sin[1].astype(np.float64), cos[1].astype(np.float64)))
    return Rope(
        digest=hashlib.sha256((np.round(rows, 4) + 0.0).tobytes()).hexdigest(),
        theta=theta if len(turned) == len(nodes) else None,  # some layers' keys have no positions
        rotary_dim=2 * int(cos.shape[1]),
        interleaved=bool(_attribute(nodes[0], "rotary_interleaved", 0)),
    )


def _rope_until(graph: Any) -> int | None:
    """Where the tables of positions come out of an If that compares the length with a number."""
    maker = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type != "GroupQueryAttention" or len(node.input) <= 8:
            continue
        chooser = maker.get(node.input[7])
        if chooser is not None and chooser.op_type == "If":
            compared = maker.get(chooser.input[0])
            limits = [_constant(graph, maker, name) for name in compared.input] if compared else []
            return next((limit for limit in limits if limit is not None), 0)
    return None


def _constant(graph: Any, maker: dict[str, Any], name: str) -> int | None:
    """The one number that a name stands for in the graph; None if it is computed."""
    tensor = next((tensor for tensor in graph.initializer if tensor.name == name), None)
    node = maker.get(name)
    if tensor is None and node is not None and node.op_type == "Constant":
        tensor = next((one.t for one in node.attribute if one.name == "value"), None)
    return None if tensor is None else int(onnx.numpy_helper.to_array(tensor).item())


def _scales(graph: Any, folder: Path) -> str:
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    digest, found = hashlib.sha256(), False
    for node in graph.node:
        if node.op_type != "GroupQueryAttention":
            continue
        for name in filter(None, node.input[FIRST_SCALE : FIRST_SCALE + 2]):
            found = True
            tensor = initializers.get(name)
            digest.update(name.encode() if tensor is None else _table(tensor, folder).tobytes())
    return digest.hexdigest() if found else ""


def _table(tensor: Any, folder: Path) -> np.ndarray[Any, Any]:
    """An initializer, read from the weights' file if it lies there."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    if not place:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    count = math.prod(tensor.dims)
    path = folder / place["location"]
    table = np.fromfile(path, dtype=dtype, count=count, offset=int(place.get("offset", 0)))
    if table.size != count:
        raise CatalogError(f"{path} is too short: it was cut off")
    return table.reshape(tuple(tensor.dims))


def _theta(angles: np.ndarray[Any, Any]) -> float | None:
    """The base b for which the angle of pair i is b^(−i/h); None if there is no such base."""
    half = len(angles)
    if half < 2 or angles[1] <= 0:
        return None
    theta = float(angles[1]) ** -half
    expected = theta ** (-np.arange(half) / half)
    if not np.allclose(angles, expected, rtol=2e-3, atol=1e-7):
        return None
    return float(f"{theta:.4g}")
