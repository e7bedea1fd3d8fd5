"""A variant with a quantized KV cache, made of one without by what the engine's builder changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from trimtab.worker.decoder import Place
from trimtab.worker.kv_cache import new_segment
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.variant import read_variant


def measured_scales(folder: Path, prompt: list[int], bits: int) -> NDArray[np.float32]:
    """One for each plane, head and number: the largest that was seen, over the type's range."""
    decoder = KvDecoder(read_variant(folder), 1, 512)
    segment = new_segment(decoder.shape.segment_bytes(512))
    cache = decoder.open(Place(512, segment))
    decoder.prefill(cache, prompt, last=False)
    decoder.close(cache)
    shape = decoder.shape
    data = os.pread(segment, shape.segment_bytes(512), 0)
    os.close(segment)
    numbers = np.frombuffer(data, np.float32).reshape(shape.planes, shape.kv_heads, 512, -1)
    largest = np.abs(numbers[:, :, : len(prompt)]).max(axis=2)
    return (largest * 1.2 / 2 ** (bits - 1)).astype(np.float32)


def quantize_kv(source: Path, target: Path, prompt: list[int], bits: int) -> None:
    """Copy a variant and give its graph a KV cache of int8 or int4."""
    scales = measured_scales(source, prompt, bits)
    shutil.copytree(source, target)
    path = target / "model.onnx"
    model: Any = onnx.load(str(path), load_external_data=False)
    size = scales.shape[2] * bits // 8
    kind = TensorProto.INT8 if bits == 8 else TensorProto.UINT8
    for entry in (*model.graph.input, *model.graph.output):
        if entry.name.startswith(("past_key_values", "present")):
            entry.type.tensor_type.elem_type = kind
            entry.type.tensor_type.shape.dim[3].dim_value = size
    layer = 0
    for node in model.graph.node:
        if node.op_type != "GroupQueryAttention":
            continue
        names = []
        for side, plane in (("k", 2 * layer), ("v", 2 * layer + 1)):
            names.append(f"layers.{layer}.{side}_scale")
            scale = numpy_helper.from_array(scales[plane].reshape(-1), names[-1])
            model.graph.initializer.append(scale)
            quantized = helper.make_attribute(f"{side}_quant_type", "PER_CHANNEL")
            node.attribute.append(quantized)
        node.attribute.append(helper.make_attribute("kv_cache_bit_width", bits))
        node.input.extend([""] * (12 - len(node.input)) + names)
        layer += 1
    del model.graph.value_info[:]
    onnx.save(model, str(path))
