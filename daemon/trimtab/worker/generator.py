"""onnxruntime-genai's Generator as a decoder: it serves every variant that the engine can run.

Its KV cache is its own: nobody else can read or write it, so a stream that comes from another
worker is prefilled again. Only `append_tokens` and `get_logits` are used, with our own sampling.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime_genai as og

from trimtab.errors import EngineError, LoadError
from trimtab.worker.decoder import Cache, LoadedDraft, Moving, Place
from trimtab.worker.faults import no_memory
from trimtab.worker.sampling import Logits
from trimtab.worker.variant import VariantFacts

_CHUNK: Final = 64  # an unchunked prefill of 1500 tokens would make 295 MB of logits


class GeneratorCache:
    """One Generator.

    Attributes:
        generator: The engine's object; None once it is closed.
    """

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    @property
    def length(self) -> int:
        """Tokens that the Generator has computed."""
        return int(self.generator.token_count())


class GeneratorDecoder:
    """Runs a variant with onnxruntime-genai.

    Args:
        facts: The variant.
        threads: Engine threads.
        share_buffer: Take memory for all of a cache's capacity when it is opened. It is no faster
            with 50 tokens and 1.6 times as fast with 1000 (otherwise the engine copies the cache
            at each step), but a conversation that may become long costs as if it were.

    Raises:
        LoadError: The engine refuses the variant.
    """

    name: Final = "generator"
    speculation: Final = ("off",)  # it gives logits for the last token alone
    rereads: Final = "the Generator's KV cache can't be written"
    committed_bytes: Final = 0  # its caches are in the process's own memory

    def __init__(self, facts: VariantFacts, threads: int, *, share_buffer: bool = False) -> None:
        config = og.Config(str(facts.folder))
        config.overlay(json.dumps(_overlay(threads)))
        try:
            self._model = og.Model(config)
        except Exception as error:  # the engine raises several kinds, none of them documented
            raise LoadError(
                f"{facts.folder}: the engine refuses the variant: {error}",
                hint="`trimtab models verify` tells whether its files are whole",
            ) from error
        self._vocabulary = facts.vocabulary
        self._share_buffer = share_buffer

    def open(self, place: Place) -> GeneratorCache:
        """Make a Generator. KV that is already there can't be taken over: the length is 0."""
        try:
            params = og.GeneratorParams(self._model)
            params.set_search_options(
                max_length=place.capacity,
                batch_size=1,
                past_present_share_buffer=self._share_buffer,
                chunk_size=_CHUNK,
            )
            return GeneratorCache(og.Generator(self._model, params))
        except RuntimeError as error:
            raise EngineError(f"the engine can't hold {place.capacity} tokens: {error}") from error

    def prefill(self, cache: Cache, tokens: Sequence[int], *, last: bool) -> Logits | None:
        """Compute a piece of a prompt."""
        generator = _own(cache)
        self._append(generator, tokens)
        return self._logits(generator) if last else None

    def step(self, batch: Sequence[tuple[Cache, int]]) -> list[Logits | EngineError]:
        """Append one token to each cache, one after the other."""
        return [self._step_one(cache, token) for cache, token in batch]

    def verify(self, cache: Cache, tokens: Sequence[int]) -> Sequence[Logits]:
        """It can't: there are no logits but the last token's."""
        raise EngineError("the Generator can't verify drafts")

    def load_draft(self, facts: VariantFacts, threads: int, indices_graph: str) -> LoadedDraft:
        """It can't: nobody else can write into its KV."""
        raise EngineError("the Generator's KV cache takes no drafts of another variant")

    def add_draft(self, draft: LoadedDraft) -> None:
        """It can't, likewise."""
        raise EngineError("the Generator's KV cache takes no drafts of another variant")

    def drop_draft(self) -> None:
        """It has none."""

    def propose(
        self, cache: Cache, token: int, count: int, choose: Callable[[Logits, int], int]
    ) -> list[int]:
        """It has no draft variant."""
        raise EngineError("the Generator has no draft variant")

    def rewind(self, cache: Cache, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        try:
            _own(cache).rewind_to(length)
        except RuntimeError as error:
            raise EngineError(f"the engine can't go back to token {length}: {error}") from error

    def move(self, cache: Cache, place: Place, keep: int, dropped: int) -> Moving:
        """It can't: its KV lies where nobody else can put it."""
        raise EngineError(self.rereads)

    def interrupt(self, wanted: bool) -> None:
        """It can't be: the engine holds the interpreter while it runs."""

    def close(self, cache: Cache) -> None:
        """Drop the Generator, and with it its KV."""
        if isinstance(cache, GeneratorCache):
            cache.generator = None

    def _step_one(self, cache: Cache, token: int) -> Logits | EngineError:
        try:
            generator = _own(cache)
            self._append(generator, (token,))
            return self._logits(generator)
        except EngineError as error:
            return error
        except MemoryError:
            return no_memory()

    def _append(self, generator: Any, tokens: Sequence[int]) -> None:
        try:
            generator.append_tokens(np.asarray(tokens, np.int32))
        except RuntimeError as error:
            raise EngineError(f"the engine failed: {error}") from error

    def _logits(self, generator: Any) -> Logits:
        logits: Logits = generator.get_logits().reshape(-1, self._vocabulary)[-1]
        return logits


def _own(cache: Cache) -> Any:
    if not isinstance(cache, GeneratorCache) or cache.generator is None:
        raise EngineError("the cache is closed")
    return cache.generator


def _overlay(threads: int) -> dict[str, Any]:
    """What to change in the variant's configuration.

    Threads sleep when there is nothing to do. No token is padding: the engine would take the
    logits of a piece that ends with the padding token from before it, and in many models the
    end-of-turn token is that token too.
    """
    options = {
        "intra_op_num_threads": threads,
        "inter_op_num_threads": 1,
        "session.intra_op.allow_spinning": "0",
    }
    return {"model": {"pad_token_id": -1, "decoder": {"session_options": options}}}
