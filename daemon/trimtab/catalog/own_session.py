"""A variant's graph under onnxruntime with KV buffers of ours, for proofs: one conversation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

_TYPES: Final[dict[str, Any]] = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
    "int4": np.uint8,
}
_PAST: Final = "past_key_values."
_FILLED: Final = {"input_ids", "attention_mask", "logits_indices"}


class OwnSession:
    """Reads tokens into buffers that can be looked at and changed.

    Args:
        request: `folder`, `threads`, `kv` as (layers, heads, head size) and `kv_dtype`.
        graph: The graph's file name.
        positions: Tokens that the buffers hold.

    Attributes:
        length: Tokens that are in the buffers and count.
        buffers: (1, heads, positions, size) by the name of the graph's input.
    """

    def __init__(self, request: dict[str, Any], graph: str, positions: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(request["threads"])
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(Path(request["folder"]) / graph), options)
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        _, heads, head_size = request["kv"]
        size = head_size // 2 if request["kv_dtype"] == "int4" else head_size  # two in a byte
        shape = (1, heads, positions, size)
        self.length = 0
        self.buffers: dict[str, NDArray[Any]] = {
            name: np.zeros(shape, _TYPES[request["kv_dtype"]])
            for name in self._inputs
            if name.startswith(_PAST)
        }

    @property
    def unknown_inputs(self) -> list[str]:
        """Inputs that nobody here fills: such a graph can't be run."""
        return [name for name in self._inputs if name not in self.buffers and name not in _FILLED]

    def read(
        self, tokens: NDArray[np.int64], rows: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Append tokens.

        Args:
            tokens: At least one.
            rows: Whose logits are wanted, where the graph takes `logits_indices`; None for a graph
                that always gives all.

        Returns:
            Logits (rows, vocabulary).
        """
        end = self.length + len(tokens)
        binding = self._session.io_binding()
        binding.bind_cpu_input("input_ids", np.asarray(tokens, np.int64)[None])
        binding.bind_cpu_input("attention_mask", np.ones((1, end), np.int64))
        if rows is not None:
            binding.bind_cpu_input("logits_indices", np.asarray(rows, np.int64))
        for name, buffer in self.buffers.items():
            place = ("cpu", 0, buffer.dtype.type, list(buffer.shape), buffer.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(name.replace("past_key_values", "present"), *place)
        binding.bind_output("logits", "cpu")
        self._session.run_with_iobinding(binding)
        self.length = end
        logits: NDArray[np.float32] = binding.get_outputs()[-1].numpy()[0]
        return logits.astype(np.float32, copy=False)
