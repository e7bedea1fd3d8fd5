"""A device that gets warm: first-order thermals, and a trip point at which it throttles.

dT/dt = (T_ambient + rise · power − T) / τ. Power is 1 while the engine works at full pace on all
threads, and follows pace, threads and throttling in proportion; it is 0 while the engine waits.
Between two events power is constant, so that the course is exact: T tends to its end as exp(−t/τ),
and when a trip point is crossed is known in advance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log
from typing import Final

from trimtab.domain.knobs import OperatingPoint
from trimtab.planner.device import THREADS_POWER

TICK_S: Final = 5.0
"""Time between two looks at the sensors where there is heat: it needs more of them than memory."""


@dataclass(frozen=True, slots=True)
class Board:
    """How a device gets warm.

    Attributes:
        ambient_celsius: Where it comes to rest without work.
        rise_celsius: How much warmer it gets under full load.
        tau_s: Time constant.
        threads: Engine threads that are full load.
        trip_celsius: Throttling begins here; infinity: never.
        clear_celsius: So many degrees below, it ends.
        throttled_ratio: What speed and power fall to meanwhile.
        step_celsius: The sensor's steps; 0 for none.
    """

    ambient_celsius: float = 25.0
    rise_celsius: float = 62.0
    tau_s: float = 180.0
    threads: int = 2
    trip_celsius: float = 95.0
    clear_celsius: float = 10.0
    throttled_ratio: float = 0.5
    step_celsius: float = 0.1


class Thermals:
    """A board over time.

    Args:
        board: What it is like.

    Attributes:
        celsius: Its temperature; ambient at first.
        throttled: Whether it has slowed itself down.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.celsius = board.ambient_celsius
        self.throttled = False

    def speed_ratio(self, point: OperatingPoint) -> float:
        """What threads and throttling leave of the speed at full pace."""
        fewer = (point.threads / self.board.threads) ** THREADS_POWER if point.threads else 1.0
        return fewer * self._clock()

    def power_ratio(self, point: OperatingPoint) -> float:
        """Power while the engine works, relative to full load."""
        return point.pace_ratio * point.threads / self.board.threads * self._clock()

    def advance(self, elapsed_s: float, power_ratio: float) -> None:
        """Let time pass at a constant power."""
        end = self._end(power_ratio)
        self.celsius = end + (self.celsius - end) * exp(-elapsed_s / self.board.tau_s)

    def trips_in_s(self, power_ratio: float) -> float:
        """Time until throttling begins or ends at this power; infinity if it doesn't."""
        board, end = self.board, self._end(power_ratio)
        goal = board.trip_celsius - (board.clear_celsius if self.throttled else 0.0)
        beyond, crosses = self.celsius >= goal, end > goal
        if self.throttled:
            beyond, crosses = self.celsius <= goal, end < goal
        if beyond or not crosses:
            return 0.0 if beyond else inf
        return board.tau_s * log((self.celsius - end) / (goal - end))

    def trip(self) -> None:
        """Throttling begins or ends."""
        self.throttled = not self.throttled

    def read(self) -> float:
        """What the sensor says."""
        step = self.board.step_celsius
        return round(self.celsius / step) * step if step else self.celsius

    def _clock(self) -> float:
        return self.board.throttled_ratio if self.throttled else 1.0

    def _end(self, power_ratio: float) -> float:
        return self.board.ambient_celsius + self.board.rise_celsius * power_ratio
