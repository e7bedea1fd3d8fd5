"""Numbers as people read them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from trimtab.domain.decisions import Grounds, Prediction, Source
from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.readings import Unit

_MIB: Final = 1024 * 1024
_TOLD_FROM: Final = 0.02
"""A correction by less than this isn't worth a word."""

SOURCE_WORDS: Final[dict[Source, str]] = {
    Source.MEASURED: "measured here",
    Source.FITTED: "from the profile",
    Source.SCALED: "scaled from the profile",
    Source.BYTES: "from other variants, by size",
    Source.BUILD: "as seen at its build",
    Source.ASSUMED: "first principles",
}
"""How a predicted figure was found, for people."""


def clock_time(wall_s: float, timezone: datetime.tzinfo | None = None) -> str:
    """A time of day: ``14:02:31``."""
    moment = datetime.datetime.fromtimestamp(wall_s, datetime.UTC).astimezone(timezone)
    return moment.strftime("%H:%M:%S")


def counted(number: int, one: str, many: str = "") -> str:
    """How many: ``1 switch``, ``3 switches``; without ``many`` an s is added."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def size(value_bytes: float) -> str:
    """Bytes as MiB, or GiB from 10 GiB on."""
    mebibytes = value_bytes / _MIB
    if abs(mebibytes) >= 10 * 1024:
        return f"{mebibytes / 1024:.2f} GiB"
    if abs(mebibytes) >= 10 or mebibytes == 0:
        return f"{mebibytes:.0f} MiB"
    return f"{mebibytes:.1f} MiB"


def speed_words(predicted: Prediction) -> str:
    """What speed is expected, and what that rests on; empty where nothing is known."""
    if predicted.decode_tps is None:
        return ""
    return f"{predicted.decode_tps:.0f} tokens/s ({grounds_words(predicted.grounds)})"


def grounds_words(grounds: Grounds) -> str:
    """What a predicted speed rests on: ``from the profile, ± 5 %``."""
    told = f"{SOURCE_WORDS[grounds.speed]}, ± {grounds.speed_error_ratio * 100:.0f} %"
    if abs(grounds.seen_ratio - 1) < _TOLD_FROM:
        return told
    return f"{told}; corrected to {grounds.seen_ratio * 100:.0f} % by what was seen"


def seconds(value_s: float) -> str:
    """A duration: ``320 ms``, ``1.2 s``, ``5 min``."""
    if value_s < 1:
        return f"{value_s * 1000:.0f} ms"
    if value_s < 10:
        return f"{value_s:.1f}".removesuffix(".0") + " s"
    if value_s < 120:
        return f"{value_s:.0f} s"
    if value_s < 7200:
        return f"{value_s / 60:.0f} min"
    return f"{value_s / 3600:.1f} h"


_BY_UNIT: Final[dict[str, Callable[[float], str]]] = {
    Unit.BYTES: size,
    Unit.BYTES_PER_S: lambda value: f"{size(value)}/s",
    Unit.CELSIUS: lambda value: f"{value:.0f} °C",
    Unit.CELSIUS_PER_S: lambda value: f"{value:.2f} °C/s",
    Unit.RATIO: lambda value: f"{value * 100:.3g} %",
    Unit.SECONDS: seconds,
    Unit.TOKENS_PER_S: lambda value: f"{value:.1f} tokens/s",
    Unit.WATTS: lambda value: f"{value:.1f} W",
    Unit.HERTZ: lambda value: f"{value / 1e6:.0f} MHz",
    Unit.PER_S: lambda value: f"{value:.4g}/s",
    Unit.BOOL: lambda value: "yes" if value else "no",
}


def amount(value: float, unit: str | None) -> str:
    """A value with its unit: ``480 MiB``, ``82 °C``, ``14 %``."""
    told = _BY_UNIT.get(unit or "")
    return told(value) if told else f"{value:.4g}"


def point_words(point: Mapping[str, Any]) -> str:
    """An operating point as the API gives it, in the words of `OperatingPoint.describe`."""
    return msgspec.convert(dict(point), OperatingPoint).describe()
