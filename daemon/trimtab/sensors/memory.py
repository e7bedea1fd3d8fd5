"""Memory that is really available, the machine's and the control groups' limits taken together.

psutil isn't used for this: it reports the host's memory inside a container. The smallest of these
counts: MemAvailable (never MemFree: page cache isn't use), and for every group on the way to the
root that has a limit, that limit less the group's working set. An integrated GPU's memory is this
same memory; a carve-out of video memory never enters here, since it doesn't hold the weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.cgroups import Level, LevelUse, find_levels
from trimtab.sensors.files import HeldFile
from trimtab.sensors.meminfo import MemInfo, parse_available, parse_meminfo
from trimtab.sensors.source import Roots, explain, missing

_LIMIT_SIGNALS: Final = ("memory.limit", "memory.working_set")
_MIB: Final = 1 << 20


class MemorySensor:
    """MemAvailable and cgroup limits, with a path that is cheap enough for 10 ms polling.

    Args:
        roots: Where `/proc` and `/sys` are.
    """

    signals = (
        "memory.total",
        "memory.available",
        "memory.headroom",
        "memory.dirty",
        "memory.swap.total",
        "memory.swap.free",
        *_LIMIT_SIGNALS,
    )

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._meminfo = HeldFile(f"{roots.proc}/meminfo")
        self._own_cgroup = HeldFile(f"{roots.proc}/self/cgroup")
        self._own_path: bytes | None = None
        self._pids: tuple[str, ...] = ("self",)
        self._levels: list[Level] = []
        self._limited: list[Level] = []
        self._unread_limit = ""  # why a limit of the last tick can't be read
        self._stale_levels = True  # one of them failed: look for them again at the next tick
        self._other_processes = True  # there are others to look for at once

    def watch_processes(self, pids: Iterable[int]) -> None:
        """Takes the groups of these processes into account too; the weights live in workers."""
        self._pids = ("self", *(str(pid) for pid in pids))
        self._other_processes = True

    def available(self, at_s: float) -> Reading:
        """`memory.available` alone, as fast as can be; limits are those of the last tick."""
        try:
            value = parse_available(self._meminfo.read())
            if value is None:
                return self._first(at_s)
        except (OSError, ValueError) as error:
            quality, reason = explain(error)
            return Reading("memory.available", None, at_s, quality, reason)
        if self._other_processes:
            self._find_levels()
        problem = self._unread_limit
        for level in self._limited:
            try:
                left = level.available_bytes()
            except (OSError, ValueError) as error:
                problem = self._broken(level, error) or problem
                continue
            if left is not None and left < value:
                value = left
        quality = Quality.SUSPECT if problem else Quality.GOOD
        reason = _unknown_limit(problem) if problem else ""
        return Reading("memory.available", float(value), at_s, quality, reason)

    def _first(self, at_s: float) -> Reading:
        """The long way, for kernels without MemAvailable."""
        for reading in self.read(at_s):
            if reading.signal == "memory.available":
                return reading
        raise ValueError("memory.available was not read")

    def _broken(self, level: Level, error: Exception) -> str:
        """What is wrong with a level; empty if it is gone. The next tick looks for all again."""
        self._stale_levels = True
        quality, reason = explain(error)
        return "" if quality is Quality.ABSENT else f"{level.folder}: {reason}"

    def read(self, at_s: float) -> list[Reading]:
        """All memory readings of a tick, the derived ones with their arithmetic as the reason."""
        info = parse_meminfo(self._meminfo.read())
        self._refresh_levels()
        uses, broken = self._uses()
        good = _good(info, self._unread_limit or broken)
        quality, reason = good
        pools = [(info.available_bytes, _machine_text(info))]
        pools += [(use.available_bytes, _level_text(use)) for use in uses]
        available, text = min(pools)
        readings = [
            Reading("memory.total", float(info.total_bytes), at_s),
            Reading(
                "memory.available",
                float(available),
                at_s,
                quality,
                reason or _smallest(text, len(pools)),
            ),
            self._headroom(info, uses, at_s, good),
            Reading("memory.dirty", float(info.dirty_bytes), at_s),
            Reading("memory.swap.total", float(info.swap_total_bytes), at_s),
            Reading("memory.swap.free", float(info.swap_free_bytes), at_s),
        ]
        return readings + _limit_readings(uses, at_s)

    def _headroom(
        self, info: MemInfo, uses: list[LevelUse], at_s: float, good: tuple[Quality, str]
    ) -> Reading:
        """How far the kernel's OOM killer is: hard limits only, unwritten file pages taken off."""
        pools = [(info.available_bytes, _machine_text(info))]
        for use in uses:
            if use.hard_bytes is not None:
                left = max(0, use.hard_bytes - use.working_set_bytes - use.dirty_bytes)
                pools.append((left, _hard_text(use, left)))
        headroom, text = min(pools)
        quality, reason = good
        return Reading("memory.headroom", float(headroom), at_s, quality, reason or text)

    def _refresh_levels(self) -> None:
        """Finds the groups again if we were moved, and reads their limits."""
        try:
            own = self._own_cgroup.read()
        except OSError:
            own = b""
        if own != self._own_path or self._stale_levels or self._other_processes:
            self._own_path = own
            self._find_levels()
        else:
            self._read_limits()

    def _find_levels(self) -> None:
        for level in self._levels:
            level.close()
        self._levels = find_levels(self._roots, self._pids)
        self._stale_levels = self._other_processes = False
        self._read_limits()

    def _read_limits(self) -> None:
        problem = ""
        for level in self._levels:
            try:
                level.refresh_limits()
            except (OSError, ValueError) as error:
                problem = self._broken(level, error) or problem
        self._limited = [level for level in self._levels if level.limited]
        self._unread_limit = problem

    def _uses(self) -> tuple[list[LevelUse], str]:
        """The arithmetic of each limited level, and what couldn't be read."""
        uses, problem = [], ""
        for level in self._limited:
            try:
                use = level.use()
            except (OSError, ValueError) as error:
                problem = self._broken(level, error) or problem
                continue
            if use is not None:
                uses.append(use)
        return uses, problem

    def close(self) -> None:
        """Closes all files."""
        self._meminfo.close()
        self._own_cgroup.close()
        for level in self._levels:
            level.close()


