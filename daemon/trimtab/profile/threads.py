"""How long a process's threads ran, and how long they waited for a core: from the scheduler.

A rate that was measured beside other work says little about the device. The kernel counts, for each
thread, the nanoseconds that it was runnable and had no core (`schedstat`): taken from the time on
the wall, they leave what the same work takes undisturbed, and their share says whether a sample can
be trusted at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NS = 1e-9


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """One thread's share of the processor.

    Attributes:
        ran_s: Seconds on a core.
        waited_s: Seconds runnable without one.
    """

    ran_s: float
    waited_s: float


def parse_schedstat(text: str) -> ThreadTime:
    """Parses ``/proc/PID/task/TID/schedstat``.

    Raises:
        ValueError: It isn't three numbers.
    """
    ran, waited, _ = text.split()
    return ThreadTime(int(ran) * _NS, int(waited) * _NS)


def read_threads(pid: int, proc_root: Path) -> dict[int, ThreadTime]:
    """All threads of a process, by number; empty where the kernel doesn't keep these times."""
    times = {}
    try:
        folders = list((proc_root / str(pid) / "task").iterdir())
    except OSError:
        return {}
    for folder in folders:
        try:
            times[int(folder.name)] = parse_schedstat((folder / "schedstat").read_text("ascii"))
        except (OSError, ValueError):
            continue  # a thread that has just ended
    return times


def waited_s(before: Mapping[int, ThreadTime], after: Mapping[int, ThreadTime]) -> float:
    """The longest wait for a core of any thread between two looks.

    Engine threads wait for each other at the end of each operation, so the time that the slowest
    lost is at least what the whole lost.
    """
    return max(
        (
            now.waited_s - (before[tid].waited_s if tid in before else 0.0)
            for tid, now in after.items()
        ),
        default=0.0,
    )
