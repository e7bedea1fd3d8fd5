"""Stop strings: where the text of an answer ends, whatever tokens its letters come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.domain.held_back import held_back


@dataclass(frozen=True, slots=True)
class Cut:
    """What a piece of text turned into.

    Attributes:
        text: Certain to belong to the answer.
        stopped: True if a stop string was found; nothing that follows belongs to the answer.
    """

    text: str
    stopped: bool


class StopScanner:
    """Finds stop strings in text that comes in pieces.

    The end of the text so far is held back while it could be the beginning of a stop string, so
    that no part of one is ever shown. Its state depends on nothing but the text that it was fed.

    Args:
        stops: The stop strings, none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""

    def feed(self, text: str) -> Cut:
        """Take the next piece of text; say what is certain now."""
        if not self._stops:
            return Cut(text, stopped=False)
        seen = self._held + text
        found = min((at for at in map(seen.find, self._stops) if at >= 0), default=-1)
        if found >= 0:
            self._held = ""
            return Cut(seen[:found], stopped=True)
        keep = held_back(seen, self._stops)
        self._held = seen[len(seen) - keep :]
        return Cut(seen[: len(seen) - keep], stopped=False)

    def rest(self) -> str:
        """What is still held back; it belongs to the answer when that ends for another reason."""
        return self._held
