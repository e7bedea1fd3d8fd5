"""What systemd is told (sd_notify): ready, at which operating point, alive, reloading, stopping.

It is a datagram to the socket that systemd names; outside of systemd all of this does nothing. The
watchdog is fed by completed ticks alone, so that a loop which hangs, or whose looks at the sensors
all fail, is seen.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import MutableMapping, Sequence
from typing import Final

_SEND_S: Final = 0.2
_PINGS_PER_PERIOD: Final = 4
_STATUS_BYTES: Final = 500
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Tells the service manager how we are.

    Args:
        address: The socket, a path or an abstract name that begins with ``@``; empty for none.
        watchdog_s: The watchdog's period; None if it isn't armed.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._period_s = None if watchdog_s is None else watchdog_s / _PINGS_PER_PERIOD
        self._alive_s: float | None = None
        self._status = ""
        self._reloading = False
        self.socket: socket.socket | None = None
        if address:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self.socket.settimeout(_SEND_S)

    @property
    def heard(self) -> bool:
        """True if there is a service manager that listens."""
        return self.socket is not None

    def ready(self, status: str) -> None:
        """The start is complete."""
        self._status = status
        self._say("READY=1", _status_line(status))

    def status(self, text: str) -> None:
        """The one line of `systemctl status`, told when it changes."""
        if text != self._status:
            self._status = text
            self._say(_status_line(text))

    def alive(self, at_s: float) -> None:
        """A tick was completed; told a few times in each period of the watchdog."""
        if self._period_s is None:
            return
        if self._alive_s is None or at_s - self._alive_s >= self._period_s:
            self._alive_s = at_s
            self._say("WATCHDOG=1")

    def reloading(self, at_s: float) -> None:
        """The policy is being read again, from this moment of the monotonic clock."""
        self._reloading = True
        self._say("RELOADING=1", f"MONOTONIC_USEC={at_s * 1e6:.0f}")

    def reloaded(self) -> None:
        """It has been read."""
        if self._reloading:
            self._reloading = False
            self._say("READY=1")

    def stopping(self, deadline_s: float) -> None:
        """We are going down, and need at most so long for it."""
        self._status = "draining: running answers may end"
        micro_s = f"{deadline_s * 1e6:.0f}"
        self._say("STOPPING=1", f"EXTEND_TIMEOUT_USEC={micro_s}", _status_line(self._status))

    def store(self, name: str, descriptors: Sequence[int]) -> None:
        """Have the service manager keep descriptors for the next start of this service."""
        self._say("FDSTORE=1", f"FDNAME={name}", descriptors=descriptors)

    def forget(self, name: str) -> None:
        """Have it close what it keeps under a name."""
        self._say("FDSTOREREMOVE=1", f"FDNAME={name}")

    def close(self) -> None:
        """Say nothing more."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _say(self, *lines: str, descriptors: Sequence[int] = ()) -> None:
        if self.socket is None:
            return
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        # A manager that is gone or doesn't read: the watchdog is its way to find out, not ours.
        with contextlib.suppress(OSError):
            self.socket.sendmsg(
                ["\n".join(lines).encode()], passed if descriptors else [], 0, self._address
            )


def notifier(environ: MutableMapping[str, str], pid: int) -> Notifier:
    """The notifier that the environment asks for; what it says is taken out of it for children.

    Args:
        environ: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are read and removed.
        pid: Our own: a watchdog that is meant for another process isn't ours.
    """
    address, period, owner = (environ.pop(name, "") for name in _VARIABLES)
    armed = period.isdecimal() and int(period) > 0 and owner in ("", str(pid))
    if not address.startswith(("/", "@")):
        return Notifier()
    return Notifier(address, int(period) / 1e6 if armed else None)


def own_notifier() -> Notifier:
    """For this process."""
    return notifier(os.environ, os.getpid())


def _status_line(text: str) -> str:
    one_line = " ".join(text.split())
    return f"STATUS={one_line.encode()[:_STATUS_BYTES].decode(errors='ignore')}"
