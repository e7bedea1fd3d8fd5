"""Small estimators that signals and rules are made of: sample in, value out, no clock.

Each holds a bounded number of samples, takes the time with each sample (`at_s`, monotonic seconds)
and answers in O(1) or, where it sorts, O(n log n) of a small n when asked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


def quantile(values: Iterable[float], ratio: float) -> float | None:
    """The smallest value that at least this share of the values doesn't exceed (nearest rank).

    Args:
        values: In any order.
        ratio: 0 to 1; 0.95 for p95.

    Returns:
        One of the values, or None if there are none.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    rank = math.ceil(min(1.0, max(0.0, ratio)) * len(ordered))
    return ordered[max(0, rank - 1)]


@dataclass(slots=True)
class Window:
    """The samples of the last seconds, at most a fixed number of them.

    Args:
        length_s: How far it looks back.
        most: How many samples it keeps; the oldest go first.
    """

    length_s: float
    most: int = 1024
    _samples: deque[tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._samples = deque(maxlen=self.most)

    def add(self, at_s: float, value: float) -> None:
        """Takes in a sample and lets go of those that have grown too old."""
        self._samples.append((at_s, value))
        self.forget(at_s)

    def forget(self, at_s: float) -> None:
        """Lets go of what is older than the window."""
        oldest_s = at_s - self.length_s
        samples = self._samples
        while samples and samples[0][0] < oldest_s:
            samples.popleft()

    def clear(self) -> None:
        """Starts afresh."""
        self._samples.clear()

    def __len__(self) -> int:
        return len(self._samples)

    def values(self) -> list[float]:
        """The values, oldest first."""
        return [value for _, value in self._samples]

    def samples(self) -> list[tuple[float, float]]:
        """Times and values, oldest first."""
        return list(self._samples)

    def quantile(self, ratio: float) -> float | None:
        """See `quantile`; None while it is empty."""
        return quantile((value for _, value in self._samples), ratio)

    def mean(self) -> float | None:
        """The plain mean; None while it is empty."""
        if not self._samples:
            return None
        return math.fsum(value for _, value in self._samples) / len(self._samples)


@dataclass(slots=True)
class Ewma:
    """An exponentially weighted mean whose weight follows from the time between samples.

    Args:
        time_constant_s: After this time without change 63 % of a step has been taken over.
    """

    time_constant_s: float
    value: float | None = None
    _at_s: float = 0.0

    def add(self, at_s: float, value: float) -> float:
        """Takes in a sample and returns the new mean: m += (1 − e^(−Δt/τ)) · (x − m)."""
        if self.value is None:
            self.value = value
        else:
            elapsed_s = max(0.0, at_s - self._at_s)
            weight = -math.expm1(-elapsed_s / self.time_constant_s)
            self.value += weight * (value - self.value)
        self._at_s = at_s
        return self.value

    def clear(self) -> None:
        """Starts afresh."""
        self.value = None


@dataclass(slots=True)
class Trend:
    """The slope of the last seconds by least squares, kept as running sums.

    Args:
        length_s: How far it looks back.
        most: How many samples it keeps.
    """

    length_s: float
    most: int = 256
    _samples: deque[tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._samples = deque(maxlen=self.most)

    def add(self, at_s: float, value: float) -> None:
        """Takes in a sample; one that isn't later than the last replaces it."""
        samples = self._samples
        if samples and at_s <= samples[-1][0]:
            samples.pop()
        samples.append((at_s, value))
        while samples[0][0] < at_s - self.length_s:
            samples.popleft()

    def clear(self) -> None:
        """Starts afresh."""
        self._samples.clear()

    @property
    def span_s(self) -> float:
        """Time between the oldest and the newest sample."""
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    def slope_per_s(self) -> float | None:
        """Σ(t−t̄)(x−x̄) / Σ(t−t̄)²; None with fewer than two samples.

        Times and values are taken relative to the newest sample, so that large values (bytes)
        and late times lose no digits.
        """
        count = len(self._samples)
        if count < 2:
            return None
        last_s, last = self._samples[-1]
        sum_t = sum_x = sum_tt = sum_tx = 0.0
        for at_s, value in self._samples:
            t, x = at_s - last_s, value - last
            sum_t += t
            sum_x += x
            sum_tt += t * t
            sum_tx += t * x
        spread = sum_tt - sum_t * sum_t / count
        return (sum_tx - sum_t * sum_x / count) / spread if spread > 0 else None


@dataclass(slots=True)
class Hysteresis:
    """A condition that is entered on one side and left on another, each after it has held.

    Args:
        enter: Entered when the value reaches it and has stayed there.
        leave: Left when the value has come back to it. Below ``enter`` for a condition that means
            too much, above it for one that means too little.
        enter_for_s: How long it must hold to be entered.
        leave_for_s: How long it must hold to be left.
    """

    enter: float
    leave: float
    enter_for_s: float = 0.0
    leave_for_s: float = 0.0
    active: bool = False
    _since_s: float | None = None

    def add(self, at_s: float, value: float | None) -> bool:
        """Takes in a sample and returns whether the condition is in force; None changes nothing."""
        if value is None:
            self._since_s = None
            return self.active
        sign = 1.0 if self.enter >= self.leave else -1.0
        mark, wait_s = (
            (self.leave, self.leave_for_s) if self.active else (self.enter, self.enter_for_s)
        )
        beyond = sign * (value - mark) * (-1.0 if self.active else 1.0) >= 0
        if not beyond:
            self._since_s = None
        else:
            if self._since_s is None:
                self._since_s = at_s
            if at_s - self._since_s >= wait_s:
                self.active = not self.active
                self._since_s = None
        return self.active


@dataclass(slots=True)
class OutlierFilter:
    """Believes a jump only when the next sample confirms it.

    A sensor that says 127 °C once between two readings of 45 °C is wrong; one that says it twice
    is believed. The price is one sample's delay for a real jump.

    Args:
        step: A change up to this much is always believed.
        step_per_s: And so is this much more for each second since the last believed sample.
    """

    step: float
    step_per_s: float
    _good: tuple[float, float] | None = None
    _doubted: float | None = None

    def add(self, at_s: float, value: float) -> bool:
        """Takes in a sample and returns whether it is to be believed."""
        if self._good is None or self._near(at_s, value) or self._confirms(value):
            self._good = (at_s, value)
            self._doubted = None
            return True
        self._doubted = value
        return False

    def _near(self, at_s: float, value: float) -> bool:
        if self._good is None:
            return False
        good_s, good = self._good
        return abs(value - good) <= self.step + self.step_per_s * max(0.0, at_s - good_s)

    def _confirms(self, value: float) -> bool:
        return self._doubted is not None and abs(value - self._doubted) <= self.step


@dataclass(slots=True)
class StuckDetector:
    """Notices a value that never moves.

    Args:
        after_s: How long it must have stayed exactly the same.
        samples: And over how many samples at least.
    """

    after_s: float
    samples: int
    _value: float | None = None
    _since_s: float = 0.0
    _count: int = 0

    def add(self, at_s: float, value: float) -> bool:
        """Takes in a sample and returns whether the value is stuck."""
        if value != self._value:
            self._value, self._since_s, self._count = value, at_s, 1
            return False
        self._count += 1
        return self._count >= self.samples and at_s - self._since_s >= self.after_s


@dataclass(slots=True)
class Rate:
    """A counter's growth per second between two looks.

    Args:
        wraps_at: The value after which the counter starts at 0 again; None: a smaller value than
            before means that it was reset, and gives no rate once.
    """

    wraps_at: int | None = None
    _last: tuple[float, int] | None = None

    def add(self, at_s: float, count: int) -> float | None:
        """Takes in the counter and returns its rate; None at the first look and after a reset."""
        last, self._last = self._last, (at_s, count)
        if last is None or at_s <= last[0]:
            return None
        grown = count - last[1]
        if grown < 0:
            if self.wraps_at is None:
                return None
            grown += self.wraps_at
        return max(0.0, grown / (at_s - last[0]))
