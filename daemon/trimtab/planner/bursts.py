"""How many requests come at once: they meet the same queue, and tell as much as one would.

A client that asks for nine answers in one go says nine times what the load at that moment was. So
what is remembered, and what evidence is worth, counts in moments and not in requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.planner.shadow import MEMORY

TOGETHER_S: Final = 0.05
GAIN: Final = 0.1
NEVER_S: Final = -1.0


@dataclass(frozen=True, slots=True)
class Bursts:
    """How arrivals come.

    Attributes:
        at_s: Time of the last one.
        run: Requests of its moment so far.
        size: Requests of a moment, on average over about the last ten; 1 or more.
    """

    at_s: float = NEVER_S
    run: int = 0
    size: float = 1.0

    @property
    def memory(self) -> float:
        """Requests that are remembered: those of `MEMORY` moments."""
        return MEMORY * self.size

    def arrived(self, at_s: float) -> Bursts:
        """With one more arrival."""
        if at_s - self.at_s <= TOGETHER_S:
            return Bursts(at_s, self.run + 1, self.size)
        size = self.size + GAIN * (self.run - self.size) if self.run else self.size
        return Bursts(at_s, 1, size)
