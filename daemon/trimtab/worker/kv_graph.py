"""A variant's graph under onnxruntime, with every buffer that it reads and writes named by us."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from trimtab.domain.kv import KvShape
from trimtab.errors import EngineError, LoadError
from trimtab.worker.attention import Attention
from trimtab.worker.decoder import InterruptedRunError
from trimtab.worker.variant import DecoderFacts, VariantFacts

INDICES: Final = "logits_indices"
_GIVE_BACK: Final = ("memory.enable_memory_arena_shrinkage", "cpu:0")
"""After a run with it the engine gives memory back that nothing lies in."""

FIRST_ROW: Final = np.zeros(1, np.int64)
"""`INDICES` where one token is read: the same array each time, so that it stays bound."""

_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(uint8)": np.dtype(np.uint8),
}


class UnsuitableError(LoadError):
    """The own-KV decoder can't serve this graph; the Generator may."""

    code = "graph_unsuitable"


@dataclass(frozen=True, slots=True)
class KvType:
    """One plane of the KV cache as the graph declares it.

    Attributes:
        layers: Layers with a KV cache.
        heads: KV heads.
        size: Numbers of one head at one position, as they are stored.
        dtype: Of a number.
    """

    layers: int
    heads: int
    size: int
    dtype: np.dtype[Any]

    @property
    def shape(self) -> KvShape:
        """Where things lie in a segment."""
        return KvShape(self.layers, self.heads, self.size * self.dtype.itemsize)


