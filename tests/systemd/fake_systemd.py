"""A service manager for tests: a real datagram socket that hears what a service says."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from trimtab.runtime.notify import Notifier


class FakeManager:
    """Hears messages, and keeps descriptors as systemd does.

    Args:
        folder: Where its socket is.
    """

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)
        self.kept: dict[str, list[int]] = {}
        self._notifiers: list[Notifier] = []

    def notifier(self, watchdog_s: float | None = None) -> Notifier:
        """A service that talks to this manager."""
        one = Notifier(self.address, watchdog_s)
        self._notifiers.append(one)
        return one

    def heard(self) -> list[dict[str, str]]:
        """Everything that was said since it was last asked."""
        messages = []
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, 4096, 16)
            except BlockingIOError:
                return messages
            message = dict(line.split("=", 1) for line in data.decode().splitlines())
            if "FDSTORE" in message:
                self.kept.setdefault(message["FDNAME"], []).extend(descriptors)
            if "FDSTOREREMOVE" in message:
                self._close(self.kept.pop(message["FDNAME"], []))
            messages.append(message)

    def passed(self) -> dict[str, list[int]]:
        """What the next start of the service gets."""
        self.heard()
        return {
            name: [os.dup(descriptor) for descriptor in descriptors]
            for name, descriptors in self.kept.items()
        }

    def close(self) -> None:
        """Forget all."""
        self.heard()
        for descriptors in self.kept.values():
            self._close(descriptors)
        for one in self._notifiers:
            one.close()
        self._socket.close()

    @staticmethod
    def _close(descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
