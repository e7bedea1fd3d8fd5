"""Who has the cores: ourselves, others, the hypervisor, or a disk that is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.files import HeldFile
from trimtab.sensors.processes import Watched
from trimtab.sensors.source import Roots, missing

_LEAST_TICKS: Final = 20  # over fewer clock ticks of all cores the shares are noise
_FIELDS: Final = 8  # user nice system idle iowait irq softirq steal; guest is in user already


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The first line of `/proc/stat`, in clock ticks of all cores together."""

    worked: int
    idle: int
    iowait: int
    steal: int

    @property
    def total(self) -> int:
        """All time."""
        return self.worked + self.idle + self.iowait + self.steal


def parse_stat(text: str) -> CpuTimes:
    """Parses `/proc/stat`.

    Raises:
        ValueError: If it doesn't begin with the line of all cores.
    """
    words = text.split("\n", 1)[0].split()
    if not words or words[0] != "cpu" or len(words) < 5:
        raise ValueError("the first line of /proc/stat is not that of all cores")
    ticks = [int(word) for word in words[1 : _FIELDS + 1]]
    ticks += [0] * (_FIELDS - len(ticks))
    user, nice, system, idle, iowait, irq, softirq, steal = ticks
    return CpuTimes(user + nice + system + irq + softirq, idle, iowait, steal)


def parse_process_ticks(text: str) -> tuple[int, int]:
    """Clock ticks that a process has used and its start time, from `/proc/PID/stat`.

    The name may hold anything, brackets and spaces too, so it is skipped to the last bracket.

    Raises:
        ValueError: If it is no such file.
    """
    fields = text[text.rfind(")") + 1 :].split()
    if len(fields) < 20:
        raise ValueError("/proc/PID/stat is too short")
    return int(fields[11]) + int(fields[12]), int(fields[19])


class CpuSensor:
    """Shares of all cores' time since the last tick.

    Args:
        roots: Where `/proc` is.
        watched: The daemon's other processes.
    """

    signals = ("cpu.busy", "cpu.own", "cpu.others", "cpu.steal", "cpu.iowait")

    def __init__(self, roots: Roots, watched: Watched) -> None:
        self._proc = roots.proc
        self._stat = HeldFile(f"{roots.proc}/stat", head=True)
        self._watched = watched
        self._files: dict[str, HeldFile] = {}
        self._last: CpuTimes | None = None
        self._last_own: dict[tuple[str, int], int] = {}
        self._readings: list[Reading] = []

    def read(self, at_s: float) -> Sequence[Reading]:
        """The shares; those of before if too little time has passed to tell."""
        times = parse_stat(self._stat.read().decode(errors="replace"))
        last = self._last
        if last is None or times.total < last.total:  # first look, or a counter was reset
            self._remember(times, self._own())
            reason = "needs a second tick"
            self._readings = missing(self.signals, at_s, Quality.ABSENT, reason)
            return self._readings
        total = times.total - last.total
        if total < _LEAST_TICKS:
            return self._readings
        own = self._own()
        own_ticks = sum(
            max(0, ticks - self._last_own[key])
            for key, ticks in own.items()
            if key in self._last_own
        )
        busy = _share(times.worked - last.worked, total)
        ours = min(busy, _share(own_ticks, total))
        values = (
            busy,
            ours,
            busy - ours,
            _share(times.steal - last.steal, total),
            _share(times.iowait - last.iowait, total),
        )
        self._remember(times, own)
        self._readings = [
            Reading(signal, value, at_s) for signal, value in zip(self.signals, values, strict=True)
        ]
        return self._readings

    def _remember(self, times: CpuTimes, own: dict[tuple[str, int], int]) -> None:
        self._last, self._last_own = times, own

    def _own(self) -> dict[tuple[str, int], int]:
        """Used ticks of each of our processes; a pid that was given away again is another key."""
        pids = ("self", *self._watched.pids)
        for gone in self._files.keys() - set(pids):
            self._files.pop(gone).close()
        own = {}
        for pid in pids:
            file = self._files.get(pid)
            if file is None:
                file = self._files[pid] = HeldFile(f"{self._proc}/{pid}/stat", head=True)
            try:
                ticks, started = parse_process_ticks(file.read().decode(errors="replace"))
            except (OSError, ValueError):
                continue  # it has ended
            own[(pid, started)] = ticks
        return own

    def close(self) -> None:
        """Closes all files."""
        self._stat.close()
        for file in self._files.values():
            file.close()


def _share(ticks: int, total: int) -> float:
    """Ticks as a share; the kernel's idle and iowait may run backwards by a few."""
    return min(1.0, max(0.0, ticks / total))