class KvGraph:
    """A session and the names of what it takes.

    Args:
        facts: The variant.
        threads: Engine threads.
        indices_graph: File name of the graph with ``logits_indices``; empty if there is none.
        context: Most tokens of a conversation.

    Attributes:
        session: onnxruntime's session.
        attention: How it is computed.
        kv: The KV cache that it wants.
        has_indices: True if it computes logits only for the rows that it is told.

    Raises:
        UnsuitableError: The graph needs something that this decoder doesn't give.
        LoadError: The engine refuses the graph.
    """

    def __init__(self, facts: VariantFacts, threads: int, indices_graph: str, context: int) -> None:
        refuse_other_providers(facts)
        refuse_ignored_window(facts)
        path = facts.folder / (indices_graph or facts.decoder.filename)
        if not path.is_file():
            path = facts.folder / facts.decoder.filename
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads that spin while they wait win nothing where a core is shared: on two busy cores
        # one step took 22 ms without and 230 ms with it.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.attention = Attention(facts, path, context)
        try:
            with self.attention.chosen():
                self.session = ort.InferenceSession(
                    str(path), options, providers=["CPUExecutionProvider"]
                )
        except Exception as error:  # the engine raises a kind of its own for each fault
            raise LoadError(
                f"{path}: the engine refuses the variant: {error}",
                hint="`trimtab models verify` tells whether its files are whole",
            ) from error
        self._options = ort.RunOptions()
        self._last_options = ort.RunOptions()
        self._last_options.add_run_config_entry(*_GIVE_BACK)
        inputs = {entry.name: entry for entry in self.session.get_inputs()}
        self.kv = kv_type(facts.decoder, inputs)
        self.has_indices = INDICES in inputs
        self._decoder = facts.decoder

    def interrupt(self, wanted: bool) -> None:
        """End the run that is on its way, and all later ones, until it isn't wanted any more."""
        self._options.terminate = wanted
        self._last_options.terminate = wanted

    def run(self, binding: Any, last: bool) -> None:
        """Compute. The interpreter is free for other threads meanwhile.

        Args:
            binding: The engine's.
            last: True if no run of its size follows: the memory that it took is given back.

        Raises:
            InterruptedRunError: `interrupt` came meanwhile.
            EngineError: The engine failed.
        """
        options = self._last_options if last else self._options
        try:
            self.session.run_with_iobinding(binding, options)
        except Exception as error:  # the engine raises a kind of its own for each fault
            if options.terminate:
                raise InterruptedRunError("the run was given up") from error
            raise EngineError(f"the engine failed: {error}") from error

    def key_value_names(self, layer: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """Input and output of the layer's keys, and of its values."""
        inputs, outputs = self._decoder.inputs, self._decoder.outputs
        return (
            (inputs.past_key_names % layer, outputs.present_key_names % layer),
            (inputs.past_value_names % layer, outputs.present_value_names % layer),
        )

    def bind_cache(self, address: int, batch: int, capacity: int) -> Binding:
        """A binding whose KV inputs and outputs are one and the same memory.

        Args:
            address: Of an array (planes, batch, heads, capacity, size).
            batch: Conversations in it.
            capacity: Positions of each.
        """
        binding = self.session.io_binding()
        dtype = self.kv.dtype.type
        shape = [batch, self.kv.heads, capacity, self.kv.size]
        plane_bytes = batch * self.kv.shape.plane_bytes(capacity)
        plane = 0
        for layer in range(self.kv.layers):
            for past, present in self.key_value_names(layer):
                at = address + plane * plane_bytes
                binding.bind_input(past, "cpu", 0, dtype, shape, at)
                binding.bind_output(present, "cpu", 0, dtype, shape, at)
                plane += 1
        return Binding(self, binding, self._decoder)


class Binding:
    """A graph and the memory that its runs read and write; made by `KvGraph.bind_cache`.

    Arrays that are bound are kept, and not bound again: a run fills the processor's caches with
    weights, so that each call of Python's costs ten times as much after it.

    Args:
        graph: The graph.
        binding: The engine's, with the KV cache bound.
        decoder: Names of the other inputs and outputs.
    """

    def __init__(self, graph: KvGraph, binding: Any, decoder: DecoderFacts) -> None:
        self._graph = graph
        self._binding = binding
        self._tokens_name = decoder.inputs.input_ids
        self._mask_name = decoder.inputs.attention_mask
        self._logits_name = decoder.outputs.logits
        self._bound: dict[str, NDArray[Any]] = {}

    def bind_tokens(self, tokens: NDArray[np.int64], mask: NDArray[np.int64]) -> None:
        """Bind what is to be read."""
        self._bind_input(self._tokens_name, tokens)
        self._bind_input(self._mask_name, mask)

    def bind_logits(self, logits: NDArray[np.float32], indices: NDArray[np.int64]) -> None:
        """Bind where logits go (batch, rows, vocabulary), and which rows of the input they're for.

        Without ``logits_indices`` in the graph, there must be a row for each token.
        """
        if self._is_new(self._logits_name, logits):
            place = ("cpu", 0, np.float32, list(logits.shape), _address(logits))
            self._binding.bind_output(self._logits_name, *place)
            self._bound[self._logits_name] = logits
        if self._graph.has_indices:
            self._bind_input(INDICES, indices)

    def run(self, *, last: bool = False) -> None:
        """Compute, as `KvGraph.run` does."""
        self._graph.run(self._binding, last)

    def _bind_input(self, name: str, array: NDArray[np.int64]) -> None:
        if self._is_new(name, array):
            place = ("cpu", 0, np.int64, list(array.shape), _address(array))
            self._binding.bind_input(name, *place)
            self._bound[name] = array

    def _is_new(self, name: str, array: NDArray[Any]) -> bool:
        """Whether it isn't the array that is bound there."""
        return self._bound.get(name) is not array


def _address(array: NDArray[Any]) -> int:
    """Of its first byte, without the detour over ctypes."""
    return int(array.__array_interface__["data"][0])


def kv_type(decoder: DecoderFacts, inputs: dict[str, Any]) -> KvType:
    """What the graph's inputs say of its KV cache.

    Args:
        decoder: From the variant's configuration.
        inputs: The graph's inputs by name, each with ``type`` and ``shape``.

    Raises:
        UnsuitableError: There are inputs that nobody would fill, or KV of an unknown kind.
    """
    names = decoder.inputs
    layers = range(decoder.num_hidden_layers)
    caches = {names.past_key_names % n for n in layers} | {
        names.past_value_names % n for n in layers
    }
    unknown = sorted(set(inputs) - caches - {names.input_ids, names.attention_mask, INDICES})
    missing = sorted((caches | {names.input_ids, names.attention_mask}) - set(inputs))
    if unknown:
        raise UnsuitableError(f"the graph has inputs that are not known here: {unknown[:3]}")
    if missing:
        raise UnsuitableError(f"the graph lacks inputs: {missing[:3]}")
    kinds = {(inputs[name].type, tuple(inputs[name].shape[1::2])) for name in caches}
    if len(kinds) != 1:
        raise UnsuitableError("the layers' KV caches differ in type or shape")
    ((kind, (heads, size)),) = kinds
    if kind not in _TYPES:
        raise UnsuitableError(f"the KV cache is of type {kind}")
    if not isinstance(heads, int):
        raise UnsuitableError("the graph doesn't say how many KV heads it has")
    if not isinstance(size, int):
        packed = 2 if kind == "tensor(uint8)" else 1  # two int4 in a byte
        size = decoder.head_size // packed
    return KvType(decoder.num_hidden_layers, heads, size, _TYPES[kind])


def refuse_other_providers(facts: VariantFacts) -> None:
    """Refuse graphs that are built for other hardware than the CPU.

    Raises:
        UnsuitableError: The variant's configuration names another execution provider.
    """
    if facts.decoder.providers:
        raise UnsuitableError(f"it is built for {' and '.join(facts.decoder.providers)}")


def refuse_ignored_window(facts: VariantFacts) -> None:
    """Refuse graphs whose layers should only see a window and see everything.

    The builder writes the windowed layers down where it gave the graph a window; a window without
    layers is one that the graph ignores, or one that wants buffers of the window's size.

    Raises:
        UnsuitableError: The variant has such a window, shorter than its context.
    """
    window = facts.decoder.sliding_window
    if window and 0 < window.window_size < facts.context and not window.layers:
        raise UnsuitableError(
            f"the model attends to a window of {window.window_size} tokens in all layers"
        )
