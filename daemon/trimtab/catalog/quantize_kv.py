"""A variant with an int8 KV cache, made of one with an fp32 cache: `python -m` this, in a child.

The weights stay as they are. In the graph, each attention operator gets a scale for every number
of a key and of a value, and the cache's inputs and outputs become int8: that is all that the
engine's builder does for ``kv_cache_quant_scheme=int8_per_channel``. The scales come from the
evaluation text: the largest number that was seen. Keys are stored after their positions have been
turned into them, so two numbers that are turned together share the length of their vector: at
another position either of them may be that large.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime_genai as og
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from trimtab.catalog.graph import FIRST_SCALE, GraphFacts, read_graph
from trimtab.catalog.indices import is_second_graph
from trimtab.catalog.manifest import Rope
from trimtab.catalog.own_session import OwnSession
from trimtab.errors import BuildError

OPERATOR: Final = "GroupQueryAttention"
_RANGE: Final = 128.0
_PIECE: Final = 64
_WINDOW: Final = 1024


def quantize_kv(source: Path, target: Path, text: str, threads: int) -> None:
    """Write the variant with the int8 cache.

    Args:
        source: The folder of a variant with an fp32 cache.
        target: A new folder; weights are linked into it where the disk allows.
        text: To measure the scales on.
        threads: Engine threads.

    Raises:
        BuildError: The variant's cache isn't fp32, or its graph has other attention operators.
        CatalogError: The folder is damaged.
    """
    facts = read_graph(source)
    if facts.kv_dtype != "float32":
        raise BuildError(f"{source}: its KV cache is {facts.kv_dtype}; only float32 is quantized")
    keys, values = _largest(source, facts, text, threads)
    target.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        if file.name != facts.graph and not is_second_graph(file.name):
            _link(file, target / file.name)
    model = onnx.load(str(source / facts.graph), load_external_data=False)
    _edit(model.graph, keys / _RANGE, values / _RANGE, source)
    onnx.save(model, str(target / facts.graph))


def key_limits(largest: NDArray[np.float32], rope: Rope) -> NDArray[np.float32]:
    """Share the length of a vector among the two numbers that are turned together.

    Args:
        largest: (heads, head size): the greatest length seen, at the first number of each pair.
        rope: Which numbers make a pair.
    """
    limits = largest.copy()
    turned = rope.rotary_dim or largest.shape[-1]
    half = turned // 2
    if rope.interleaved:
        limits[:, 1:turned:2] = limits[:, 0:turned:2]
    else:
        limits[:, half:turned] = limits[:, :half]
    return limits


def pair_lengths(keys: NDArray[np.float32], rope: Rope) -> NDArray[np.float32]:
    """Lengths of the vectors that are turned, at the first number of each pair; else magnitudes."""
    lengths: NDArray[np.float32] = np.abs(keys)
    turned = rope.rotary_dim or keys.shape[-1]
    half = turned // 2
    first = slice(0, turned, 2) if rope.interleaved else slice(0, half)
    second = slice(1, turned, 2) if rope.interleaved else slice(half, turned)
    lengths[..., first] = np.hypot(keys[..., first], keys[..., second])
    return lengths


def _largest(
    source: Path, facts: GraphFacts, text: str, threads: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(layers, heads, head size) for keys and for values: the largest number to expect."""
    size = (facts.kv.layers, facts.kv.heads, facts.kv.head_size)
    keys, values = np.zeros(size, np.float32), np.zeros(size, np.float32)
    for layer, key, value in _caches(source, facts, text, threads):
        lengths = pair_lengths(key, facts.rope).max(axis=1)
        keys[layer] = np.maximum(keys[layer], lengths)
        values[layer] = np.maximum(values[layer], np.abs(value).max(axis=1))
    keys = np.stack([key_limits(layer, facts.rope) for layer in keys])
    return np.maximum(keys, 1e-6), np.maximum(values, 1e-6)


def _caches(
    source: Path, facts: GraphFacts, text: str, threads: int
) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.float32]]]:
    """Layer, keys and values (heads, positions, head size), window by window of the text."""
    ids = np.asarray(og.Tokenizer(str(source)).encode(text), np.int64)
    window = min(_WINDOW, facts.context_length)
    kv = [facts.kv.layers, facts.kv.heads, facts.kv.head_size]
    request = {"folder": str(source), "threads": threads, "kv": kv, "kv_dtype": facts.kv_dtype}
    session = OwnSession(request, facts.graph, window)
    for start in range(0, len(ids), window):
        part = ids[start : start + window]
        session.length = 0
        for at in range(0, len(part), _PIECE):
            session.read(part[at : at + _PIECE])
        for layer in range(facts.kv.layers):
            key, value = (
                session.buffers[f"past_key_values.{layer}.{side}"][0, :, : len(part)]
                for side in ("key", "value")
            )
            yield layer, key, value
        print(f"{start + len(part)} of {len(ids)} tokens measured", flush=True)  # noqa: T201


def _edit(graph: Any, keys: NDArray[np.float32], values: NDArray[np.float32], source: Path) -> None:
    operators = [node for node in graph.node if node.op_type == OPERATOR]
    if len(operators) != len(keys):
        raise BuildError(
            f"{source}: {len(operators)} of {len(keys)} layers use {OPERATOR}; "
            "the cache can only be quantized where all do"
        )
    for layer, node in enumerate(operators):
        names = []
        for side, scale in (("k", keys[layer]), ("v", values[layer])):
            names.append(f"trimtab.layers.{layer}.{side}_scale")
            numbers = np.ascontiguousarray(scale.reshape(-1), np.float32)
            graph.initializer.append(numpy_helper.from_array(numbers, names[-1]))
            node.attribute.append(helper.make_attribute(f"{side}_quant_type", "PER_CHANNEL"))
        node.attribute.append(helper.make_attribute("kv_cache_bit_width", 8))
        node.input.extend([""] * (FIRST_SCALE - len(node.input)) + names)
    for entry in (*graph.input, *graph.output, *graph.value_info):
        if entry.name.startswith(("past_key_values.", "present.")):
            entry.type.tensor_type.elem_type = TensorProto.INT8


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copy2(file, target)


def main() -> None:
    """Read the command line of the child."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    text = asked.text.read_text(encoding="utf-8")
    quantize_kv(asked.source, asked.target, text, asked.threads)


if __name__ == "__main__":
    main()
