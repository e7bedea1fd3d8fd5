"""Signals that are worked out from other readings over time: slopes and time to a limit."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.domain.readings import Quality, Reading
from trimtab.signals.estimators import Trend
from trimtab.signals.thermal import ThermalTrend

_MEMORY_SPAN_S = 10.0
_MEMORY_LEAST_S = 2.0
_HEAT_SPAN_S = 30.0
_HEAT_LEAST_S = 5.0


class SlopeSignal:
    """The slope of one signal as a signal.

    Args:
        source: The signal that it follows.
        signal: The name of the slope.
        span_s: Over how long it is taken.
        least_s: How long it must have been fed before it means something.
    """

    def __init__(self, source: str, signal: str, span_s: float, least_s: float) -> None:
        self._source = source
        self._signal = signal
        self._trend = Trend(span_s)
        self._least_s = least_s

    def update(self, readings: Mapping[str, Reading], at_s: float) -> Reading:
        """Takes in the tick's reading and gives the slope.

        A reading that isn't good leaves a gap; it is never taken for a value.
        """
        reading = readings.get(self._source)
        if reading is None or reading.value is None:
            quality = reading.quality if reading is not None else Quality.ABSENT
            self._trend.clear()
            return Reading(self._signal, None, at_s, quality, f"there is no {self._source}")
        if reading.usable:
            self._trend.add(reading.at_s, reading.value)
        slope = self._trend.slope_per_s()
        if slope is None or self._trend.span_s < self._least_s:
            reason = f"needs {self._least_s:g} s of readings"
            return Reading(self._signal, None, at_s, Quality.ABSENT, reason)
        return Reading(self._signal, slope, at_s)


class DerivedSignals:
    """All derived signals of a tick."""

    def __init__(self) -> None:
        self._slopes = (
            SlopeSignal(
                "memory.available", "memory.available.slope", _MEMORY_SPAN_S, _MEMORY_LEAST_S
            ),
            SlopeSignal("temperature.max", "temperature.slope", _HEAT_SPAN_S, _HEAT_LEAST_S),
        )
        self._heat = ThermalTrend()

    def update(self, readings: Mapping[str, Reading], at_s: float) -> list[Reading]:
        """The derived readings for what a tick has read."""
        derived = [slope.update(readings, at_s) for slope in self._slopes]
        derived.append(self._heat.update(readings, at_s))
        return derived
