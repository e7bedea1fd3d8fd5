"""What the core takes in and decides, for those who record it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from trimtab import __version__
from trimtab.domain.decisions import Decision
from trimtab.domain.events import Event
from trimtab.planner import State
from trimtab.policy.compiled import Policy
from trimtab.telemetry.recording import decision_line, event_line, policy_line, start_line

_BEHIND: Final = 2000
"""A client that is this many lines behind has stopped reading; its recording ends."""


class Recorder:
    """Passes the controller's events on. Costs nothing while nobody follows."""

    def __init__(self) -> None:
        self._followers: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._policy: Policy | None = None

    @property
    def active(self) -> bool:
        """True while someone records."""
        return bool(self._followers)

    def took(self, event: Event, policy: Policy, decision: Decision | None) -> None:
        """The core has taken in an event under this policy, and perhaps decided."""
        if policy is not self._policy:
            self._policy = policy
            self._tell(policy_line(policy))
        self._tell(event_line(event))
        if decision is not None:
            self._tell(decision_line(decision))

    def _tell(self, line: dict[str, Any]) -> None:
        for queue in list(self._followers):
            try:
                queue.put_nowait(line)
            except asyncio.QueueFull:
                self._followers.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)

    def follow(self, state: State, policy: Policy, wall_s: float) -> AsyncIterator[dict[str, Any]]:
        """Lines of a recording from this moment on; it ends when the reader is too far behind.

        Args:
            state: Where the core stands now.
            policy: What is in force now.
            wall_s: Now.
        """
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_BEHIND)
        if not self._followers:
            self._policy = policy
        self._followers.add(queue)
        return self._lines(start_line(state, policy, __version__, wall_s), queue)

    async def _lines(
        self, start: dict[str, Any], queue: asyncio.Queue[dict[str, Any] | None]
    ) -> AsyncIterator[dict[str, Any]]:
        try:
            yield start
            while (line := await queue.get()) is not None:
                yield line
        finally:
            self._followers.discard(queue)
