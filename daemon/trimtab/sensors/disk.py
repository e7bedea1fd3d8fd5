"""Space in the state directory, and how worn the flash is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.source import Files, Roots


def _space(folder: Path, files: Files) -> os.statvfs_result:
    """Space where a folder is, or will be when it is made."""
    for there in (folder, *folder.parents):
        try:
            return files.statvfs(str(there))
        except FileNotFoundError:
            continue
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def parse_life_time(text: str) -> float | None:
    """The eMMC's own estimate of used life, 0 to 1; None if it doesn't know.

    Two values for two kinds of memory, in tenths: 1 means that up to a tenth is used, 11 that all
    of it is.

    Raises:
        ValueError: If they are no numbers.
    """
    steps = [int(word, 16) for word in text.split()]
    worst = max((step for step in steps if 1 <= step <= 11), default=None)
    return None if worst is None else min(1.0, worst / 10)


class DiskSensor:
    """Free space and wear.

    Args:
        roots: Where `/sys` is.
        folder: The state directory; None: no space is watched.
    """

    signals = ("disk.free", "disk.wear")
    period_s = 30.0

    def __init__(self, roots: Roots, folder: Path | None) -> None:
        self._block = f"{roots.sys}/block"
        self._folder = folder

    def read(self, at_s: float, files: Files) -> list[Reading]:
        """Space by statvfs, which may hang on a network disk; wear where an eMMC tells it."""
        readings = []
        if self._folder is None:
            reason = "no state directory is watched"
            readings.append(Reading("disk.free", None, at_s, Quality.ABSENT, reason))
        else:
            space = _space(self._folder, files)
            free = float(space.f_bavail * space.f_frsize)
            readings.append(Reading("disk.free", free, at_s, Quality.GOOD, str(self._folder)))
        worst = None
        for device in files.entries(self._block):
            if device.startswith("mmcblk") and "boot" not in device:
                wear = self._wear(device, files)
                if wear is not None and (worst is None or wear > worst):
                    worst = wear
        if worst is not None:
            readings.append(Reading("disk.wear", worst, at_s))
        return readings

    def _wear(self, device: str, files: Files) -> float | None:
        try:
            return parse_life_time(files.read(f"{self._block}/{device}/device/life_time"))
        except (OSError, ValueError):
            return None  # SD cards don't tell
