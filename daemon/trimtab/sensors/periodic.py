"""Slow periodic readers on APScheduler, so that they share one timetable with policies' schedules.

APScheduler goes by the wall clock. On a gateway without a clock chip that clock is set by years
when the network comes up, and after a jump backwards a job would wait for as long. So a jump has
all jobs laid out again, and `SlowReader` asks by itself when a period has passed twice unasked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

SHORTEST_S: Final = 30.0
"""What is read more often goes with the tick and costs no wake-up of its own."""


class Scheduler(Protocol):
    """What is used of an APScheduler 3 scheduler."""

    def add_job(self, func: Callable[..., Any], trigger: str, **options: Any) -> Any:
        """Adds a job and returns it."""


class PeriodicReads:
    """The jobs that ask for slow sensors.

    Args:
        scheduler: Where they run; it may be started before or after.
        periods: Seconds between two reads, by the sensor's name.
        request: Asks for one read; returns at once, from any thread.
    """

    def __init__(
        self, scheduler: Scheduler, periods: Mapping[str, float], request: Callable[[str], None]
    ) -> None:
        self._periods = dict(periods)
        self._jobs = {
            name: scheduler.add_job(
                request,
                "interval",
                args=(name,),
                seconds=period_s,
                id=f"sensor {name}",
                coalesce=True,
                misfire_grace_time=None,
                replace_existing=True,
            )
            for name, period_s in self._periods.items()
        }

    def lay_out_again(self) -> None:
        """Counts the periods from now on, after the wall clock was set."""
        for name, job in self._jobs.items():
            job.reschedule("interval", seconds=self._periods[name])

    def stop(self) -> None:
        """Takes the jobs off."""
        for job in self._jobs.values():
            job.remove()
        self._jobs.clear()
