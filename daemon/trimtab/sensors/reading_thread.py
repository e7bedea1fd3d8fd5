"""The thread that reads slow sensors, and the files that it reads them through."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, TypeAlias

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.source import SlowSource, missing, unreadable

_MOST_BYTES: Final = 64 * 1024
_DIGITS: Final = re.compile(r"(\d+)")


Task: TypeAlias = tuple[str, float]  # a source's name, and the time of the tick that asks


class AbandonedError(Exception):
    """Ends a read in a thread that was given up; nothing that it read counts any more."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a source said.

    Attributes:
        name: The source.
        at_s: Time of the tick that asked.
        readings: One for each signal that it answers for, at least.
    """

    name: str
    at_s: float
    readings: tuple[Reading, ...]


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """Sorts ``zone2`` before ``zone10``."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(name) if part]


class ReadingThread:
    """One reading thread, and the `Files` that its sources read through.

    `current` and `steps` are written by the thread and read by the tick; all else is the tick's.
    """

    def __init__(
        self,
        sources: Mapping[str, SlowSource],
        hung: Mapping[str, object],
        results: SimpleQueue[Result],
    ) -> None:
        self._sources = sources
        self._hung = hung
        self._results = results
        self.tasks: SimpleQueue[tuple[Task, ...] | None] = SimpleQueue()
        self.current: str | None = None
        self.steps = 0
        self.abandoned = False
        self.thread = threading.Thread(target=self._run, name="trimtab-sensors", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (tasks := self.tasks.get()) is not None:
            for name, at_s in tasks:
                try:
                    result = self._read(name, at_s)
                except AbandonedError:
                    return
                if self.abandoned:
                    return
                self._results.put(Result(name, at_s, tuple(result)))

    def _read(self, name: str, at_s: float) -> list[Reading]:
        """One source; the supervising catch-all, so that a fault in one never ends the thread."""
        source = self._sources[name]
        try:
            with self._step(name):
                readings = list(source.read(at_s, self))
        except AbandonedError:
            raise
        except Exception as error:
            return unreadable(source.signals, at_s, error)
        told = {reading.signal for reading in readings}
        untold = [signal for signal in source.signals if signal not in told]
        return readings + missing(untold, at_s, Quality.ABSENT, "this machine doesn't have it")

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Tells the tick what the thread is about to do, in case it doesn't come back."""
        if what in self._hung:
            raise OSError(errno.ETIMEDOUT, "doesn't answer", what)
        outer, self.current = self.current, what
        self.steps += 1
        try:
            yield
        finally:
            self.current = outer
            self.steps += 1
            if self.abandoned:  # whatever came of it, it is too late
                raise AbandonedError

    def read(self, path: str) -> str:
        """The text of a small file (see `Files`)."""
        with self._step(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(fd, _MOST_BYTES)
            except OSError as error:
                error.filename = path
                raise
            finally:
                os.close(fd)
        return data.decode(errors="replace")

    def entries(self, folder: str) -> list[str]:
        """The names in a folder (see `Files`)."""
        try:
            with self._step(folder):
                names = os.listdir(folder)  # noqa: PTH208  (a Path for each name costs tenfold)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(names, key=natural_key)

    def statvfs(self, path: str) -> os.statvfs_result:
        """Space on the file system of a path (see `Files`)."""
        with self._step(path):
            return os.statvfs(path)
