"""Signals that the owner brings: numbers in files, and values that are pushed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trimtab.domain.readings import Quality, Reading, Unit
from trimtab.errors import UsageError
from trimtab.sensors.config import NumberFile
from trimtab.sensors.source import Files

PREFIX: Final = "custom."
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_LONGEST_TTL_S: Final = 86400.0
_MOST_PUSHED: Final = 64


def check_name(name: str) -> str:
    """The signal's full name for an owner's name, with or without the prefix.

    Raises:
        UsageError: If it can't be a signal's name.
    """
    bare = name.removeprefix(PREFIX)
    if not _NAME.fullmatch(bare):
        raise UsageError(
            f"{name[:80]!r} can't be a signal's name",
            hint="lower-case letters, digits, dots, underscores and dashes, up to 64",
        )
    return PREFIX + bare


def judge(signal: str, value: float, at_s: float, low: float | None, high: float | None) -> Reading:
    """A reading that is suspect outside of the declared range."""
    if not math.isfinite(value):
        return Reading(signal, None, at_s, Quality.FAILED, f"{value} is no number")
    reason = ""
    if low is not None and value < low:
        reason = f"{value:g} is below the declared least of {low:g}"
    elif high is not None and value > high:
        reason = f"{value:g} is above the declared most of {high:g}"
    quality = Quality.SUSPECT if reason else Quality.GOOD
    return Reading(signal, value, at_s, quality, reason)


class NumberFileSensor:
    """The first word of a file as a signal.

    Args:
        entry: The configuration's entry.
    """

    def __init__(self, entry: NumberFile) -> None:
        self._entry = entry
        self._signal = check_name(entry.name)
        self.signals = (self._signal,)
        self.period_s = entry.period_s

    def read(self, at_s: float, files: Files) -> list[Reading]:
        """Reads the number.

        Raises:
            OSError: If the file can't be read.
            ValueError: If it doesn't begin with a number.
        """
        entry = self._entry
        words = files.read(str(entry.path)).split(maxsplit=1)
        if not words:
            raise ValueError(f"{entry.path} is empty")
        try:
            value = float(words[0]) * entry.scale
        except ValueError:
            raise ValueError(f"{entry.path} begins with {words[0][:40]!r}, no number") from None
        return [judge(self._signal, value, at_s, entry.low, entry.high)]


@dataclass(frozen=True, slots=True)
class _Pushed:
    reading: Reading
    unit: Unit
    until_s: float


class PushedSignals:
    """Values that were pushed through the control socket, until their time is over.

    After that a signal stays known as stale for as long again, so that a rule on it says why it
    doesn't fire, and is then forgotten.
    """

    def __init__(self) -> None:
        self._pushed: dict[str, _Pushed] = {}

    def push(
        self,
        name: str,
        value: float,
        unit: Unit,
        at_s: float,
        ttl_s: float,
        low: float | None = None,
        high: float | None = None,
    ) -> Reading:
        """Takes in a value.

        Args:
            name: With or without ``custom.``.
            value: In the unit.
            unit: The declared unit; it can't change while the signal lives.
            at_s: Now.
            ttl_s: For how long it counts, up to a day.
            low: Least plausible value.
            high: Greatest plausible value.

        Returns:
            The reading as rules will see it.

        Raises:
            UsageError: If name, value, unit or time to live can't be.
        """
        signal = check_name(name)
        if not math.isfinite(value):
            raise UsageError(f"{signal}: {value} is no number")
        if not 0 < ttl_s <= _LONGEST_TTL_S:
            raise UsageError(
                f"{signal}: a time to live of {ttl_s:g} s", hint="more than 0 s, up to 24 h"
            )
        if low is not None and high is not None and low > high:
            raise UsageError(f"{signal}: the range {low:g} to {high:g} is empty")
        known = self._pushed.get(signal)
        if known is not None and known.unit is not unit:
            raise UsageError(
                f"{signal} is in {known.unit}, not in {unit}",
                hint="push it under another name, or wait until it has run out",
            )
        if known is None and len(self._pushed) >= _MOST_PUSHED:
            raise UsageError(f"{_MOST_PUSHED} signals are pushed already, no more are kept")
        reading = judge(signal, value, at_s, low, high)
        self._pushed[signal] = _Pushed(reading, unit, at_s + ttl_s)
        return reading

    def unit(self, signal: str) -> Unit | None:
        """The declared unit of a pushed signal."""
        pushed = self._pushed.get(signal)
        return pushed.unit if pushed is not None else None

    def readings(self, at_s: float) -> Iterator[Reading]:
        """All pushed signals as they count now."""
        for signal, pushed in list(self._pushed.items()):
            reading = pushed.reading
            over_s = at_s - pushed.until_s
            if over_s <= 0:
                yield reading
            elif over_s <= pushed.until_s - reading.at_s:
                reason = f"its time to live ran out {over_s:.0f} s ago"
                yield Reading(signal, reading.value, reading.at_s, Quality.STALE, reason)
            else:
                del self._pushed[signal]
