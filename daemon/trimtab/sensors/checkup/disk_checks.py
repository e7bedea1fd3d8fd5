"""The state directory's disk, and whether there is a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import psutil

from trimtab.sensors.checkup.finding import Finding, Level, Machine
from trimtab.telemetry.words import size

_LITTLE_BYTES: Final = 2 << 30
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})


def _existing(path: Path) -> Path:
    """The path or its nearest parent that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def file_system(path: Path) -> str:
    """The type of the file system that a path is on; empty if nobody knows."""
    there = os.path.realpath(_existing(path))
    best = ("", "")
    for partition in psutil.disk_partitions(all=True):
        point = partition.mountpoint.rstrip("/") + "/"
        if f"{there}/".startswith(point) and len(point) > len(best[0]):
            best = (point, partition.fstype)
    return best[1]


def disk(machine: Machine) -> Finding:
    """Whether KV can be moved to the state directory's disk, and how worn that is."""
    folder = _existing(machine.state_dir)
    kind = file_system(folder)
    free = machine.value("disk.free")
    told = f"{machine.state_dir} on {kind or 'an unknown file system'}"
    if free is not None:
        told += f", {size(free)} free"
    if not os.access(folder, os.W_OK):
        return Finding(
            "disk", Level.WARNING, f"{folder} can't be written", "Set `state` in the configuration."
        )
    if kind in _IN_MEMORY:
        return Finding(
            "disk",
            Level.WARNING,
            f"{told}: KV that is moved there stays in memory",
            "Set `state` to a folder on a real disk; until then kv_placement: disk does nothing.",
        )
    if kind in _NETWORK:
        return Finding(
            "disk", Level.WARNING, f"{told}: a network disk may hang", "Use a local one."
        )
    if not _takes_unnamed_files(folder):
        return Finding("disk", Level.NOTE, f"{told}: it takes no unnamed files (O_TMPFILE)")
    wear = machine.value("disk.wear")
    if wear is not None and wear >= 0.8:
        return Finding(
            "disk",
            Level.WARNING,
            f"{told}; {wear:.0%} of the flash's life is used up",
            "Lower kv.writes_per_day in the policy, or use another disk.",
        )
    if free is not None and free < _LITTLE_BYTES:
        return Finding("disk", Level.WARNING, told, "Free some, or lower kv.disk_quota.")
    return Finding("disk", Level.GOOD, told)


def _takes_unnamed_files(folder: Path) -> bool:
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    os.close(fd)
    return True


def models(machine: Machine) -> Finding:
    """Whether any model is there; what it is worth `trimtab models verify` tells."""
    found = [
        manifest.parent.name
        for folder in machine.model_dirs
        if folder.is_dir()
        for manifest in sorted(folder.glob("*/model.yaml"))
    ]
    if found:
        return Finding("models", Level.GOOD, ", ".join(found))
    where = ", ".join(str(folder) for folder in machine.model_dirs) or "no folder"
    return Finding(
        "models",
        Level.BAD,
        f"there is no model in {where}",
        "`trimtab models build smollm2-135m` makes one, `trimtab models fetch` gets one.",
    )
