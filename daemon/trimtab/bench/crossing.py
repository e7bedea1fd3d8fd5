"""A limit crossed on purpose: memory filled until it is under the limit, and when others gave way.

One process fills and watches, so that the moment of the crossing is known to a fraction of a
millisecond, and watching takes no core from those that are to react. What they give back is read
from the kernel: the blocks of their memfds, through their descriptors in /proc.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from time import perf_counter
from typing import Final, Protocol

import msgspec

from trimtab.sensors.files import HeldFile
from trimtab.sensors.meminfo import parse_available

BLOCK_BYTES: Final = 512
LOOK_S: Final = 0.0002


class Filling(Protocol):
    """Memory that is taken in chunks."""

    @property
    def held_bytes(self) -> int:
        """What is held now."""

    def more(self) -> None:
        """Take one chunk more."""


class Order(msgspec.Struct, frozen=True):
    """A crossing to be made.

    Attributes:
        limit_bytes: Available memory is to fall under this.
        beyond_bytes: How much more is taken after that.
        most_bytes: What is held at most, whatever comes of it.
        pid: The process that is to give memory back.
        freed_bytes: What counts as having given back.
        within_s: How long to wait for it.
    """

    limit_bytes: int
    beyond_bytes: int
    most_bytes: int
    pid: int
    freed_bytes: int
    within_s: float


class Crossing(msgspec.Struct, frozen=True):
    """What came of it. Times are by `perf_counter`: one clock for all processes of a machine.

    Attributes:
        crossed_s: When available memory was first seen under the limit; None: it never was.
        freed_s: When what counts had been given back; None: it wasn't in time.
        idle_bytes: What the process held in memfds before.
        fill_bytes_s: How fast memory was filled.
        held_bytes: What is held now.
    """

    crossed_s: float | None
    freed_s: float | None
    idle_bytes: int
    fill_bytes_s: float
    held_bytes: int


def memfds(pid: int) -> list[str]:
    """Paths of the descriptors of a process that are memfds.

    Raises:
        OSError: It is gone, or isn't ours.
    """
    folder = Path(f"/proc/{pid}/fd")
    found = []
    for entry in folder.iterdir():
        try:
            if str(entry.readlink()).startswith("/memfd:"):
                found.append(str(entry))
        except FileNotFoundError:
            continue  # it was closed meanwhile
    return found


def held_by(files: list[str]) -> int:
    """Bytes of memory that these files hold; one that was closed holds none."""
    held = 0
    for path in files:
        try:
            held += os.stat(path).st_blocks * BLOCK_BYTES  # noqa: PTH116  # polled: no Path made
        except FileNotFoundError:
            continue
    return held


def cross(hold: Filling, order: Order) -> Crossing:
    """Fill until the limit is crossed and somewhat beyond, and wait for what is given back.

    Raises:
        OSError: The process to be watched is gone.
    """
    files = memfds(order.pid)
    idle, begun_bytes = held_by(files), hold.held_bytes
    meminfo = HeldFile("/proc/meminfo")
    begun_s = perf_counter()
    crossed_s = freed_s = None
    until_bytes, filled_s = order.most_bytes, begun_s
    while hold.held_bytes < until_bytes:
        before_bytes = hold.held_bytes
        hold.more()
        if hold.held_bytes == before_bytes:
            break
        filled_s = perf_counter()
        if crossed_s is None and (parse_available(meminfo.read()) or 0) < order.limit_bytes:
            crossed_s = filled_s = perf_counter()
            until_bytes = min(until_bytes, hold.held_bytes + order.beyond_bytes)
        if crossed_s is not None and idle - held_by(files) >= order.freed_bytes:
            freed_s = perf_counter()
            break
    while crossed_s is not None and freed_s is None and perf_counter() < crossed_s + order.within_s:
        if idle - held_by(files) >= order.freed_bytes:
            freed_s = perf_counter()
        else:
            time.sleep(LOOK_S)
    rate = (hold.held_bytes - begun_bytes) / max(filled_s - begun_s, 1e-9)
    return Crossing(crossed_s, freed_s, idle, rate, hold.held_bytes)
