"""The kernel's hint that tasks have begun to wait for memory: a look at once, not at the next tick.

A hint, never the path: the kernel takes no window under half a second from anybody and none under
2 s from the unprivileged. Polling by headroom finds a fast fall sooner; the hint finds the stalls
that come without one, when everything that is left is the page cache of running programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from trimtab.sensors.psi_trigger import PsiTrigger, TriggerUnavailableError
from trimtab.sensors.source import Roots


class Trigger(Protocol):
    """What is used of a PSI trigger."""

    def fileno(self) -> int:
        """Readable when it has fired."""

    def fired(self) -> bool:
        """Whether it has fired since the last call."""

    def close(self) -> None:
        """Takes it off."""


class PressureHint:
    """Has a function called in the event loop whenever a trigger fires.

    Args:
        trigger: The trigger; it is closed with this.
        look: Called at most once for each window of the trigger.
    """

    def __init__(self, trigger: Trigger, look: Callable[[], None]) -> None:
        self._trigger = trigger
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(trigger.fileno(), self._fired)

    def _fired(self) -> None:
        if self._trigger.fired():
            self._look()

    def close(self) -> None:
        """Takes the trigger off."""
        self._loop.remove_reader(self._trigger.fileno())
        self._trigger.close()


def watch_pressure(roots: Roots, look: Callable[[], None]) -> PressureHint | None:
    """Sets a trigger on the machine's memory pressure; None where the kernel takes none.

    Args:
        roots: Where `/proc` is; a tree for tests has no triggers.
        look: Called when tasks have waited for a tenth of the trigger's window.
    """
    if not roots.real:
        return None
    try:
        return PressureHint(PsiTrigger(roots), look)
    except TriggerUnavailableError:
        return None  # `trimtab doctor` tells; polling does the work alone
