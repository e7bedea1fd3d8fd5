"""A stand-in for a process in uninterruptible sleep: no test can make a real one.

That takes a disk that hangs under a process which reads it: a device mapper or a network file
system, and root. What the controller sees of one is that SIGKILL is sent, and that the process runs
nothing of its program any more, doesn't end, can't be reaped, keeps its memory and has its sockets
open. So it is with a process that is stopped instead: here SIGKILL through a pidfd stops it, and
`wake` lets it die, as when the disk answers at last.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from trimtab.workers import process


class Uninterruptible:
    """From now on, SIGKILL through a pidfd ends nobody before `wake`.

    Args:
        patch: Puts it in place of `signal.pidfd_send_signal`.
        reap_s: How long a process may take to end before it is given up.
    """

    def __init__(self, patch: pytest.MonkeyPatch, reap_s: float = 0.3) -> None:
        self._send = signal.pidfd_send_signal
        self._asleep: list[int] = []
        self._woken: list[int] = []
        patch.setattr(signal, "pidfd_send_signal", self._signal)
        patch.setattr(process, "REAP_S", reap_s, raising=False)

    def wake(self) -> None:
        """Let all end that were killed."""
        asleep, self._asleep = self._asleep, []
        for pidfd in asleep:
            self._reaped(pidfd, signal.SIGKILL)
        self._woken += asleep

    async def over(self) -> None:
        """Wake all, and wait until they have been reaped."""
        self.wake()
        async with asyncio.timeout(10):
            while not all(self._reaped(pidfd) for pidfd in self._woken):
                await asyncio.sleep(0.01)
        for pidfd in self._woken:
            os.close(pidfd)

    def _reaped(self, pidfd: int, number: int = 0) -> bool:
        try:
            self._send(pidfd, number)
        except ProcessLookupError:
            return True
        return False

    def _signal(self, pidfd: int, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            self._asleep.append(os.dup(pidfd))
            number = signal.SIGSTOP
        self._send(pidfd, number)
