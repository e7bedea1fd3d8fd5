"""What every sensor has in common: where it reads, what it answers for, how it says no."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from trimtab.domain.readings import Quality, Reading

_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ENXIO, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel's two file systems are: the real ones, or a tree for tests.

    Attributes:
        proc: Usually ``/proc``.
        sys: Usually ``/sys``.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    @property
    def real(self) -> bool:
        """True if this is the machine itself, not a tree that was made."""
        return self.proc == Path("/proc") and self.sys == Path("/sys")


class KernelFile(Protocol):
    """A file that is read again and again."""

    def read(self) -> bytes:
        """The whole content, as it is now.

        Raises:
            OSError: If it can't be read.
        """

    def close(self) -> None:
        """Closes it; the next read opens it again."""


class Files(Protocol):
    """What slow sensors read through: each call can be given up if it hangs."""

    def read(self, path: str) -> str:
        """The text of a small file.

        Raises:
            OSError: If it can't be read; `ETIMEDOUT` for one that hung before and still does.
        """

    def entries(self, folder: str) -> list[str]:
        """The names in a folder, sorted with numbers in order; empty if it isn't there."""

    def statvfs(self, path: str) -> os.statvfs_result:
        """Space on the file system of a path."""


class FastSource(Protocol):
    """A sensor that is read within the tick: kernel files that answer in microseconds."""

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that it always answers for, be it with *absent*."""

    def read(self, at_s: float) -> Iterable[Reading]:
        """Reads now.

        Raises:
            OSError: If the whole source is out of order.
            ValueError: If what it read makes no sense.
        """

    def close(self) -> None:
        """Closes what it holds open."""


class SlowSource(Protocol):
    """A sensor that may take its time or hang: read in a thread with a deadline.

    `read` must be safe to be called again by another thread while an earlier call hangs in one of
    the `files` methods; that earlier call never comes back to it.
    """

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that it always answers for, be it with *absent*."""

    @property
    def period_s(self) -> float:
        """How often it is worth reading."""

    def read(self, at_s: float, files: Files) -> Iterable[Reading]:
        """Reads now.

        Raises:
            OSError: If the whole source is out of order.
            ValueError: If what it read makes no sense.
        """


def explain(error: Exception) -> tuple[Quality, str]:
    """Quality and reason for a read that failed: *absent* if it isn't there, else *failed*."""
    if not isinstance(error, OSError):
        return Quality.FAILED, str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename else ""
    name = _name(error.errno or 0)
    if error.errno in _GONE:
        return Quality.ABSENT, f"{where}{error.strerror} ({name})"
    suffix = f" ({name})" if name else ""
    return Quality.FAILED, f"{where}{error.strerror or error}{suffix}"


def _name(code: int) -> str:
    """The error's symbol, as the manual pages of the files that we read call it."""
    return "EOPNOTSUPP" if code == errno.EOPNOTSUPP else errno.errorcode.get(code, "")


def missing(signals: Iterable[str], at_s: float, quality: Quality, reason: str) -> list[Reading]:
    """Readings without a value for all these signals, for one common reason."""
    return [Reading(signal, None, at_s, quality, reason) for signal in signals]


def unreadable(signals: Iterable[str], at_s: float, error: Exception) -> list[Reading]:
    """Readings without a value for all these signals, because of this error."""
    quality, reason = explain(error)
    return missing(signals, at_s, quality, reason)
