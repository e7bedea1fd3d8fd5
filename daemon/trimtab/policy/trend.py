"""How fast a signal changes: a least-squares line over a window of samples. Pure."""

from __future__ import annotations

from typing import Final, TypeAlias

Samples: TypeAlias = tuple[tuple[float, float], ...]
"""Time and value, oldest first; the last one is always the newest reading."""

KEPT: Final = 20
"""Samples kept in a window: at 100 ticks a second a window of seconds stays small all the same."""

FILLED_RATIO: Final = 0.5
LEAST_SAMPLES: Final = 3


def feed(samples: Samples, at_s: float, value: float, window_s: float) -> Samples:
    """Add a reading and forget what is older than the window.

    Readings that come faster than a twentieth of the window replace each other, so that the
    window holds at most some twenty.
    """
    if samples and at_s <= samples[-1][0]:
        return samples
    first = 0
    while first < len(samples) and samples[first][0] < at_s - window_s:
        first += 1
    end = len(samples)
    if end - first >= 2 and samples[-1][0] - samples[-2][0] < window_s / KEPT:
        end -= 1
    return (*samples[first:end], (at_s, value))


def slope(samples: Samples, window_s: float) -> float | None:
    """Change per second: the least-squares line through the samples.

    ``slope = Σ (t − t̄)(v − v̄) / Σ (t − t̄)²``

    Returns:
        None while the samples cover less than half of the window: too little to tell.
    """
    count = len(samples)
    if count < LEAST_SAMPLES or samples[-1][0] - samples[0][0] < window_s * FILLED_RATIO:
        return None
    mean_t = sum(sample[0] for sample in samples) / count
    mean_v = sum(sample[1] for sample in samples) / count
    above = below = 0.0
    for at_s, value in samples:
        offset = at_s - mean_t
        above += offset * (value - mean_v)
        below += offset * offset
    return above / below if below > 0 else None
