"""Time to a limit: by the trend of memory, and by a first-order model of heat fitted on the way.

Heat: dT/dt = (T∞ − T)/τ under a steady load, so the slope falls in a straight line as temperature
rises. Slope over temperature, fitted by least squares whose memory halves every two minutes, gives
T∞ and τ; the limit is reached after τ·ln((T∞ − T)/(T∞ − limit)), and never if T∞ lies below it.

When a level of heat's ladder is taken or given back, the load becomes another one: it tends
elsewhere, but as fast. So T∞ is fitted anew, and what had been learned about τ is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, log
from typing import Final

SPACING_S: Final = 5.0
HALF_LIFE_S: Final = 120.0
TAU_HALF_LIFE_S: Final = 1800.0
FEWEST: Final = 6.0
FEWEST_AGAIN: Final = 2.0
LOAD_S: Final = 2.0
MARGIN_S: Final = 1.0
TREND_TICKS: Final = 4
HEAT_AHEAD_S: Final = 10.0
FLAT: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ThermalFit:
    """Sums of the regression of slope over temperature.

    Attributes:
        at_s: Time of the last reading that was taken in; None before the first.
        celsius: That reading.
        weight: Number of slopes, faded.
        temperature: Their sum of temperatures.
        slope: Their sum of slopes, °C/s.
        squares: Their sum of squared temperatures.
        products: Their sum of temperature × slope.
        spread: Sum of squared temperatures about their mean, of loads before this one.
        lean: Sum of temperature × slope about their means, likewise; over `spread` it is −1/τ.
    """

    at_s: float | None = None
    celsius: float = 0.0
    weight: float = 0.0
    temperature: float = 0.0
    slope: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    spread: float = 0.0
    lean: float = 0.0

    def seen(self, at_s: float, celsius: float | None) -> ThermalFit:
        """With a reading; one that comes too soon after the last says nothing about the slope."""
        if celsius is None:
            return self
        if self.at_s is None:
            return replace(self, at_s=at_s, celsius=celsius)
        elapsed_s = at_s - self.at_s
        if elapsed_s < SPACING_S:
            return self
        slope = (celsius - self.celsius) / elapsed_s
        middle = (celsius + self.celsius) / 2
        fade = 0.5 ** (elapsed_s / HALF_LIFE_S)
        fade_tau = 0.5 ** (elapsed_s / TAU_HALF_LIFE_S)
        return ThermalFit(
            at_s,
            celsius,
            self.weight * fade + 1,
            self.temperature * fade + middle,
            self.slope * fade + slope,
            self.squares * fade + middle * middle,
            self.products * fade + middle * slope,
            self.spread * fade_tau,
            self.lean * fade_tau,
        )

    def turned(self) -> ThermalFit:
        """From now on the load is another one; the next slope begins at the next reading."""
        spread, lean = self._about_means()
        return ThermalFit(None, self.celsius, spread=spread, lean=lean)

    def _about_means(self) -> tuple[float, float]:
        """`spread` and `lean` with those of the load that there is now."""
        if not self.weight:
            return self.spread, self.lean
        middle = self.temperature / self.weight
        return (
            self.spread + max(0.0, self.squares - middle * self.temperature),
            self.lean + self.products - middle * self.slope,
        )

    def steady(self) -> tuple[float, float] | None:
        """(T∞ in °C, τ in s); None before there is enough, or while it doesn't tend anywhere."""
        if self.weight < (FEWEST_AGAIN if self.spread else FEWEST):
            return None
        spread, lean = self._about_means()
        if spread <= FLAT or lean >= 0:
            return None
        gain = lean / spread
        middle = self.temperature / self.weight
        return middle - (self.slope / self.weight) / gain, -1 / gain

    def well_known(self) -> bool:
        """True once there is enough of this load alone to say where it tends."""
        return self.weight >= FEWEST and self.steady() is not None

    def time_to_s(self, limit_celsius: float, celsius: float) -> float:
        """Seconds until a limit is reached; infinity if it won't be, 0 if it has been."""
        if celsius >= limit_celsius:
            return 0.0
        model = self.steady()
        if model is None or model[0] <= limit_celsius:
            return inf
        end, tau_s = model
        return tau_s * log((end - celsius) / (end - limit_celsius))

    def ahead(self, celsius: float, seconds: float) -> float:
        """Where the temperature goes from here if nothing changes.

        Before it is known where it tends, it is taken to go on rising as it did.
        """
        model = self.steady()
        if model is None:
            return celsius + max(0.0, self.slope / max(self.weight, 1.0)) * seconds
        end, tau_s = model
        return end + (celsius - end) * exp(-seconds / tau_s)


def needed_s(load_s: float | None) -> float:
    """How far ahead to look for memory: as long as a hand-over takes, and a margin."""
    return (LOAD_S if load_s is None else load_s) + MARGIN_S


def trend_bytes_s(falls_bytes_s: tuple[float, ...]) -> float:
    """How fast memory keeps falling: the least of the last falls, so that a tremble is no trend."""
    return min(falls_bytes_s) if len(falls_bytes_s) >= TREND_TICKS else 0.0
