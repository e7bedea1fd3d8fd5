"""Jumps of the wall clock, which gateways without a clock chip make when the network comes up."""

from __future__ import annotations

from typing import Final

from trimtab.domain.readings import Reading

_LEAST_S: Final = (
    0.5  # smaller steps are slewing, and the two clocks being read one after the other
)


class ClockWatch:
    """Compares the wall clock with the monotonic one."""

    signal = "clock.jump"

    def __init__(self) -> None:
        self._offset_s: float | None = None

    def update(self, at_s: float, wall_s: float) -> Reading:
        """By how much the wall clock was set since the last tick; 0 if it wasn't.

        Args:
            at_s: Monotonic time.
            wall_s: Wall-clock time at the same moment.
        """
        offset_s = wall_s - at_s
        before_s, self._offset_s = self._offset_s, offset_s
        if before_s is None or abs(offset_s - before_s) < _LEAST_S:
            return Reading(self.signal, 0.0, at_s)
        return Reading(self.signal, offset_s - before_s, at_s)
