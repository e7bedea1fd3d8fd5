"""Compressed swap in memory: on zram a machine stalls for minutes before anything is killed."""

from __future__ import annotations

from trimtab.domain.readings import Reading
from trimtab.sensors.source import Files, Roots


def parse_mm_stat(text: str) -> tuple[int, int]:
    """Bytes that were put in, and bytes of memory that they take.

    Raises:
        ValueError: If the line is too short.
    """
    words = text.split()
    if len(words) < 3:
        raise ValueError(f"mm_stat has {len(words)} numbers, not 7 or more")
    return int(words[0]), int(words[2])


class ZramSensor:
    """All zram devices together.

    Args:
        roots: Where `/sys` is.
    """

    signals = ("memory.zram.used", "memory.zram.factor")
    period_s = 5.0

    def __init__(self, roots: Roots) -> None:
        self._block = f"{roots.sys}/block"

    def read(self, at_s: float, files: Files) -> list[Reading]:
        """What they take, and how well they compress; nothing for devices that aren't set up."""
        original = used = 0
        found = False
        for device in files.entries(self._block):
            if device.startswith("zram"):
                size, takes = parse_mm_stat(files.read(f"{self._block}/{device}/mm_stat"))
                original += size
                used += takes
                found = True
        if not found:
            return []
        readings = [Reading("memory.zram.used", float(used), at_s)]
        if used > 0:
            readings.append(Reading("memory.zram.factor", original / used, at_s))
        return readings
