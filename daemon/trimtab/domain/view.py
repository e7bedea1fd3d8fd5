"""What a conversation still sees of its tokens once its window has been shifted.

Attention rests on the first tokens of a text whatever they are (attention sinks), so these stay;
of the rest the older half goes when the context is full. A view says what has gone so far: from
it and the conversation's tokens, what is in its KV cache can be made again anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

SINKS: Final = 4
"""Tokens that are kept at least where nobody says otherwise: fewer than one doubles perplexity."""


@dataclass(frozen=True, slots=True)
class View:
    """The first ``keep`` tokens, and all that follow the ``dropped`` ones after them.

    Attributes:
        keep: Tokens at the beginning that always stay; 0 for a window that is never shifted.
        dropped: Tokens after them that have been forgotten.
    """

    keep: int = 0
    dropped: int = 0

    @property
    def shifts(self) -> bool:
        """True if the conversation may go on past its context."""
        return self.keep > 0

    def of(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that are seen."""
        if not self.dropped:
            return list(tokens)
        return [*tokens[: self.keep], *tokens[self.keep + self.dropped :]]

    def cached(self, tokens: int) -> int:
        """How many of the conversation's first tokens are seen: positions that they take."""
        return tokens - self.dropped

    def narrowed(self, cached: int, context: int) -> View:
        """The view once the older half of what isn't kept has gone.

        Args:
            cached: Positions that are used now.
            context: Positions that there are.

        Returns:
            A view in which `left_after_shift` positions less one remain used: the newest token is
            put into its own position next.
        """
        return replace(self, dropped=self.dropped + cached + 1 - left_after_shift(self, context))


WHOLE: Final = View()
"""All tokens, in a window that is never shifted."""


def left_after_shift(view: View, context: int) -> int:
    """Tokens that are seen after a shift: those that are kept, and half of what isn't."""
    return view.keep + (context - view.keep) // 2


def fits(keep: int, context: int) -> bool:
    """True if a window of ``context`` tokens can be shifted that keeps so many."""
    return 0 < keep < context // 2
