"""A signal's last values in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.-=+*#@"
_GAP: Final = " "
_LEAST_SPAN: Final = 0.1


def sparkline(
    values: Sequence[float | None],
    width: int,
    *,
    low: float | None = None,
    high: float | None = None,
    plain: bool = False,
) -> str:
    """Bars for the newest values, oldest first; a gap where there was none.

    Args:
        values: In order of time.
        width: How many of them.
        low: The value of the lowest bar; None: the smallest that is shown.
        high: The value of the highest bar; None: the greatest that is shown.
        plain: True on terminals that show ASCII only.
    """
    shown = list(values)[-width:]
    known = [value for value in shown if value is not None]
    bars = _ASCII if plain else _BARS
    if not known:
        return _GAP * width
    top = max(known) if high is None else high
    bottom = min(known) if low is None else low
    if low is None:  # noise of a value that is far from zero shall not look like a cliff
        bottom = min(bottom, top - _LEAST_SPAN * abs(top))
    line = "".join(_GAP if value is None else _bar(value, bottom, top, bars) for value in shown)
    return line.rjust(width, _GAP)


def _bar(value: float, bottom: float, top: float, bars: str) -> str:
    """A value that never moves is drawn low, so that it doesn't look like an alarm."""
    if top <= bottom:
        return bars[0]
    share = min(1.0, max(0.0, (value - bottom) / (top - bottom)))
    return bars[round(share * (len(bars) - 1))]
