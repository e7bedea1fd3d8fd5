"""PSI triggers: the kernel wakes us when tasks have waited too long, where it lets us ask."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Sequence
from typing import Final, Protocol

from trimtab.errors import TrimtabError
from trimtab.sensors.source import Roots

# Windows without privilege must be a multiple of 2 s (kernel 6.5 and later); older kernels take
# 0.5 to 10 s from root only. Tried in turn until one is taken.
WINDOWS_US: Final = (500_000, 1_000_000, 2_000_000)


class TriggerUnavailableError(TrimtabError):
    """The kernel takes no PSI trigger from us; polling does the work alone."""

    code = "psi_trigger_unavailable"


class _Kernel(Protocol):
    def open(self, path: str) -> int: ...

    def write(self, fd: int, text: bytes) -> None: ...

    def close(self, fd: int) -> None: ...


class _RealKernel:
    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self, fd: int, text: bytes) -> None:
        os.write(fd, text)

    def close(self, fd: int) -> None:
        os.close(fd)


class PsiTrigger:
    """A hint that memory stalls have begun. Never the only path: windows are seconds long.

    The kernel signals with POLLPRI, which event loops don't watch for, so the trigger sits in an
    epoll descriptor of its own; that one becomes readable, and can be given to any event loop.

    Args:
        roots: Where `/proc` is.
        stall_ratio: The share of the window that tasks must have waited.
        kind: ``some`` or ``full``.
        windows_us: Windows to try, shortest first.
        kernel: What the file is opened and written with.

    Raises:
        TriggerUnavailableError: If no window is taken, or there is no PSI.
    """

    def __init__(
        self,
        roots: Roots,
        *,
        stall_ratio: float = 0.1,
        kind: str = "some",
        windows_us: Sequence[int] = WINDOWS_US,
        kernel: _Kernel | None = None,
    ) -> None:
        self._kernel = kernel or _RealKernel()
        self._path = f"{roots.proc}/pressure/memory"
        self._fd, self.window_us = self._arm(kind, stall_ratio, windows_us)
        self._epoll = select.epoll()
        try:
            self._epoll.register(self._fd, select.EPOLLPRI)
        except OSError as error:
            self.close()
            raise TriggerUnavailableError(f"{self._path}: {error.strerror}") from error

    def _arm(self, kind: str, stall_ratio: float, windows_us: Sequence[int]) -> tuple[int, int]:
        reason = "no window was tried"
        for window_us in windows_us:
            stall_us = int(min(1.0, max(0.01, stall_ratio)) * window_us)
            try:
                fd = self._kernel.open(self._path)
            except OSError as error:
                raise TriggerUnavailableError(f"{self._path}: {error.strerror}") from error
            try:
                self._kernel.write(fd, f"{kind} {stall_us} {window_us}\0".encode())
            except OSError as error:
                self._kernel.close(fd)
                reason = f"a window of {window_us / 1e6:g} s: {error.strerror}"
                if error.errno in {errno.EINVAL, errno.EPERM, errno.EACCES}:
                    continue
                break
            return fd, window_us
        raise TriggerUnavailableError(f"{self._path} takes no trigger ({reason})")

    def fileno(self) -> int:
        """A descriptor that is readable when the trigger has fired; for an event loop's reader."""
        return self._epoll.fileno()

    def fired(self) -> bool:
        """Whether it has fired since the last call. Never waits."""
        return any(events & select.EPOLLPRI for _, events in self._epoll.poll(0))

    def wait(self, timeout_s: float) -> bool:
        """Waits until it fires; for threads and tests.

        Returns:
            False if the time ran out.
        """
        return any(events & select.EPOLLPRI for _, events in self._epoll.poll(timeout_s))

    def close(self) -> None:
        """Takes the trigger off."""
        if hasattr(self, "_epoll") and not self._epoll.closed:
            self._epoll.close()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._kernel.close(self._fd)
            self._fd = -1
