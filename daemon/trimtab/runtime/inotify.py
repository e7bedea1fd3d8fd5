"""inotify without a dependency: which folders had something happen. Only an accelerator.

Where it isn't to be had (no such kernel, too many watches), `open_inotify` gives None, and whoever
wants to know polls.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Final

_CLOEXEC: Final = os.O_CLOEXEC
_NONBLOCK: Final = os.O_NONBLOCK

_CLOSE_WRITE: Final = 0x008
_ATTRIB: Final = 0x004
_MOVED_FROM: Final = 0x040
_MOVED_TO: Final = 0x080
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_SELF_GONE: Final = 0x400 | 0x800
_ONLYDIR: Final = 0x01000000
_MOVED: Final = _MOVED_FROM | _MOVED_TO
_MASK: Final = _CLOSE_WRITE | _ATTRIB | _MOVED | _CREATE | _DELETE | _SELF_GONE | _ONLYDIR
_HEADER: Final = struct.Struct("iIII")

_READ_BYTES: Final = 64 * 1024

MOST_LINKS: Final = 8
"""Symbolic links that are followed on the way to one file."""


class Happened(IntEnum):
    """What a look at the events told."""

    NOTHING = 0
    SOMETHING = 1  # a file may be half-written
    WHOLE = 2  # a file that matters was written and closed, or moved to its place


class Inotify:
    """Watches folders; the descriptor becomes readable when something happens in one of them.

    Args:
        descriptor: From inotify_init1.
        library: The C library.
    """

    def __init__(self, descriptor: int, library: ctypes.CDLL) -> None:
        self._descriptor = descriptor
        self._library = library
        self._watched: dict[Path, int] = {}
        self._names: frozenset[bytes] = frozenset()

    def fileno(self) -> int:
        """The descriptor, for an event loop."""
        return self._descriptor

    def watch(self, folders: Iterable[Path], names: Iterable[str] = ()) -> None:
        """Watch exactly these folders from now on; what can't be watched is left out.

        Args:
            folders: The folders.
            names: Of the files in them whose being whole matters.
        """
        wanted = set(folders)
        self._names = frozenset(os.fsencode(name) for name in names)
        for folder in set(self._watched) - wanted:
            self._library.inotify_rm_watch(self._descriptor, self._watched.pop(folder))
        for folder in wanted:
            # Asking again for a watched folder is harmless, and finds one that was replaced.
            number = self._library.inotify_add_watch(
                self._descriptor, os.fsencode(folder), ctypes.c_uint32(_MASK)
            )
            if number >= 0:
                self._watched[folder] = number
            else:
                self._watched.pop(folder, None)

    @property
    def watched(self) -> frozenset[Path]:
        """The folders that are really watched."""
        return frozenset(self._watched)

    def drain(self) -> Happened:
        """Take in what has happened."""
        happened = Happened.NOTHING
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return happened
            happened = max(happened, _weigh(data, self._names))

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


def _weigh(data: bytes, names: frozenset[bytes]) -> Happened:
    """The most that a buffer of events tells: each is a header and a name padded with zeros."""
    happened, at = Happened.NOTHING, 0
    while at + _HEADER.size <= len(data):
        _, mask, _, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        name = data[at : at + length].rstrip(b"\0")
        at += length
        whole = mask & (_CLOSE_WRITE | _MOVED_TO) and name in names
        happened = max(happened, Happened.WHOLE if whole else Happened.SOMETHING)
    return happened


def open_inotify() -> Inotify | None:
    """An inotify instance, or None where the system has none to give."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = library.inotify_init1(_CLOEXEC | _NONBLOCK)
    except (OSError, AttributeError):
        return None
    return Inotify(descriptor, library) if descriptor >= 0 else None


def folders_of(path: Path) -> set[Path]:
    """Every folder in which a change can change what a path leads to.

    That is the folder of the file, and for each symbolic link on the way the folder of the link,
    since links are swapped.
    """
    found: set[Path] = set()
    _walk(path if path.is_absolute() else Path.cwd() / path, found, 0)
    return found


def _walk(path: Path, found: set[Path], depth: int) -> None:
    here = Path(path.anchor)
    for index, part in enumerate(path.parts[1:]):
        step = here / part
        try:
            if depth < MOST_LINKS and step.is_symlink():
                found.add(here)
                rest = path.parts[index + 2 :]
                _walk((here / step.readlink()).joinpath(*rest), found, depth + 1)
                return
            if not step.is_dir():
                break
        except OSError:
            break  # a folder that may not be entered: what lies above it is watched
        here = step
    found.add(here)
