"""Kernel files that stay open, for sensors that are read within the tick."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

_CHUNK_BYTES: Final = 8192
_MOST_BYTES: Final = 1 << 20  # no file of the kernel's that we read comes near it


class HeldFile:
    """One kernel file, opened once and read from its start at each look.

    Opening takes longer than reading, and every look at 10 ms polling counts. The file is opened
    without blocking and must be a regular one, so that a FIFO in its place is an error at once and
    never a hang. It is opened again after an error. A file of the kernel's that goes away says so
    at the next read; one in a tree that somebody made doesn't, so there each look checks that the
    file hasn't been replaced or removed.

    Args:
        path: The file.
        head: True if its first 8 KiB are enough.
    """

    __slots__ = ("_fd", "_head", "_kernels", "path")

    def __init__(self, path: str, *, head: bool = False) -> None:
        self.path = path
        self._head = head
        self._kernels = path.startswith(("/proc/", "/sys/"))
        self._fd = -1

    def read(self) -> bytes:
        """The whole content, as it is now.

        Raises:
            OSError: With the file's name, if it can't be read.
        """
        try:
            if self._fd < 0 or (not self._kernels and os.fstat(self._fd).st_nlink == 0):
                self.close()
                self._fd = self._open()
            data = os.pread(self._fd, _CHUNK_BYTES, 0)
            if len(data) == _CHUNK_BYTES and not self._head:
                data += self._rest()
        except OSError as error:
            self.close()
            error.filename = self.path
            raise
        return data

    def _rest(self) -> bytes:
        """What follows the first chunk, up to a bound."""
        parts = []
        offset = _CHUNK_BYTES
        while offset < _MOST_BYTES:
            part = os.pread(self._fd, _CHUNK_BYTES, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", self.path)
        return fd

    def close(self) -> None:
        """Gives the descriptor back; the next read opens the file again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_once(path: str) -> bytes:
    """The content of a kernel file that is read too seldom to be held open.

    Raises:
        OSError: With the file's name, if it can't be read.
    """
    held = HeldFile(path)
    try:
        return held.read()
    finally:
        held.close()
