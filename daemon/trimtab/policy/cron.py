"""Cron expressions, checked at load: minute hour day month weekday; 0 and 7 are Sunday."""

from __future__ import annotations

import re
from typing import Final

_MONTHS: Final = (
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART: Final = re.compile(r"(\*|[0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?(?:/([0-9]{1,2}))?")

# name, least, most, words with their first number
_FIELDS: Final[tuple[tuple[str, int, int, tuple[str, ...], int], ...]] = (
    ("minute", 0, 59, (), 0),
    ("hour", 0, 23, (), 0),
    ("day", 1, 31, (), 0),
    ("month", 1, 12, _MONTHS, 1),
    ("weekday", 0, 7, _DAYS, 0),
)


class CronError(ValueError):
    """An expression that isn't cron."""


def parse_cron(expression: str) -> dict[str, str]:
    """The fields of an expression by name, weekdays as names.

    Weekdays become names because schedulers count them differently: cron's 0 is Sunday,
    APScheduler's is Monday.

    Args:
        expression: Such as ``0 22 * * mon-fri``.

    Returns:
        ``minute``, ``hour``, ``day``, ``month`` and ``weekday``, each as text.

    Raises:
        CronError: With what is wrong and what is allowed.
    """
    fields = expression.lower().split()
    if len(fields) != len(_FIELDS):
        raise CronError(
            f"found {len(fields)} fields; five are wanted: minute hour day month weekday"
        )
    parsed: dict[str, str] = {}
    for text, (name, least, most, words, first) in zip(fields, _FIELDS, strict=True):
        parts = [_parse_part(part, name, least, most, words, first) for part in text.split(",")]
        parsed[name] = ",".join(parts)
    return parsed


def _parse_part(
    part: str, name: str, least: int, most: int, words: tuple[str, ...], first: int
) -> str:
    match = _PART.fullmatch(part)
    if match is None or (match[1] == "*" and match[2]):
        raise CronError(f"{part!r} is no {name}; write *, 5, 1-5, */10 or 1,3")
    if match[3] is not None and int(match[3]) == 0:
        raise CronError(f"{part!r}: a step of 0 never comes")
    if match[1] == "*":
        return part
    low = _number(match[1], name, least, most, words, first)
    high = _number(match[2], name, least, most, words, first) if match[2] else low
    if low > high:
        raise CronError(f"{part!r} runs backwards; write two parts with a comma")
    step = int(match[3]) if match[3] else 1
    if match[3] and not match[2]:
        high = most
    if name == "weekday":
        return ",".join(dict.fromkeys(_DAYS[day % 7] for day in range(low, high + 1, step)))
    span = f"{low}-{high}" if high != low else f"{low}"
    return f"{span}/{step}" if step > 1 and high != low else span


def _number(text: str, name: str, least: int, most: int, words: tuple[str, ...], first: int) -> int:
    if text.isdecimal():
        number = int(text)
    elif text in words:
        number = words.index(text) + first
    else:
        raise CronError(f"{text!r} is no {name}; allowed are {least} to {most}{_or(words)}")
    if not least <= number <= most:
        raise CronError(f"{text} is no {name}; allowed are {least} to {most}")
    return number


def _or(words: tuple[str, ...]) -> str:
    return f" or {', '.join(words)}" if words else ""