def _good(info: MemInfo, problem: str) -> tuple[Quality, str]:
    """Quality of what is derived, and the reason if it isn't good.

    A limit that exists and can't be read makes the sum suspect: it may be the smallest.
    """
    if problem:
        return Quality.SUSPECT, _unknown_limit(problem)
    if info.available_bytes > info.total_bytes:
        return Quality.SUSPECT, "MemAvailable is greater than MemTotal"
    return Quality.GOOD, ""


def _unknown_limit(problem: str) -> str:
    return f"a cgroup limit can't be read: {problem}"


def _mib(value: int) -> str:
    return f"{value / _MIB:.0f} MiB"


def _machine_text(info: MemInfo) -> str:
    how = (
        "free + half of the file pages, since the kernel has none" if info.estimated else "machine"
    )
    return f"MemAvailable {_mib(info.available_bytes)} ({how})"


def _level_text(use: LevelUse) -> str:
    return (
        f"{use.name}: {use.limit_name} {_mib(use.limit_bytes)} − (usage {_mib(use.usage_bytes)} − "
        f"inactive file {_mib(use.inactive_file_bytes)}) = {_mib(use.available_bytes)}"
    )


def _hard_text(use: LevelUse, left: int) -> str:
    return (
        f"{use.name}: limit {_mib(use.hard_bytes or 0)} − working set "
        f"{_mib(use.working_set_bytes)} − unwritten file pages {_mib(use.dirty_bytes)} "
        f"= {_mib(left)}"
    )


def _smallest(text: str, pools: int) -> str:
    return text if pools == 1 else f"smallest of {pools}: {text}"


def _limit_readings(uses: list[LevelUse], at_s: float) -> list[Reading]:
    """The level that leaves least, as signals of its own."""
    if not uses:
        return missing(_LIMIT_SIGNALS, at_s, Quality.ABSENT, "no control group limits our memory")
    tightest = min(uses, key=lambda use: use.available_bytes)
    where = f"{tightest.name}: {tightest.limit_name}"
    return [
        Reading("memory.limit", float(tightest.limit_bytes), at_s, Quality.GOOD, where),
        Reading("memory.working_set", float(tightest.working_set_bytes), at_s, Quality.GOOD, where),
    ]
