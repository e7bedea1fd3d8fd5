"""The clock as the shell's parts see it; the one that reads real time is in `runtime.clock`."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two times: one to measure with, one to show to people."""

    def monotonic_s(self) -> float:
        """Seconds since some start; never jumps."""

    def wall_s(self) -> float:
        """Seconds since the epoch; may jump on gateways without a clock chip."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
