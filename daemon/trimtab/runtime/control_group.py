"""Two groups below our own, where systemd has delegated it: the controller's and the workers'.

So the controller's memory is told from the workers', and can be protected from reclaim, while
limits on the service bound both together. systemd before 254 has no DelegateSubgroup=; and a group
whose children have controllers may hold no process itself, so that we move first.

Memory stays charged to the group in which it was first touched. So the daemon moves before it does
anything else, and then executes itself again: what it had touched until then goes with that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from trimtab.sensors.cgroups import level_folders, parse_cgroup, parse_mountinfo
from trimtab.sensors.source import Roots

CONTROLLER: Final = "controller"
WORKERS: Final = "workers"
WORKERS_VARIABLE: Final = "TRIMTAB_WORKERS_GROUP"
"""Where a worker finds the group that it is to join; see `worker.__main__`."""

PROTECTED_BYTES: Final = 96 * 1024 * 1024
"""MemoryLow of the controller's group: some more than it holds."""


def begin_in_own_group() -> None:
    """Move into a leaf of our own, where there can be one, and begin anew in it.

    Returns only where nothing was moved: outside of systemd, or the second time.
    """
    if not separate(Path("/proc"), Path("/sys")):
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  # our own program, same arguments


def separate(proc_root: Path, sys_root: Path) -> str:
    """Move this process into a leaf of its own and make another one for workers.

    Returns:
        Why it was not done, in words; empty if it was.
    """
    own = _own_folder(proc_root, sys_root)
    if own is None:
        return "there is no control group of version 2"
    if not _delegated(own):
        return f"{own} isn't delegated to us (Delegate=)"
    try:
        (own / CONTROLLER).mkdir(exist_ok=True)
        (own / WORKERS).mkdir(exist_ok=True)
        (own / CONTROLLER / "cgroup.procs").write_text("0")
        if "memory" in (own / "cgroup.controllers").read_text().split():
            (own / "cgroup.subtree_control").write_text("+memory")
            (own / CONTROLLER / "memory.low").write_text(str(PROTECTED_BYTES))
    except OSError as error:
        return str(error)
    os.environ[WORKERS_VARIABLE] = str(own / WORKERS)
    return ""


def _own_folder(proc_root: Path, sys_root: Path) -> Path | None:
    roots = Roots(proc_root, sys_root)
    try:
        mounts = parse_mountinfo((proc_root / "self" / "mountinfo").read_text(errors="replace"))
        path = parse_cgroup((proc_root / "self" / "cgroup").read_text(errors="replace")).get(2)
    except OSError:
        return None
    mount = next((mount for mount in mounts if mount.version == 2), None)
    if mount is None or path is None or path == "/":
        return None
    folders = level_folders(mount, path, roots)
    return Path(folders[0][1]) if folders else None


def _delegated(group: Path) -> bool:
    """Whether systemd has marked the group as ours (since 251; before, nothing tells us)."""
    try:
        return os.getxattr(group, "user.delegate") == b"1"
    except OSError:
        return False
