"""When the board will reach its trip point, by a first-order thermal model fitted online.

A board under constant load follows dT/dt = (T∞ − T)/τ: it approaches a final temperature. A
straight line would announce a trip point that is never reached, so T∞ and τ are fitted to the
slopes seen: over the window, slope against temperature is a line with gradient −1/τ that crosses
zero at T∞. Where the samples don't show a bend, the straight line is taken. Only what follows the
last turn (from falling to rising, or back) is looked at: before it, the load was another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.signals.estimators import Window

_SPAN_S: Final = 120.0
_LEAST_S: Final = 15.0
_BLOCKS: Final = 6
_TURN_CELSIUS: Final = 3.0
_LEAST_SLOPE: Final = 0.01  # °C/s; below it the board has settled
_LONGEST_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class ThermalFit:
    """The model at the newest sample.

    Attributes:
        celsius: Temperature now, smoothed.
        slope_per_s: Degrees a second now.
        final_celsius: Where it settles at this load; None if the samples show no bend.
        tau_s: Time constant; None likewise.
    """

    celsius: float
    slope_per_s: float
    final_celsius: float | None
    tau_s: float | None

    def time_to(self, celsius: float) -> float | None:
        """Seconds until a temperature is reached; 0 if it is, None if it won't be."""
        left = celsius - self.celsius
        if left <= 0:
            return 0.0
        if self.slope_per_s < _LEAST_SLOPE:
            return None
        if self.final_celsius is None or self.tau_s is None:
            return left / self.slope_per_s
        if self.final_celsius <= celsius:
            return None
        return self.tau_s * math.log1p(left / (self.final_celsius - celsius))


def fit(samples: Sequence[tuple[float, float]]) -> ThermalFit | None:
    """Fits the model to (time, temperature) samples.

    The samples are averaged in blocks, so that a sensor's steps of half a degree don't drown the
    slope; the slopes between blocks are regressed on the temperatures between them.

    Args:
        samples: In order of time.

    Returns:
        The fit, or None if they span too little time.
    """
    samples = since_turn(samples)
    if len(samples) < 2 * _BLOCKS or samples[-1][0] - samples[0][0] < _LEAST_S:
        return None
    blocks = _means(samples)
    slopes = [
        ((t1 + t0) / 2, (x1 - x0) / (t1 - t0)) for (t0, x0), (t1, x1) in pairwise(blocks) if t1 > t0
    ]
    middles = [(x1 + x0) / 2 for (_, x0), (_, x1) in pairwise(blocks)]
    if len(slopes) != len(middles):
        return None
    end_s, last = blocks[-1]
    gradient, offset = _line(middles, [slope for _, slope in slopes])
    ahead_s = samples[-1][0] - end_s
    recent = slopes[-1][1]
    settled = recent < _LEAST_SLOPE
    if settled or gradient is None or offset is None or gradient >= -1 / (20 * _SPAN_S):
        return ThermalFit(last + recent * ahead_s, recent, None, None)
    tau_s, final = -1 / gradient, -offset / gradient
    now = final + (last - final) * math.exp(-ahead_s / tau_s)
    return ThermalFit(now, (final - now) / tau_s, final, tau_s)


def since_turn(samples: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The samples from the last turn on, where the temperature then moved by 3 degrees or more.

    Args:
        samples: (time, temperature) in order of time.
    """
    start = extreme = 0
    rising: bool | None = None  # unknown until the first move
    lowest = highest = 0
    for at, (_, celsius) in enumerate(samples):
        if rising is None:
            lowest = at if celsius <= samples[lowest][1] else lowest
            highest = at if celsius >= samples[highest][1] else highest
            if samples[highest][1] - samples[lowest][1] >= _TURN_CELSIUS:
                rising = highest > lowest
                start, extreme = min(lowest, highest), at
            continue
        beyond = celsius - samples[extreme][1] if rising else samples[extreme][1] - celsius
        if beyond >= 0:
            extreme = at
        elif beyond <= -_TURN_CELSIUS:
            rising = not rising
            start, extreme = extreme, at
    return samples[start:]


def _means(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Mean time and value of each of the blocks."""
    count = len(samples)
    means = []
    for block in range(_BLOCKS):
        part = samples[block * count // _BLOCKS : (block + 1) * count // _BLOCKS]
        times = math.fsum(at_s for at_s, _ in part) / len(part)
        means.append((times, math.fsum(value for _, value in part) / len(part)))
    return means


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float | None, float | None]:
    """Gradient and offset of y over x by least squares; None if x doesn't vary by a degree."""
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    if spread < 1.0:
        return None, None
    gradient = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return gradient, mean_y - gradient * mean_x


class ThermalTrend:
    """`temperature.time_to_trip` from the temperature and its distance to the trip point."""

    signal = "temperature.time_to_trip"

    def __init__(self) -> None:
        self._window = Window(_SPAN_S, most=256)

    def update(self, readings: Mapping[str, Reading], at_s: float) -> Reading:
        """Takes in a tick's readings and gives the time that is left."""
        celsius = readings.get("temperature.max")
        headroom = readings.get("temperature.headroom")
        if celsius is None or celsius.value is None:
            self._window.clear()
            quality = celsius.quality if celsius is not None else Quality.ABSENT
            return Reading(self.signal, None, at_s, quality, "there is no temperature")
        if celsius.usable and celsius.at_s > self._last_s():
            self._window.add(celsius.at_s, celsius.value)
        if headroom is None or headroom.value is None:
            return Reading(self.signal, None, at_s, Quality.ABSENT, "there is no trip point")
        model = fit(self._window.samples())
        if model is None:
            return Reading(self.signal, None, at_s, Quality.ABSENT, "needs 15 s of readings")
        left_s = model.time_to(celsius.value + headroom.value)
        if left_s is None:
            return Reading(self.signal, None, at_s, Quality.ABSENT, _settles(model))
        return Reading(self.signal, min(left_s, _LONGEST_S), at_s)

    def _last_s(self) -> float:
        samples = self._window.samples()
        return samples[-1][0] if samples else float("-inf")


def _settles(model: ThermalFit) -> str:
    if model.slope_per_s < _LEAST_SLOPE or model.final_celsius is None:
        return "it isn't getting hotter"
    return f"settles at about {model.final_celsius:.0f} °C"
