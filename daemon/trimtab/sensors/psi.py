"""Pressure stall information: the share of time in which tasks waited for memory, CPU or disk.

`/proc/pressure/X` for the machine; `memory.pressure` of our own group (version 2) as well. Some
kernels don't have the files, others show them and answer EOPNOTSUPP: PSI is off then, and
MemAvailable with its slope has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.cgroups import level_folders, parse_cgroup, parse_mountinfo
from trimtab.sensors.files import HeldFile, read_once
from trimtab.sensors.source import KernelFile, Roots, missing, unreadable

_AVERAGES: Final = ("avg10", "avg60", "avg300")
_SHORTEST_S: Final = 0.005  # two looks closer together than this give no share
_OFF: Final = "PSI is off in this kernel (psi=1 turns it on); MemAvailable's slope stands in"


@dataclass(frozen=True, slots=True)
class Stall:
    """One line of a pressure file.

    Attributes:
        kind: ``some`` (a task waited) or ``full`` (all of them did).
        averages: Share of the last 10, 60 and 300 s, 0 to 1.
        total_s: Stalled time since boot.
    """

    kind: str
    averages: tuple[float, ...]
    total_s: float


def parse_pressure(text: str) -> tuple[Stall, ...]:
    """Parses a pressure file.

    Raises:
        ValueError: If a line isn't of the kernel's form.
    """
    stalls = []
    for line in text.splitlines():
        kind, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        try:
            averages = tuple(float(values[name]) / 100 for name in _AVERAGES)
            stalls.append(Stall(kind, averages, int(values["total"]) / 1e6))
        except KeyError as error:
            raise ValueError(f"the pressure line {line!r} lacks {error}") from error
    if not stalls:
        raise ValueError("the pressure file is empty")
    return tuple(stalls)


class _PressureFile:
    """One pressure file as signals below a prefix, with the share since the last look.

    Args:
        file: The file.
        prefix: Such as ``memory.psi``.
        kinds: Which lines matter; ``full`` means nothing for the CPU of a whole machine.
    """

    def __init__(self, file: KernelFile, prefix: str, kinds: tuple[str, ...]) -> None:
        self._file = file
        self._names = {
            kind: tuple(f"{prefix}.{kind}_{average}" for average in (*_AVERAGES, "now"))
            for kind in kinds
        }
        self.signals = tuple(name for names in self._names.values() for name in names)
        self._last: dict[str, tuple[float, float, float]] = {}

    def read(self, at_s: float) -> list[Reading]:
        """Readings for all its signals; absent or failed ones if the file can't be read."""
        try:
            stalls = parse_pressure(self._file.read().decode())
        except (OSError, ValueError) as error:
            self._last.clear()
            readings = unreadable(self.signals, at_s, error)
            if readings[0].quality is Quality.ABSENT:
                return missing(self.signals, at_s, Quality.ABSENT, _OFF)
            return readings
        readings = []
        for stall in stalls:
            names = self._names.get(stall.kind)
            if names is not None:
                values = (*stall.averages, self._now(stall, at_s))
                readings += [
                    Reading(name, value, at_s) for name, value in zip(names, values, strict=True)
                ]
        return readings

    def _now(self, stall: Stall, at_s: float) -> float:
        """Share of the time since the last look; 0 at the first, unchanged if it is too soon."""
        before_s, before_total_s, before = self._last.get(stall.kind, (at_s, stall.total_s, 0.0))
        elapsed_s = at_s - before_s
        if elapsed_s < _SHORTEST_S:
            self._last.setdefault(stall.kind, (at_s, stall.total_s, 0.0))
            return before
        share = min(1.0, max(0.0, (stall.total_s - before_total_s) / elapsed_s))
        self._last[stall.kind] = (at_s, stall.total_s, share)
        return share

    def close(self) -> None:
        self._file.close()


class PressureSensor:
    """PSI of the machine and of our own control group.

    Args:
        roots: Where `/proc` and `/sys` are.
        open_file: What the files are opened with.
    """

    def __init__(self, roots: Roots, open_file: Callable[[str], KernelFile] = HeldFile) -> None:
        both = ("some", "full")
        self._files = [
            _PressureFile(open_file(f"{roots.proc}/pressure/memory"), "memory.psi", both),
            _PressureFile(open_file(f"{roots.proc}/pressure/cpu"), "cpu.psi", ("some",)),
            _PressureFile(open_file(f"{roots.proc}/pressure/io"), "io.psi", both),
            _PressureFile(open_file(own_pressure_path(roots)), "memory.psi.own", both),
        ]
        self.signals = tuple(name for file in self._files for name in file.signals)

    def read(self, at_s: float) -> Iterable[Reading]:
        """All pressure readings; each file fails on its own."""
        return [reading for file in self._files for reading in file.read(at_s)]

    def close(self) -> None:
        """Closes all files."""
        for file in self._files:
            file.close()


def own_pressure_path(roots: Roots) -> str:
    """`memory.pressure` of our own version 2 group; a path that isn't there without one."""
    try:
        mounts = parse_mountinfo(read_once(f"{roots.proc}/self/mountinfo").decode(errors="replace"))
        paths = parse_cgroup(read_once(f"{roots.proc}/self/cgroup").decode(errors="replace"))
    except OSError:
        return f"{roots.sys}/fs/cgroup/memory.pressure"
    for mount in mounts:
        if mount.version == 2 and 2 in paths:
            folders = level_folders(mount, paths[2], roots)
            if folders:
                return f"{folders[0][1]}/memory.pressure"
    return f"{roots.sys}/fs/cgroup/memory.pressure"
