"""Threshold rules alone, as one would write them without a planner: the baseline for deciding.

Two rules, each with a band and a wait. Memory: under the limit, one variant down; once there is
room for the next one up and its band, one up. Latency: more than a tenth of the last requests late,
one down; hardly any late, one up. Requests are scheduled as the controller schedules them, so that
what is compared is the choice of the variant alone. The rules know sizes, and nothing of speeds,
lengths or what requests earn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from trimtab.simulate.ladder import Ladder

REMEMBERED: Final = 20
LATE_ENTER_RATIO: Final = 0.10
LATE_LEAVE_RATIO: Final = 0.02
DWELL_S: Final = 30.0
BAND_RATIO: Final = 0.01
"""Of the larger variant's size: what must be left beyond it for a step up."""


@dataclass(slots=True)
class ThresholdRules:
    """Which variant the rules have loaded.

    Attributes:
        ladder: Best first.
        rung: Place of the variant in it.
        changed_s: When it last changed.
        late: Of the last requests that ended since then, whether each was late.
    """

    ladder: Ladder
    rung: int = 0
    changed_s: float = 0.0
    late: deque[bool] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def variant(self) -> str:
        """What is to be loaded."""
        return self.ladder.rungs[self.rung].name

    def ended(self, *, met: bool) -> None:
        """A request has ended or was refused."""
        self.late.append(not met)

    def look(self, at_s: float, spare_bytes: float) -> bool:
        """Apply the rules; True if another variant is wanted.

        Args:
            at_s: Now.
            spare_bytes: Memory above the limit with what is loaded; negative under it.
        """
        step = self._step(spare_bytes, at_s - self.changed_s >= DWELL_S)
        to = min(max(0, self.rung + step), len(self.ladder.rungs) - 1)
        if to == self.rung:
            return False
        self.rung, self.changed_s = to, at_s
        self.late.clear()
        return True

    def _step(self, spare_bytes: float, dwelt: bool) -> int:
        """+1 down the ladder, −1 up, 0 neither."""
        if spare_bytes < 0:
            return 1
        if not dwelt or 0 < len(self.late) < REMEMBERED:
            return 0  # too few have been seen; where nobody asks, memory alone counts
        ratio = sum(self.late) / REMEMBERED
        if ratio > LATE_ENTER_RATIO:
            return 1
        return self._up(spare_bytes) if ratio <= LATE_LEAVE_RATIO else 0

    def _up(self, spare_bytes: float) -> int:
        if self.rung == 0:
            return 0
        larger, here = self.ladder.rungs[self.rung - 1], self.ladder.rungs[self.rung]
        needed = larger.size_bytes * (1 + BAND_RATIO) - here.size_bytes
        return -1 if spare_bytes >= needed else 0
