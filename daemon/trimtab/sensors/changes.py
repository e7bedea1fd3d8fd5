"""Tells when a sensor breaks or recovers: the change, once, and not each failed read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trimtab.domain.readings import Quality, Reading

_QUIET_S: Final = 60.0
_BAD: Final = frozenset({Quality.FAILED, Quality.SUSPECT})
_NOT_YET: Final = frozenset({Quality.ABSENT, Quality.STALE})


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
    """What was told of a signal, and since.

    Attributes:
        quality: What was told last.
        at_s: When that was.
        last: The quality at the last look.
        begun: False until it has answered for the first time.
        untold: Changes since it was told.
    """

    quality: Quality
    at_s: float
    last: Quality
    begun: bool
    untold: int = 0


class QualityChanges:
    """Compares each tick with what was told last.

    What is absent or hasn't answered yet at the beginning is no news, nor that a sensor begins to
    answer; what is failed or suspect is. After that each change is told, at most one a minute for
    each signal, so that a sensor that comes and goes doesn't fill the journal.
    """

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def update(self, readings: Mapping[str, Reading], at_s: float) -> list[QualityChange]:
        """The changes that are worth a line in the log."""
        changes = []
        for signal, reading in readings.items():
            told = self._told.get(signal)
            if told is not None and reading.quality is told.quality is told.last:
                continue  # as nearly always
            change = self._change(signal, reading, told, at_s)
            if change is not None:
                changes.append(change)
        for gone in self._told.keys() - readings.keys():
            del self._told[gone]
        return changes

    def _change(
        self, signal: str, reading: Reading, told: _Told | None, at_s: float
    ) -> QualityChange | None:
        """What to tell of one signal whose quality isn't what it was."""
        quality = reading.quality
        bad = quality in _BAD
        if told is None or (not told.begun and not bad):
            begun = quality not in _NOT_YET
            told_s = at_s if bad else float("-inf")
            self._told[signal] = _Told(quality, told_s, quality, begun)
            return QualityChange(signal, None, quality, reading.reason) if bad else None
        if quality is not told.last:
            told.untold += 1
            told.last = quality
        if quality is told.quality or at_s - told.at_s < _QUIET_S:
            return None
        self._told[signal] = _Told(quality, at_s, quality, begun=True)
        before = told.quality if told.begun else None
        return QualityChange(signal, before, quality, reading.reason, max(0, told.untold - 1))
