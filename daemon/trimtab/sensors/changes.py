"""Tells when a sensor breaks or recovers: the change, once, and not each failed read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trimtab.domain.readings import Quality, Reading

_QUIET_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class QualityChange:
    """A signal's quality has changed.

    Attributes:
        signal: Its name.
        before: The quality that was told last; None at the first look.
        after: The quality now.
        reason: Why, as the sensor says.
        untold: How many changes since then were kept quiet.
    """

    signal: str
    before: Quality | None
    after: Quality
    reason: str
    untold: int = 0


@dataclass(slots=True)
class _Told:
    quality: Quality
    at_s: float
    untold: int = 0
    last: Quality | None = None


class QualityChanges:
    """Compares each tick with what was told last.

    The first look tells what is failed or suspect, but not what is absent: hardware that isn't
    there is no news. After that each change is told, at most one a minute for each signal, so that
    a sensor that comes and goes doesn't fill the journal.
    """

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def update(self, readings: Mapping[str, Reading], at_s: float) -> list[QualityChange]:
        """The changes that are worth a line in the log."""
        changes = []
        for signal, reading in readings.items():
            told = self._told.get(signal)
            if told is None:
                self._told[signal] = _Told(reading.quality, float("-inf"), last=reading.quality)
                if reading.quality in {Quality.FAILED, Quality.SUSPECT}:
                    changes.append(QualityChange(signal, None, reading.quality, reading.reason))
                    self._told[signal].at_s = at_s
                continue
            if reading.quality is not told.last:
                told.untold += 1
                told.last = reading.quality
            if reading.quality is not told.quality and at_s - told.at_s >= _QUIET_S:
                changes.append(
                    QualityChange(
                        signal, told.quality, reading.quality, reading.reason, told.untold - 1
                    )
                )
                self._told[signal] = _Told(reading.quality, at_s, last=reading.quality)
        for gone in self._told.keys() - readings.keys():
            del self._told[gone]
        return changes
