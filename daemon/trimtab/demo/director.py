"""The acts of the demo: calm, squeeze until the model gives way, hold, let go, wait for its return.

How much memory is taken is decided as the show goes on, by what the daemon does: other processes on
the machine take and give memory too, and a fixed amount would miss the mark on a busy one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from trimtab.bench.squeeze import Squeeze
from trimtab.demo.plan import MIB, SAFE_BYTES
from trimtab.demo.stage import Phase, Stage, Timeline, rank

STEP_BYTES: Final = 16 * MIB
STEP_S: Final = 0.2
MARGIN_BYTES: Final = 2048 * MIB
"""How much more than planned may be taken if somebody else gives memory back meanwhile."""

POLL_S: Final = 0.1
CALM_S: Final = 7.0
HOLD_S: Final = 6.0
AFTER_S: Final = 6.0
HANDOVER_S: Final = 30.0
STEP_UP_S: Final = 20.0
SHOW_S: Final = 140.0
"""When everything must be back: the last chats and the plot need the rest of three minutes."""


class Director:
    """Runs the acts.

    Args:
        stage: What is going on; the director sets the phase and the line.
        squeeze: The process that takes memory.
        time: Seconds since the demo began.
    """

    def __init__(self, stage: Stage, squeeze: Squeeze, time: Timeline) -> None:
        self._stage = stage
        self._squeeze = squeeze
        self._time = time

    async def run(self) -> None:
        """All acts.

        Raises:
            WorkerError: The squeezing process is gone.
        """
        stage = self._stage
        await self._calm()
        if await self._press(1, stage.plan.first_squeeze_bytes):
            first_bytes = self._squeeze.held_bytes
            await self._press_on(stage.plan.second_squeeze_bytes)
            await self._let_go_to(first_bytes)
        await self._let_go()
        stage.phase = Phase.ENDING
        stage.line = "The last chats come to their end."

    async def _calm(self) -> None:
        stage = self._stage
        stage.phase, stage.line = Phase.STARTING, "The first chats arrive."
        await self._until(lambda: stage.variant is not None and stage.rate_tps(stage.now_s) > 0, 30)
        stage.phase = Phase.CALM
        stage.line = f"All is calm: there is room for {stage.serving}, the best that fits."
        await asyncio.sleep(CALM_S)

    async def _press(self, times: int, planned_bytes: int) -> bool:
        """Take memory until the model has stepped down so many times; False if it never does."""
        stage, squeeze = self._stage, self._squeeze
        stage.phase = Phase.SQUEEZING
        most_bytes = planned_bytes + MARGIN_BYTES
        while not self._going_down(times):
            room = stage.last.available_bytes if stage.last is not None else None
            wanted_bytes = squeeze.held_bytes + STEP_BYTES
            if wanted_bytes > most_bytes or (room is not None and room < SAFE_BYTES):
                break
            await squeeze.hold(wanted_bytes)
            held = f"{squeeze.held_bytes // MIB} MiB"
            stage.line = f"Another process takes memory: it holds {held} now."
            await asyncio.sleep(STEP_S)
        held = f"{squeeze.held_bytes // MIB} MiB"
        if not self._going_down(times):
            stage.line = f"The squeeze stops at {held}: the model has not given way."
            return False
        stage.line = f"The squeeze stops at {held}: the model gives way."
        return await self._until(lambda: stage.downs() >= times, HANDOVER_S)

    async def _press_on(self, planned_bytes: int) -> None:
        """A second step down, if there is anything to step down to; then a look at it."""
        stage = self._stage
        await self._hold()
        if rank(stage.plan.ladder, stage.serving or "") < len(stage.plan.ladder) - 1:
            await self._press(2, planned_bytes)
            await self._hold()

    async def _hold(self) -> None:
        stage = self._stage
        stage.phase = Phase.HOLDING
        held = f"{self._squeeze.held_bytes // MIB} MiB"
        stage.line = f"The squeeze stays ({held}); {stage.serving} serves, and the chats go on."
        await asyncio.sleep(HOLD_S)

    async def _let_go_to(self, kept_bytes: int) -> None:
        """Give back what the second step down had needed, and wait for the first step up."""
        stage = self._stage
        if stage.downs() < 2:
            return
        stage.phase = Phase.RELEASING
        await self._squeeze.hold(kept_bytes)
        stage.line = f"Some memory comes back; the squeeze still holds {kept_bytes // MIB} MiB."
        await self._until(lambda: stage.ups() >= 1, STEP_UP_S)

    async def _let_go(self) -> None:
        """Give back the rest, and wait until the best variant is back."""
        stage = self._stage
        stage.phase = Phase.RELEASING
        await self._squeeze.hold(0)
        best = stage.plan.ladder[0]
        stage.line = f"All memory is free again: once it has lasted, {best} comes back."
        left_s = max(STEP_UP_S, SHOW_S - self._time.now())
        if await self._until(lambda: stage.variant == best and stage.ups() > 0, left_s):
            stage.line = f"{best} is back."
            await asyncio.sleep(AFTER_S)

    def _going_down(self, times: int) -> bool:
        """True once a step down has been decided that many times, or seen."""
        decided = sum(told.direction in ("down", "park") for told in self._stage.told)
        return max(decided, self._stage.downs()) >= times

    async def _until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for something; False if it doesn't come true in time."""
        until_s = self._time.now() + timeout_s
        while not true():
            if self._time.now() >= until_s:
                return False
            await asyncio.sleep(POLL_S)
        return True
