"""Drafts for free: what followed the last three tokens when they came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LENGTH: Final = 3
_MOST_COMPARED: Final = 9  # more than that tell nothing new


class NgramIndex:
    """Where each run of three tokens was last followed by something.

    Args:
        tokens: The stream's tokens, prompt and answer; the index looks at the same list later.

    Attributes:
        agreed: How many of the last tokens stood before what was proposed last, too.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._after: dict[tuple[int, ...], int] = {}
        self._known = _LENGTH
        self.agreed = 0

    def propose(self, count: int) -> list[int]:
        """Up to ``count`` tokens that may come next; none if the last three are new."""
        self._learn()
        at = self._after.get(tuple(self._tokens[-_LENGTH:]))
        self.agreed = 0 if at is None else self._agreement(at)
        return [] if at is None else list(self._tokens[at : at + count])

    def _agreement(self, at: int) -> int:
        """How many tokens before a place are the same as the last ones; at least three are."""
        tokens, agreed = self._tokens, _LENGTH
        while agreed < min(at, _MOST_COMPARED) and tokens[at - agreed - 1] == tokens[-agreed - 1]:
            agreed += 1
        return agreed

    def _learn(self) -> None:
        """Index every position up to the newest token, whose own run has no continuation yet."""
        tokens = self._tokens
        for end in range(self._known, len(tokens)):
            self._after[tuple(tokens[end - _LENGTH : end])] = end
        self._known = max(self._known, len(tokens))
