"""How long something that failed is left alone."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 60.0
LONGEST_S: Final = 960.0


class Rest:
    """First a minute, then twice as long each time, up to 16 minutes."""

    def __init__(self) -> None:
        self._reason = ""
        self._length_s = 0.0
        self._until_s = 0.0

    def why(self, at_s: float) -> str:
        """Why it is left alone now, in words; empty if it isn't."""
        return self._reason if at_s < self._until_s else ""

    def failed(self, reason: str, at_s: float) -> None:
        """It failed. What else fails while it is left alone is the same failure."""
        if at_s < self._until_s:
            return
        self._length_s = min(max(2 * self._length_s, FIRST_S), LONGEST_S)
        self._until_s = at_s + self._length_s
        self._reason = reason

    def worked(self) -> None:
        """It didn't fail: the next failure is the first one."""
        self._length_s = self._until_s = 0.0

    def end(self) -> None:
        """It is needed now, whether it has been left alone for long enough or not."""
        self._until_s = 0.0
