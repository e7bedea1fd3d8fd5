"""A real memory cgroup for a child process, below this process's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.sensors.cgroups import level_folders, parse_cgroup, parse_mountinfo
from trimtab.sensors.source import Roots


def own_folder() -> tuple[int, Path]:
    """Version and folder of this process's memory group, where it has a memory controller."""
    mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    paths = parse_cgroup(Path("/proc/self/cgroup").read_text())
    for mount in mounts:
        if mount.version in paths:
            folder = Path(level_folders(mount, paths[mount.version], Roots())[0][1])
            if mount.version == 1 or "memory" in (folder / "cgroup.subtree_control").read_text():
                return mount.version, folder
    pytest.skip("not applicable here: no memory controller that this process may use")


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A new group with a limit; removed again when the processes in it have ended."""
    if os.geteuid() != 0:
        pytest.skip("not applicable here: only root may make a memory group")
    version, parent = own_folder()
    group = parent / f"trimtab-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
        (group / limit).write_text(str(limit_bytes))
        yield group
    finally:
        for _ in range(100):  # the last process may still be on its way out
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


class GroupChild:
    """A child that joins the group and then does what it is told, line by line.

    Args:
        group: The group's folder.
        program: Python source; it runs after the child has joined.
    """

    def __init__(self, group: Path, program: str) -> None:
        joined = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n{program}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", joined],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> str:
        """Tells it something and waits for its line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """Ends it and waits until it is gone."""
        self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
