"""Real time. The only module that reads it."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Let the event loop go on for this long."""
        await asyncio.sleep(seconds)
