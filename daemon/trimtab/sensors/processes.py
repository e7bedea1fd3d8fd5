"""What the daemon and its workers hold and write: proportional memory and bytes sent to disks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.meminfo import field_bytes
from trimtab.sensors.source import Files, Roots, explain
from trimtab.signals.estimators import Rate

_PARTS: Final = (
    ("memory.own.pss", b"Pss:"),
    ("memory.own.anonymous", b"Pss_Anon:"),
    ("memory.own.shared", b"Pss_Shmem:"),
    ("memory.own.swapped", b"SwapPss:"),
)


class Watched:
    """The daemon's processes besides this one, told by the supervisor, seen by several sensors."""

    def __init__(self) -> None:
        self.pids: tuple[str, ...] = ()

    def watch(self, pids: Iterable[int]) -> None:
        """Replaces the list."""
        self.pids = tuple(str(pid) for pid in pids)


def parse_rollup(text: str) -> dict[str, int]:
    """The sums of `smaps_rollup` that have a signal, in bytes.

    Kernels before 5.4 leave out the split by kind; those signals are left out then, too.

    Raises:
        ValueError: If there is no Pss at all.
    """
    data = text.encode()
    parts = {}
    for signal, name in _PARTS:
        value = field_bytes(data, name)
        if value is not None:
            parts[signal] = value
    if "memory.own.pss" not in parts:
        raise ValueError("smaps_rollup has no Pss")
    return parts


def parse_io(text: str) -> int:
    """Bytes that a process has caused to be written to disks, less those that were taken back.

    Raises:
        ValueError: If it isn't `/proc/PID/io`.
    """
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return max(0, int(values["write_bytes"]) - int(values["cancelled_write_bytes"]))
    except KeyError as error:
        raise ValueError(f"/proc/PID/io has no {error}") from error


class ProcessSensor:
    """Memory and disk writes of this process and the watched ones.

    Args:
        roots: Where `/proc` is.
        watched: The other processes.
    """

    signals = (*(signal for signal, _ in _PARTS), "disk.own_write_rate", "disk.own_written")
    period_s = 10.0

    def __init__(self, roots: Roots, watched: Watched) -> None:
        self._proc = roots.proc
        self._watched = watched
        self._written: dict[str, int] = {}  # by pid, at the last look
        self._total_written = 0
        self._rate = Rate()

    def read(self, at_s: float, files: Files) -> list[Reading]:
        """The sums over all processes that still live."""
        pids = ("self", *self._watched.pids)
        return [*self._memory(pids, at_s, files), *self._writes(pids, at_s, files)]

    def _memory(self, pids: tuple[str, ...], at_s: float, files: Files) -> list[Reading]:
        sums: dict[str, int] = {}
        denied = ""
        for pid in pids:
            try:
                parts = parse_rollup(files.read(f"{self._proc}/{pid}/smaps_rollup"))
            except (OSError, ValueError) as error:
                quality, reason = explain(error)
                # ESRCH is a process that ends while it is read; one that is gone holds nothing
                if quality is Quality.FAILED and not isinstance(error, ProcessLookupError):
                    denied = reason
                continue
            for signal, value in parts.items():
                sums[signal] = sums.get(signal, 0) + value
        if denied:
            return [
                Reading(signal, float(value), at_s, Quality.SUSPECT, f"incomplete: {denied}")
                for signal, value in sums.items()
            ] or [Reading("memory.own.pss", None, at_s, Quality.FAILED, denied)]
        text = f"{len(pids)} processes" if len(pids) > 1 else "the daemon alone"
        return [
            Reading(signal, float(value), at_s, Quality.GOOD, text)
            for signal, value in sums.items()
        ]

    def _writes(self, pids: tuple[str, ...], at_s: float, files: Files) -> list[Reading]:
        now = {}
        for pid in pids:
            try:
                now[pid] = parse_io(files.read(f"{self._proc}/{pid}/io"))
            except (OSError, ValueError):
                continue  # ended, or a kernel without task accounting
        if not now:
            return []
        for pid, written in now.items():
            before = self._written.get(pid, 0 if pid != "self" else written)
            self._total_written += written - before if written >= before else written
        self._written = now
        rate = self._rate.add(at_s, self._total_written)
        return [
            Reading("disk.own_written", float(self._total_written), at_s),
            Reading("disk.own_write_rate", rate, at_s)
            if rate is not None
            else Reading(
                "disk.own_write_rate", None, at_s, Quality.ABSENT, "needs a second reading"
            ),
        ]
