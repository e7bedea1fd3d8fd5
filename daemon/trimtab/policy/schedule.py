"""Which scheduled policy is in force: cron goes by wall-clock time, through APScheduler's trigger.

A schedule is a question that is asked again and again ("what holds now?"), not a row of alarms:
so a clock that jumps, a start in the middle of a span and a missed alarm all come out right.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from trimtab.policy.compiled import ScheduleEntry
from trimtab.policy.cron import parse_cron


def entry_in_force(
    entries: Sequence[ScheduleEntry], wall_s: float, local: tzinfo | None = None
) -> ScheduleEntry | None:
    """The entry whose span holds now; of several, the one that began last.

    Args:
        entries: Of the policy that is configured.
        wall_s: Now, in seconds since the epoch.
        local: The device's time zone; None: as the system has it.
    """
    if not _is_a_date(wall_s):
        return None
    begun = [(began, entry) for entry in entries if (began := _began(entry, wall_s, local))]
    return max(begun, key=lambda pair: pair[0], default=(None, None))[1]


def next_change_s(
    entries: Sequence[ScheduleEntry], wall_s: float, local: tzinfo | None = None
) -> float | None:
    """Wall-clock time of the next beginning or end of a span; None without a schedule."""
    moments: list[float] = []
    if not _is_a_date(wall_s):
        return None
    for entry in entries:
        trigger, zone = _trigger(entry, local)
        now = datetime.fromtimestamp(wall_s, UTC).astimezone(zone)
        upcoming = trigger.get_next_fire_time(None, now + timedelta(seconds=1))
        if upcoming is not None:
            moments.append(upcoming.timestamp())
        began = _began(entry, wall_s, local)
        if began is not None:
            moments.append(began + entry.for_s)
    return min(moments, default=None)


def _is_a_date(wall_s: float) -> bool:
    """False for a clock that is out of its mind: then no schedule holds."""
    try:
        datetime.fromtimestamp(wall_s, UTC) - timedelta(days=366)
    except (OverflowError, ValueError, OSError):
        return False
    return True


def _began(entry: ScheduleEntry, wall_s: float, local: tzinfo | None) -> float | None:
    """When the span that holds now began; None if none holds."""
    trigger, zone = _trigger(entry, local)
    now = datetime.fromtimestamp(wall_s, UTC).astimezone(zone)
    # The first beginning after the earliest one that could still hold, and on from there.
    earliest = (now.astimezone(UTC) - timedelta(seconds=entry.for_s)).astimezone(zone)
    moment = trigger.get_next_fire_time(None, earliest + timedelta(microseconds=1))
    latest: float | None = None
    while moment is not None and moment <= now:
        latest = moment.timestamp()
        moment = trigger.get_next_fire_time(moment, moment + timedelta(minutes=1))
    return latest


def _trigger(entry: ScheduleEntry, local: tzinfo | None) -> tuple[Any, tzinfo]:
    """APScheduler's trigger for an entry, and its time zone."""
    # Imported here: it costs memory, and most policies have no schedule.
    from apscheduler.triggers.cron import CronTrigger

    zone: tzinfo
    if entry.timezone is not None:
        zone = ZoneInfo(entry.timezone)
    elif local is not None:
        zone = local
    else:
        from tzlocal import get_localzone

        zone = get_localzone()
    fields = parse_cron(entry.cron)
    trigger = CronTrigger(
        minute=fields["minute"],
        hour=fields["hour"],
        day=fields["day"],
        month=fields["month"],
        day_of_week=fields["weekday"],
        timezone=zone,
    )
    return trigger, zone
