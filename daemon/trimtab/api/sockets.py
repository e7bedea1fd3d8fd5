"""Unix sockets that nobody can reach before they are safe; nothing that isn't ours is removed.

The folder comes first, with its mode; the socket is bound under a umask, gets its group, and only
then listens. A lock on the folder keeps two daemons that start at once from taking each other's
socket for a stale one.
"""

from __future__ import annotations

import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import ConfigError, SocketTakenError

BACKLOG: Final = 1024
"""Connections that wait; a client of a full Unix socket is turned away by the kernel at once."""
_FIRST_PASSED: Final = 3
_ANSWER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket.

    Attributes:
        socket: It listens already.
        path: Where it is bound; None if systemd passed it, and so owns the file.
        identity: Device and inode of the file that we made, so that we remove no other.
    """

    socket: socket.socket
    path: Path | None = None
    identity: tuple[int, int] | None = None

    def close(self) -> None:
        """Stop listening, and remove the file if it is still the one that we made."""
        self.socket.close()
        if self.path is None:
            return
        try:
            status = self.path.lstat()
            if (status.st_dev, status.st_ino) == self.identity:
                self.path.unlink()
        except FileNotFoundError:
            pass


def listen_unix(path: Path, mode: int, group: str | None = None) -> Listener:
    """Bind and listen.

    Args:
        path: Where; its folder is made (0700, or 0750 with the group) if it is missing.
        mode: Permissions of the socket.
        group: Group that owns it; None leaves our own.

    Raises:
        SocketTakenError: A living daemon answers there.
        ConfigError: The folder isn't safe, something else is in the way, or the group is unknown.
    """
    gid = _group_id(group)
    _make_folder(path.parent, gid)
    with _locked(path.parent):
        _clear_stale(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            _bind(listening, path, mode, gid)
        except BaseException:
            listening.close()
            raise
    status = path.lstat()
    return Listener(listening, path, (status.st_dev, status.st_ino))


def _bind(listening: socket.socket, path: Path, mode: int, gid: int) -> None:
    previous = os.umask(0o777 & ~mode)
    try:
        listening.bind(str(path))
    except OSError as error:
        raise ConfigError(f"{path}: can't be bound: {error.strerror}") from error
    finally:
        os.umask(previous)
    if gid >= 0:
        try:
            os.chown(path, -1, gid)
        except OSError as error:
            path.unlink()
            raise ConfigError(
                f"{path}: can't be given to the group: {error.strerror}",
                hint="Run trimtab as root or as a member of the group, or take `group` out.",
            ) from error
    listening.listen(BACKLOG)
    listening.setblocking(False)


def _group_id(group: str | None) -> int:
    if group is None:
        return -1
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ConfigError(
            f"sockets.group: there is no group {group!r}",
            hint=f"`groupadd --system {group}` makes it.",
        ) from error


def _make_folder(folder: Path, gid: int) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        if gid >= 0:
            os.chown(folder, -1, gid)
            folder.chmod(0o750)
    except FileExistsError:
        _check_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: the folder of the sockets can't be made: {error.strerror}",
            hint="Set `sockets.folder` to a folder that trimtab may write.",
        ) from error


def _check_folder(folder: Path) -> None:
    """A folder that others can write could give our clients another's socket."""
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{folder}: the folder of the sockets is no folder")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{folder}: the folder of the sockets belongs to another user")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ConfigError(
            f"{folder}: anybody can write into the folder of the sockets",
            hint=f"`chmod o-w {folder}`, or set `sockets.folder` to a folder of its own.",
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _clear_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"{path}: is in the way, and isn't a socket",
            hint="Move it away, or set another path under `sockets`.",
        )
    if answers(path):
        raise SocketTakenError(
            f"{path}: a running daemon answers there",
            hint="`trimtab status` shows it; stop it first, or set `sockets.folder`.",
        )
    path.unlink()


def answers(path: Path) -> bool:
    """Whether somebody listens at the socket.

    Raises:
        ConfigError: We aren't allowed to ask.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (TimeoutError, BlockingIOError):
            return True  # its queue is full: somebody is there
        except OSError as error:
            raise ConfigError(f"{path}: can't be asked: {error.strerror}") from error
    return True


def passed_by_systemd(
    environ: Mapping[str, str], pid: int, first: int = _FIRST_PASSED
) -> dict[str, list[int]]:
    """Descriptors that systemd passed to this process, by name; they are made close-on-exec.

    Args:
        environ: LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES are read.
        pid: Our own process id: what is meant for another isn't ours.
        first: Number of the first descriptor.
    """
    told = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(pid) or not told.isdecimal():
        return {}
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    passed: dict[str, list[int]] = {}
    for index in range(int(told)):
        descriptor = first + index
        os.set_inheritable(descriptor, False)
        name = names[index] if index < len(names) else "unknown"
        passed.setdefault(name, []).append(descriptor)
    return passed


def activated(passed: Mapping[str, list[int]], name: str) -> Listener | None:
    """The listening socket that systemd passed under a name, or None.

    The name is that of ``FileDescriptorName=``; a socket unit without one passes its own name.

    Args:
        passed: From `passed_by_systemd`.
        name: ``inference`` or ``control``.
    """
    for known in (name, f"trimtab-{name}.socket"):
        for descriptor in passed.get(known, []):
            listening = socket.socket(fileno=descriptor)
            listening.setblocking(False)
            return Listener(listening)
    return None
