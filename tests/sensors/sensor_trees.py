"""Trees of /proc and /sys for tests, made from short descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from trimtab.domain.readings import Reading, Snapshot
from trimtab.sensors import SensorConfig, SensorSuite

BOARDS = Path(__file__).parent / "boards"
MIB = 1 << 20
GIB = 1 << 30

MEMINFO = """\
MemTotal:        8000000 kB
MemFree:          300000 kB
MemAvailable:    4000000 kB
Buffers:           10000 kB
Cached:          3800000 kB
SwapTotal:       1000000 kB
SwapFree:         900000 kB
Active(file):    1000000 kB
Inactive(file):  2800000 kB
Dirty:              2000 kB
Writeback:           500 kB
SReclaimable:      60000 kB
"""
PRESSURE = """\
some avg10=12.50 avg60=4.00 avg300=1.00 total=5000000
full avg10=2.50 avg60=1.00 avg300=0.25 total=1000000
"""


class Tree:
    """A tree below a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.sys = root / "sys"
        for folder in (self.proc / "self", self.sys):
            folder.mkdir(parents=True, exist_ok=True)

    def put(self, path: str, text: str | bytes) -> Path:
        """Writes a file, `proc/...` or `sys/...`."""
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def zone(self, number: int, kind: str, millidegrees: object, **trips: object) -> None:
        """A thermal zone; trips by kind in millidegrees."""
        base = f"sys/class/thermal/thermal_zone{number}"
        self.put(f"{base}/type", f"{kind}\n")
        self.put(f"{base}/temp", f"{millidegrees}\n")
        for index, (trip, value) in enumerate(trips.items()):
            self.put(f"{base}/trip_point_{index}_type", f"{trip}\n")
            self.put(f"{base}/trip_point_{index}_temp", f"{value}\n")

    def chip(self, number: int, name: str, **files: object) -> None:
        """A hwmon chip."""
        self.put(f"sys/class/hwmon/hwmon{number}/name", f"{name}\n")
        for file, value in files.items():
            self.put(f"sys/class/hwmon/hwmon{number}/{file}", f"{value}\n")

    def machine(self) -> Tree:
        """A plain machine: memory and pressure, no control group limits, no zones."""
        self.put("proc/meminfo", MEMINFO)
        for kind in ("memory", "cpu", "io"):
            self.put(f"proc/pressure/{kind}", PRESSURE)
        return self

    def cgroup2(self, path: str, mount_root: str = "/") -> None:
        """Says that this process is in a version 2 group, as systemd 247 and later mount it."""
        self.put("proc/self/cgroup", f"0::{path}\n")
        self.put(
            "proc/self/mountinfo",
            f"30 23 0:26 {mount_root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        )

    def cgroup1(self, path: str, mount_root: str = "/") -> None:
        """Says that this process is in a version 1 memory group."""
        self.put("proc/self/cgroup", f"9:memory:{path}\n8:cpu,cpuacct:/\n0::/\n")
        self.put(
            "proc/self/mountinfo",
            f"35 31 0:32 {mount_root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        )

    def level2(
        self, folder: str, *, limit: object, current: int, inactive: int, **more: object
    ) -> None:
        """One version 2 group's memory files."""
        base = f"sys/fs/cgroup/{folder}".rstrip("/")
        self.put(f"{base}/memory.max", f"{limit}\n")
        self.put(f"{base}/memory.high", f"{more.get('high', 'max')}\n")
        self.put(f"{base}/memory.current", f"{current}\n")
        self.put(
            f"{base}/memory.stat",
            f"anon {current - inactive}\nfile {inactive}\nfile_dirty {more.get('dirty', 0)}\n"
            f"file_writeback 0\ninactive_anon 0\nactive_anon 0\ninactive_file {inactive}\n",
        )

    def level1(
        self, folder: str, *, limit: object, usage: int, inactive: int, **more: object
    ) -> None:
        """One version 1 group's memory files."""
        base = f"sys/fs/cgroup/memory/{folder}".rstrip("/")
        self.put(f"{base}/memory.limit_in_bytes", f"{limit}\n")
        self.put(f"{base}/memory.usage_in_bytes", f"{usage}\n")
        self.put(f"{base}/memory.use_hierarchy", f"{more.get('hierarchy', 1)}\n")
        self.put(
            f"{base}/memory.stat",
            f"cache 0\ninactive_file 0\ntotal_cache {inactive}\n"
            f"total_dirty {more.get('dirty', 0)}\ntotal_writeback 0\n"
            f"total_inactive_file {inactive}\ntotal_active_file 0\n",
        )

    def config(self, **more: object) -> SensorConfig:
        """The sensors' settings for this tree."""
        return SensorConfig(proc_root=self.proc, sys_root=self.sys, **more)  # type: ignore[arg-type]


def describe_board(name: str) -> dict[str, Any]:
    """What tests/sensors/boards/NAME.yaml says of a board."""
    description: dict[str, Any] = YAML(typ="safe", pure=True).load(
        (BOARDS / f"{name}.yaml").read_text()
    )
    return description


def grow_board(name: str, root: Path) -> Tree:
    """The tree of a described board."""
    description = describe_board(name)
    tree = Tree(root).machine()
    for path, text in description["files"].items():
        tree.put(path, text.replace("\\0", "\0") + "\n")
    for path in description.get("remove", ()):
        (root / path).unlink()
    return tree


def board_names() -> list[str]:
    """All described boards."""
    return sorted(file.stem for file in BOARDS.glob("*.yaml"))


class Ticker:
    """Takes snapshots of a suite and lets the reading thread catch up between them."""

    def __init__(self, suite: SensorSuite, *, step_s: float = 1.0) -> None:
        self.suite = suite
        self.step_s = step_s
        self.at_s = 1000.0
        self.wall_s = 1_700_000_000.0

    def tick(self, count: int = 1) -> Snapshot:
        """Snapshots, a step of time apart; the last holds what the one before asked for."""
        snapshot = None
        for _ in range(count):
            snapshot = self.suite.snapshot(self.at_s, self.wall_s)
            self.settle()
            self.at_s += self.step_s
            self.wall_s += self.step_s
        assert snapshot is not None
        return snapshot

    def settle(self) -> None:
        """Waits until the reading thread has brought what was asked for."""
        assert self.suite.settle(timeout_s=10.0)

    def readings(self) -> dict[str, Reading]:
        """The readings after two ticks: slow sensors have answered by then."""
        self.tick()
        return dict(self.tick().readings)
