"""A decoder that owns its KV cache: the variant's own graph under onnxruntime, with our buffers.

The attention operator writes into the buffer that it reads from, so a conversation is a file, a
capacity and a length. Another worker that maps the file goes on where this one stopped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.catalog.rotation import Rotation, refusal
from trimtab.domain.kv import KvShape
from trimtab.domain.models import RopeSpec
from trimtab.errors import EngineError
from trimtab.worker.decoder import Cache, LoadedDraft, Place
from trimtab.worker.faults import no_memory
from trimtab.worker.kv_cache import KvCache, new_segment
from trimtab.worker.kv_graph import FIRST_ROW, KvGraph, UnsuitableError
from trimtab.worker.kv_move import KvMove
from trimtab.worker.masks import Mask
from trimtab.worker.pace import piece_of
from trimtab.worker.sampling import Logits
from trimtab.worker.variant import VariantFacts
from trimtab.worker.weave import Weave

_MOST_ROWS: Final = 16
_MOST_WEAVES: Final = 4  # a pause and a resume find the batch as it was
_NO_ROWS: Final = np.empty(0, np.int64)


class KvDecoder:
    """Runs a variant with onnxruntime on segments.

    Args:
        facts: The variant.
        threads: Engine threads.
        context: Most tokens of a conversation: all segments made here have this capacity, so that
            any of them can be decoded together. What isn't used isn't committed.
        indices_graph: File name of the graph with ``logits_indices``; empty if there is none.
        rope: How positions are turned into the keys; None where that follows no single base.

    Raises:
        UnsuitableError: The graph isn't one that this decoder serves.
        LoadError: The engine refuses the graph.
    """

    name: Final = "kv"

    def __init__(
        self,
        facts: VariantFacts,
        threads: int,
        context: int,
        indices_graph: str = "",
        rope: RopeSpec | None = None,
    ) -> None:
        self._graph = KvGraph(facts, threads, indices_graph, context)
        self._rope = rope
        self._vocabulary = facts.vocabulary
        shape = self._graph.kv.shape
        self._page_bytes = mmap.PAGESIZE
        self._capacity = shape.aligned_capacity(context, self._page_bytes)
        self._token = np.zeros((1, 1), np.int64)
        self._context = context
        self._mask = Mask(1, context)
        self._logits: NDArray[np.float32] = np.empty((1, facts.vocabulary), np.float32)
        self._rooms: dict[int, NDArray[np.float32]] = {}
        self._caches: set[KvCache] = set()
        self._draft: KvGraph | None = None
        self._weaves: dict[tuple[KvCache, ...], Weave] = {}

    @property
    def shape(self) -> KvShape:
        """Of the segments that it takes."""
        return self._graph.kv.shape

    @property
    def committed_bytes(self) -> int:
        """Memory that the open conversations' segments take."""
        return sum(cache.committed_bytes for cache in self._caches)

    def open(self, place: Place) -> KvCache:
        """Map the conversation's segment, or a new one."""
        if place.descriptor is not None:
            cache = KvCache(self._graph, place.descriptor, place.valid)
            if cache.capacity < place.capacity:
                cache.close()
                raise EngineError(
                    f"the segment holds {cache.capacity} tokens, not {place.capacity}",
                    code="segment_too_small",
                )
        else:
            cache = self._open_new(place)
        self._caches.add(cache)
        return cache

    def prefill(self, cache: Cache, tokens: Sequence[int], *, last: bool) -> Logits | None:
        """Compute a piece of a prompt; the head of the model only runs if the piece is the last."""
        own = _own(cache)
        most = self._graph.attention.longest_piece(own.length + len(tokens), own.capacity)
        while most and len(tokens) > most:
            size = piece_of(len(tokens), most)
            self._run(own, tokens[:size], _NO_ROWS)
            tokens = tokens[size:]
        rows = np.array([len(tokens) - 1]) if last else _NO_ROWS
        logits = self._run(own, tokens, rows, last=last)
        return logits[-1] if last else None

    @property
    def speculation(self) -> tuple[str, ...]:
        """N-gram drafts always; those of a variant if one has been added."""
        return ("off", "ngram") if self._draft is None else ("off", "ngram", "draft")

    def load_draft(self, facts: VariantFacts, threads: int, indices_graph: str) -> LoadedDraft:
        """Load a variant of the same model that could draft in this one's KV cache.

        Nothing that serves is touched, and the interpreter is free while the engine loads.

        Raises:
            UnsuitableError: Its KV cache or its vocabulary is another.
            LoadError: The engine refuses it.
        """
        draft = KvGraph(facts, threads, indices_graph, self._context)
        if draft.kv != self._graph.kv or facts.vocabulary != self._vocabulary:
            raise UnsuitableError(f"{facts.folder}: its KV cache or vocabulary is another model's")
        return draft

    def add_draft(self, draft: LoadedDraft) -> None:
        """Draft with it in place of the one before."""
        if not isinstance(draft, KvGraph):
            raise EngineError("it is no draft that was loaded for this decoder")
        self.drop_draft()
        self._draft = draft

    def drop_draft(self) -> None:
        """Give the draft variant's memory back."""
        if self._draft is not None:
            for cache in self._caches:
                cache.unbind(self._draft)
            self._draft = None

    def verify(self, cache: Cache, tokens: Sequence[int]) -> Sequence[Logits]:
        """Append several tokens at once."""
        return list(self._run(_own(cache), tokens, np.arange(len(tokens))))

    def propose(
        self, cache: Cache, token: int, count: int, choose: Callable[[Logits, int], int]
    ) -> list[int]:
        """Draft in the target's own cache: the target overwrites it when it verifies."""
        own = _own(cache)
        if self._draft is None:
            raise EngineError("there is no draft variant")
        if own.length + count > own.capacity:
            raise EngineError(f"the cache holds {own.capacity} tokens")
        binding = own.binding_for(self._draft)
        tokens = [token]
        logits = self._room(1)
        for number in range(count):
            self._token[0, 0] = tokens[-1]
            mask = self._mask.of((own.length + number + 1,), own.capacity)
            binding.bind_tokens(self._token, mask)
            binding.bind_logits(logits, FIRST_ROW)
            binding.run()
            tokens.append(choose(logits[0, 0], number))
        return tokens[1:]

    def step(self, batch: Sequence[tuple[Cache, int]]) -> list[Logits | EngineError]:
        """Append one token to each cache; those of one capacity in one run."""
        if len(batch) == 1:
            return [self._step_alone(*batch[0])]
        if tuple(cache for cache, _ in batch) in self._weaves:  # as at a step before
            return self._step_group(batch)
        answers: dict[int, Logits | EngineError] = {}
        for rows in self._groups(batch):
            answers |= zip(rows, self._step_group([batch[row] for row in rows]), strict=True)
        return [answers[row] for row in range(len(batch))]

    def rewind(self, cache: Cache, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        own = _own(cache)
        if not 0 <= length <= own.length:
            raise EngineError(f"there is no way to token {length} from token {own.length}")
        own.length = length

    @property
    def rereads(self) -> str:
        """Why keys can't be turned to other positions; empty if they can."""
        return refusal(self._rope, self._graph.kv.dtype)

    def move(self, cache: Cache, place: Place, keep: int, dropped: int) -> KvMove:
        """Copy the cache into another segment, keys turned back where tokens are left out."""
        own = _own(cache)
        rotation = None
        if dropped:
            if self._rope is None or self.rereads:
                raise EngineError(f"the cache can't be shifted: {self.rereads}")
            rotation = Rotation(self._rope, dropped)
        else:
            keep = min(keep, own.length)
        if not 0 <= keep <= own.length - dropped:
            raise EngineError(f"{dropped} tokens after {keep} can't be left out of {own.length}")
        return KvMove(own, self.open(place), keep, dropped, rotation)

    def interrupt(self, wanted: bool) -> None:
        """Between two of the graph's operators: some milliseconds even in a long piece."""
        self._graph.interrupt(wanted)

    def close(self, cache: Cache) -> None:
        """Unmap the segment."""
        if isinstance(cache, KvCache):
            for caches in [caches for caches in self._weaves if cache in caches]:
                self._weaves.pop(caches).close()
            self._caches.discard(cache)
            cache.close()

    def _open_new(self, place: Place) -> KvCache:
        shape = self._graph.kv.shape
        capacity = shape.aligned_capacity(place.capacity, self._page_bytes)
        descriptor = new_segment(shape.segment_bytes(max(capacity, self._capacity)))
        try:
            return KvCache(self._graph, descriptor, 0)
        finally:
            os.close(descriptor)

    def _run(
        self,
        cache: KvCache,
        tokens: Sequence[int],
        rows: NDArray[np.int64],
        *,
        last: bool = False,
    ) -> NDArray[np.float32]:
        end = cache.length + len(tokens)
        if end > cache.capacity:
            raise EngineError(f"the cache holds {cache.capacity} tokens, not {end}")
        if len(tokens) == 1:
            ids = self._token
            ids[0, 0] = tokens[0]
        else:
            ids = np.array([tokens], np.int64)
        count = len(rows) if self._graph.has_indices else len(tokens)
        logits = self._room(count)
        binding = cache.binding_for(self._graph)
        binding.bind_tokens(ids, self._mask.of((end,), cache.capacity))
        binding.bind_logits(logits, rows)
        binding.run(last=last)
        cache.length = end
        answer: NDArray[np.float32] = logits[0]
        return answer if self._graph.has_indices else answer[rows]

    def _room(self, rows: int) -> NDArray[np.float32]:
        """Memory for logits (1, rows, vocabulary): the same for all who ask for so many rows."""
        if rows not in self._rooms:
            if len(self._logits) < rows:
                self._logits = np.empty((rows, self._vocabulary), np.float32)
                self._rooms.clear()
            self._rooms[rows] = self._logits[None, :rows]
        return self._rooms[rows]

    def _groups(self, batch: Sequence[tuple[Cache, int]]) -> list[list[int]]:
        """Rows of the batch that can be computed together."""
        by_capacity: dict[int, list[int]] = {}
        for row, (cache, _) in enumerate(batch):
            by_capacity.setdefault(_capacity_of(cache), []).append(row)
        groups = []
        for capacity, rows in by_capacity.items():
            whole_pages = self._graph.kv.shape.plane_bytes(capacity) % self._page_bytes == 0
            most = _MOST_ROWS if whole_pages else 1
            groups += [rows[at : at + most] for at in range(0, len(rows), most)]
        return groups

    def _step_group(self, batch: Sequence[tuple[Cache, int]]) -> list[Logits | EngineError]:
        if len(batch) > 1:
            try:
                return list(self._step_together(batch))
            except (EngineError, MemoryError):
                pass  # one of them may be at fault; nobody has moved, so each is tried alone
        return [self._step_alone(cache, token, kept=True) for cache, token in batch]

    def _step_together(self, batch: Sequence[tuple[Cache, int]]) -> Sequence[Logits]:
        caches = tuple(_own(cache) for cache, _ in batch)
        for cache in caches:
            if cache.length >= cache.capacity:
                raise EngineError(f"the cache holds {cache.capacity} tokens and is full")
        weave = self._weaves.pop(caches, None)
        if weave is None:
            weave = Weave(self._graph, caches, self._vocabulary, self._context)
        self._weaves[caches] = weave  # the last one is the one that was used last
        if len(self._weaves) > _MOST_WEAVES:
            self._weaves.pop(next(iter(self._weaves))).close()
        return weave.step([token for _, token in batch])

    def _step_alone(self, cache: Cache, token: int, *, kept: bool = False) -> Logits | EngineError:
        """Logits, ``kept`` for ones that the next run doesn't overwrite."""
        try:
            logits: Logits = self._run(_own(cache), (token,), FIRST_ROW)[0]
            return np.array(logits) if kept else logits
        except EngineError as error:
            return error
        except MemoryError:
            return no_memory()


def _own(cache: Cache) -> KvCache:
    if not isinstance(cache, KvCache) or cache.closed:
        raise EngineError("the cache is closed")
    return cache


def _capacity_of(cache: Cache) -> int:
    return cache.capacity if isinstance(cache, KvCache) else 0
