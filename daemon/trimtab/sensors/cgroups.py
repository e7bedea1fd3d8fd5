"""Which control groups bound a process's memory, and how much each of them still has.

A limit at any level counts, not only that of the process's own group: the whole way up to the root
is taken, for version 1 and version 2, as seen from inside a container too. Page cache that the
kernel would drop first isn't use: working set = usage − inactive file pages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.sensors.files import HeldFile, read_once
from trimtab.sensors.source import Roots

# Version 1 writes "no limit" as the greatest multiple of the page size in 63 bits, which depends on
# the page size; no machine has half of that.
_NO_LIMIT_FROM: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted cgroup hierarchy.

    Attributes:
        version: 1 or 2.
        root: The group that is mounted (a container's own, often), as the kernel names it.
        point: Where it is mounted.
    """

    version: int
    root: str
    point: str


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The cgroup hierarchies that may hold the memory controller, from `/proc/self/mountinfo`."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, point = _unescape(fields[3]), _unescape(fields[4])
        if kind[0] == "cgroup2":
            mounts.append(Mount(2, root, point))
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            mounts.append(Mount(1, root, point))
    return tuple(mounts)


def _unescape(path: str) -> str:
    """Mountinfo writes space, tab, newline and backslash as three octal digits."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


def parse_cgroup(text: str) -> dict[int, str]:
    """The process's path by hierarchy version, from `/proc/PID/cgroup`.

    Returns:
        ``{1: path}`` for version 1's memory controller, ``{2: path}`` for version 2, or both.
    """
    paths: dict[int, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    return paths


def parse_limit(text: bytes) -> int | None:
    """A limit in bytes; None for ``max`` or version 1's way to say none.

    Raises:
        ValueError: If it is neither.
    """
    word = text.strip()
    if word == b"max":
        return None
    value = int(word)
    if value < 0:
        raise ValueError(f"a limit of {value} bytes")
    return None if value >= _NO_LIMIT_FROM else value


def stat_field(text: bytes, name: bytes) -> int:
    """One number of a `memory.stat`; 0 where the kernel doesn't count it.

    Args:
        text: The file.
        name: The key without a space.

    Raises:
        ValueError: If it is no number.
    """
    key = name + b" "
    if text.startswith(key):
        start = len(key)
    else:
        start = text.find(b"\n" + key)
        if start < 0:
            return 0
        start += 1 + len(key)
    end = text.find(b"\n", start)
    return int(text[start : end if end >= 0 else None])


@dataclass(frozen=True, slots=True)
class LevelUse:
    """How one level stands.

    Attributes:
        name: The group's path as the kernel names it.
        limit_bytes: The smaller of its soft and its hard limit.
        limit_name: Which file that limit came from.
        hard_bytes: The limit at which the kernel kills; None if there is none.
        usage_bytes: All that is charged, page cache included.
        inactive_file_bytes: Page cache that goes first.
        dirty_bytes: File pages that can't be dropped before they are written.
    """

    name: str
    limit_bytes: int
    limit_name: str
    hard_bytes: int | None
    usage_bytes: int
    inactive_file_bytes: int
    dirty_bytes: int

    @property
    def working_set_bytes(self) -> int:
        """Usage less the page cache that the kernel would drop first."""
        return max(0, self.usage_bytes - self.inactive_file_bytes)

    @property
    def available_bytes(self) -> int:
        """What the limit leaves."""
        return max(0, self.limit_bytes - self.working_set_bytes)


class Level:
    """One group on the way from a process to the root, its files held open.

    Args:
        name: The group's path as the kernel names it.
        folder: Where its files are.
        version: 1 or 2.
        own: False for an ancestor; version 1's ancestors may not count their children.
    """

    def __init__(self, name: str, folder: str, version: int, *, own: bool = True) -> None:
        self.name = name
        self.folder = folder
        self.version = version
        usage = "memory.usage_in_bytes" if version == 1 else "memory.current"
        self._usage = HeldFile(f"{folder}/{usage}")
        self._stat = HeldFile(f"{folder}/memory.stat")
        names = ("memory.limit_in_bytes",) if version == 1 else ("memory.max", "memory.high")
        self._limits = tuple((limit, HeldFile(f"{folder}/{limit}")) for limit in names)
        prefix = b"total_" if version == 1 else b""
        self._inactive_key = prefix + b"inactive_file"
        self._dirty_keys = (
            (b"total_dirty", b"total_writeback")
            if version == 1
            else (b"file_dirty", b"file_writeback")
        )
        self._limit: tuple[int, str] | None = None
        self._hard: int | None = None
        self._counts_children = own or version == 2 or self._hierarchical()

    def _hierarchical(self) -> bool:
        """Whether a version 1 ancestor charges its children to itself (the default since 2020)."""
        with contextlib.suppress(OSError):
            return read_once(f"{self.folder}/memory.use_hierarchy").strip() != b"0"
        return True

    def refresh_limits(self) -> None:
        """Reads the limits again; someone may have changed them.

        Raises:
            OSError: If the group is gone.
            ValueError: If a limit is neither a number nor ``max``.
        """
        found: list[tuple[int, str]] = []
        self._hard = None
        for name, file in self._limits:
            try:
                limit = parse_limit(file.read())
            except FileNotFoundError:
                continue  # the root of version 2 has no limits, and high came later than max
            if limit is not None:
                found.append((limit, name))
                if name != "memory.high":
                    self._hard = limit
        self._limit = min(found) if found and self._counts_children else None

    @property
    def limited(self) -> bool:
        """True if it had a finite limit at the last refresh."""
        return self._limit is not None

    def available_bytes(self) -> int | None:
        """What its limit leaves now; None without a limit.

        Raises:
            OSError: If the group is gone.
            ValueError: If its files hold no numbers.
        """
        if self._limit is None:
            return None
        usage = int(self._usage.read())
        inactive = stat_field(self._stat.read(), self._inactive_key)
        return max(0, self._limit[0] - max(0, usage - inactive))

    def use(self) -> LevelUse | None:
        """The whole arithmetic; None without a limit.

        Raises:
            OSError: If the group is gone.
            ValueError: If its files hold no numbers.
        """
        if self._limit is None:
            return None
        stat = self._stat.read()
        return LevelUse(
            name=self.name,
            limit_bytes=self._limit[0],
            limit_name=self._limit[1],
            hard_bytes=self._hard,
            usage_bytes=int(self._usage.read()),
            inactive_file_bytes=stat_field(stat, self._inactive_key),
            dirty_bytes=sum(stat_field(stat, key) for key in self._dirty_keys),
        )

    def close(self) -> None:
        """Closes its files."""
        self._usage.close()
        self._stat.close()
        for _, file in self._limits:
            file.close()


def level_folders(mount: Mount, path: str, roots: Roots) -> list[tuple[str, str]]:
    """Names and folders of the groups from a process's own up to the root of what is mounted.

    In a container the path may lie outside of what is mounted, or be told relative to another
    namespace (``/../..``): then the mounted root itself is the group that bounds us.
    """
    base = _relocate(mount.point, roots)
    if base is None:
        return []
    root = "" if mount.root == "/" else mount.root
    inside = path == root or path.startswith(f"{root}/")
    relative = path[len(root) :].strip("/") if inside and "/.." not in path else ""
    parts = [part for part in relative.split("/") if part]
    if parts and not (base / relative).is_dir():
        parts = []
    return [
        (f"{root}/{'/'.join(parts[:count])}".rstrip("/") or "/", str(base.joinpath(*parts[:count])))
        for count in range(len(parts), -1, -1)
    ]


def _relocate(point: str, roots: Roots) -> Path | None:
    """A mount point as it is found below the given roots; None if it lies outside of them."""
    if point == "/sys" or point.startswith("/sys/"):
        return roots.sys / point[5:]
    return Path(point) if roots.real else None


def find_levels(roots: Roots, pids: Iterable[str]) -> list[Level]:
    """All groups that bound the memory of these processes, each once.

    Args:
        roots: Where `/proc` and `/sys` are.
        pids: Process ids as text, or ``self``.
    """
    try:
        mounts = parse_mountinfo(read_once(f"{roots.proc}/self/mountinfo").decode(errors="replace"))
    except OSError:
        return []
    levels: dict[str, Level] = {}
    for pid in pids:
        try:
            paths = parse_cgroup(read_once(f"{roots.proc}/{pid}/cgroup").decode(errors="replace"))
        except OSError:
            continue  # it has ended
        for mount in mounts:
            if mount.version not in paths:
                continue
            folders = level_folders(mount, paths[mount.version], roots)
            for depth, (name, folder) in enumerate(folders):
                if folder not in levels:
                    levels[folder] = Level(name, folder, mount.version, own=depth == 0)
    return list(levels.values())
