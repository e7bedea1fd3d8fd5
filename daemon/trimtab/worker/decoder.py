"""The one door to an inference engine: what a decoder can do for the worker's loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.errors import EngineError
from trimtab.worker.sampling import Logits
from trimtab.worker.variant import VariantFacts


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream's KV cache is to live.

    Attributes:
        capacity: Tokens that it must be able to hold.
        descriptor: An open file or memfd laid out as `trimtab.domain.kv` says; None for memory
            of the decoder's own. The decoder doesn't close it.
        valid: Tokens whose KV is already there.
    """

    capacity: int
    descriptor: int | None = None
    valid: int = 0


class Cache(Protocol):
    """A stream's KV cache within a decoder."""

    @property
    def length(self) -> int:
        """Tokens whose KV is in it and counts."""


class Moving(Protocol):
    """A cache on its way into another place."""

    @property
    def target(self) -> Cache:
        """The new cache; its length is 0 until it is whole."""

    def advance(self) -> bool:
        """Move a part; True once all is moved."""


class InterruptedRunError(EngineError):
    """A run of the engine was given up as `Decoder.interrupt` asked; lengths say what is there."""

    code = "interrupted"


class Decoder(Protocol):
    """Runs one variant.

    All of it is called from one thread. What fails raises `EngineError`, or in `step` gives it back
    in the cache's place: that cache can only be closed then, other caches are unharmed.
    """

    @property
    def name(self) -> str:
        """``generator`` or ``kv``."""

    @property
    def committed_bytes(self) -> int:
        """Memory of open caches that the kernel doesn't count as this process's own."""

    def open(self, place: Place) -> Cache:
        """Make a cache ready.

        Returns:
            A cache whose length is ``place.valid``, or 0 if the decoder can't take over KV.
        """

    def prefill(self, cache: Cache, tokens: Sequence[int], *, last: bool) -> Logits | None:
        """Compute a piece of a prompt.

        Args:
            cache: Grows by the piece.
            tokens: At least one, and never beyond the capacity.
            last: True if the next token is wanted.

        Returns:
            Logits for the token after the piece if it is the last one. They are the caller's to
            change until the decoder is used again.
        """

    def step(self, batch: Sequence[tuple[Cache, int]]) -> list[Logits | EngineError]:
        """Append one token to each of several caches.

        Returns:
            For each the logits for the token after it, the caller's to change until the decoder is
            used again; or why that cache can't go on.
        """

    @property
    def speculation(self) -> tuple[str, ...]:
        """Modes of `Speculate` that it can serve; without any but ``off``, it is never asked to."""

    def verify(self, cache: Cache, tokens: Sequence[int]) -> Sequence[Logits]:
        """Append several tokens at once.

        Returns:
            Logits for what comes after each of them, the caller's to change until the decoder is
            used again.
        """

    def add_draft(self, facts: VariantFacts, threads: int, indices_graph: str) -> None:
        """Load another variant of the model, which drafts in this one's KV cache.

        Raises:
            EngineError: It can't be loaded, or can't draft here.
        """

    def drop_draft(self) -> None:
        """Do without the draft variant from now on; nothing happens where there is none."""

    def propose(
        self, cache: Cache, token: int, count: int, choose: Callable[[Logits, int], int]
    ) -> list[int]:
        """Let the draft variant write on.

        Args:
            cache: Stays as long as it is.
            token: The newest token, not in the cache yet.
            count: How many tokens to draft.
            choose: Chooses one from its logits and its number within the draft.
        """

    def rewind(self, cache: Cache, length: int) -> None:
        """Forget the tokens from ``length`` on."""

    @property
    def rereads(self) -> str:
        """Why tokens can't be left out of a cache by `move`, in words; empty if they can."""

    def move(self, cache: Cache, place: Place, keep: int, dropped: int) -> Moving:
        """Bring a cache into another place.

        Args:
            cache: Stays as it is, and must not grow meanwhile.
            place: Where to; nothing in it is valid.
            keep: Positions at the beginning that stay where they are.
            dropped: Positions after them that are left out; what follows moves up.
        """

    def interrupt(self, wanted: bool) -> None:
        """Have the run that is under way in another thread end soon with `InterruptedRunError`.

        Args:
            wanted: False takes it back, for a run that ended before it could have an effect.
        """

    def close(self, cache: Cache) -> None:
        """Give the cache's memory back."""
