"""Checks that the second graph gives the first one's logits, bit for bit, on KV buffers of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

STEP: Final = 16


def indices_are_exact(request: dict[str, Any], ids: np.ndarray[Any, Any]) -> bool:
    """Run a prompt in two pieces and some single tokens through both graphs.

    The first piece asks for all rows, the second for none but its last, then one token at a time.

    Args:
        request: `folder`, `graph`, `indices_graph`, `threads`, `kv` as (layers, heads, head size)
            and `kv_dtype`.
        ids: Token ids, at least 64 of them.
    """
    half = len(ids) // 2
    pieces = [(ids[:half], None), (ids[half:-STEP], [len(ids) - STEP - half - 1])]
    pieces += [(ids[at : at + 1], [0]) for at in range(len(ids) - STEP, len(ids))]
    original = list(_run(request, str(request["graph"]), pieces, False))
    edited = _run(request, str(request["indices_graph"]), pieces, True)
    return all(_same(a, b) for a, b in zip(original, edited, strict=True))


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _run(
    request: dict[str, Any],
    graph: str,
    pieces: Iterable[tuple[np.ndarray[Any, Any], list[int] | None]],
    indices: bool,
) -> Iterator[np.ndarray[Any, Any]]:
    """The rows that each piece asks for, and once an empty list where the graph can do it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(request["threads"])
    options.log_severity_level = 3
    session = ort.InferenceSession(str(Path(request["folder"]) / graph), options)
    cache = _cache(session, request)
    done = 0
    for piece, rows in pieces:
        wanted = list(range(len(piece))) if rows is None else rows
        feed: dict[str, Any] = {
            "input_ids": np.asarray(piece, dtype=np.int64)[None],
            "attention_mask": np.ones((1, done + len(piece)), dtype=np.int64),
        }
        if indices:
            feed["logits_indices"] = np.asarray(wanted, dtype=np.int64)
        logits = _step(session, feed, cache)
        done += len(piece)
        yield logits[0] if indices else logits[0, wanted]


def _cache(session: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Empty buffers, one a layer and side, large enough for the check."""
    _, heads, head_size = request["kv"]
    dtypes = {"float32": np.float32, "float16": np.float16, "int8": np.int8}
    dtype = dtypes[request["kv_dtype"]]
    shape = (1, heads, 256, head_size)
    names = [i.name for i in session.get_inputs() if i.name.startswith("past_key_values.")]
    return {name: ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype)) for name in names}


def _step(session: Any, feed: dict[str, Any], cache: dict[str, Any]) -> np.ndarray[Any, Any]:
    binding = session.io_binding()
    for name, value in feed.items():
        binding.bind_cpu_input(name, value)
    for name, buffer in cache.items():
        binding.bind_ortvalue_input(name, buffer)
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), buffer)
    binding.bind_output("logits", "cpu")
    session.run_with_iobinding(binding)
    result: np.ndarray[Any, Any] = binding.get_outputs()[-1].numpy()
    return result
