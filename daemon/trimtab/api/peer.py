"""Who is at the other end of a Unix socket, as the kernel tells it."""

from __future__ import annotations

import pwd
import socket
import struct
from dataclasses import dataclass
from typing import Final

_UCRED: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that has connected.

    Attributes:
        pid: Its process id at the time of the connection.
        uid: Its user.
        gid: Its primary group.
    """

    pid: int
    uid: int
    gid: int

    def describe(self) -> str:
        """For records: ``alice (uid 1000, pid 4242)``."""
        return f"{user_name(self.uid)} (uid {self.uid}, pid {self.pid})"


def peer_of(connection: socket.socket) -> Peer | None:
    """The peer of a connected Unix socket; None for other sockets."""
    if connection.family != socket.AF_UNIX:
        return None
    try:
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except OSError:
        return None
    return Peer(*_UCRED.unpack(told))


def user_name(uid: int) -> str:
    """The name of a user, or ``uid N`` for one that has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
