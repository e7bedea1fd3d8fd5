"""Numbers as people read them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.readings import Unit

_MIB: Final = 1024 * 1024


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
