"""Quantities as people write them (`512MiB`, `80C`, `300ms`, `25%`), turned into base units once.

The base units are those of `Unit`: bytes, degrees Celsius, seconds, ratios 0–1. Pure text in,
number out; a `QuantityError` says what was found and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from trimtab.domain.readings import Unit

_QUANTITY: Final = re.compile(r"^\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+))\s*([^\d\s].*?)?\s*$", re.ASCII)
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)", re.ASCII)

_BYTES: Final[dict[str, float]] = {
    "B": 1,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SECONDS: Final[dict[str, float]] = {
    "ms": 1e-3,
    "s": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86400,
}
_PER: Final[dict[str, float]] = {"/s": 1, "/min": 1 / 60, "/h": 1 / 3600}


def _per_time(units: dict[str, float]) -> dict[str, float]:
    """The same units over a time: `MiB` becomes `MiB/s`, `MiB/min` and `MiB/h`."""
    return {
        unit + per: factor * share for unit, factor in units.items() for per, share in _PER.items()
    }


_CELSIUS: Final[dict[str, float]] = {"C": 1, "°C": 1}
_RATIO: Final[dict[str, float]] = {"%": 0.01}
_TOKENS: Final[dict[str, float]] = {"tokens": 1, "token": 1, "tok": 1, "t": 1}

# unit -> (suffixes with their factor, whether a bare number is allowed, an example)
_SUFFIXES: Final[dict[Unit, tuple[dict[str, float], bool, str]]] = {
    Unit.BYTES: (_BYTES, False, "512MiB"),
    Unit.BYTES_PER_S: (_per_time(_BYTES), False, "20MiB/s"),
    Unit.CELSIUS: (_CELSIUS, False, "80C"),
    Unit.CELSIUS_PER_S: (_per_time(_CELSIUS), False, "0.5C/s"),
    Unit.RATIO: (_RATIO, True, "25%"),
    Unit.SECONDS: (_SECONDS, False, "300ms"),
    Unit.COUNT: ({}, True, "4"),
    Unit.PER_S: (_PER, True, "5/s"),
    Unit.TOKENS_PER_S: (_per_time(_TOKENS), True, "20tokens/s"),
    Unit.HERTZ: ({"Hz": 1, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}, False, "1.5GHz"),
    Unit.WATTS: ({"W": 1, "mW": 1e-3}, False, "5W"),
    Unit.BOOL: ({}, False, "true"),
}

# What a slope of a signal is written in: (suffixes, an example). Always per time.
_SLOPES: Final[dict[Unit, tuple[dict[str, float], str]]] = {
    Unit.BYTES: (_per_time(_BYTES), "20MiB/s"),
    Unit.CELSIUS: (_per_time(_CELSIUS), "0.5C/s"),
    Unit.RATIO: (_per_time(_RATIO), "1%/s"),
    Unit.SECONDS: (_per_time(_SECONDS), "10ms/s"),
    Unit.COUNT: (_PER, "5/min"),
    Unit.HERTZ: (_per_time({"Hz": 1, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}), "50MHz/s"),
    Unit.WATTS: (_per_time({"W": 1, "mW": 1e-3}), "0.5W/s"),
}

_KIND: Final[dict[Unit, str]] = {
    Unit.BYTES: "a size",
    Unit.BYTES_PER_S: "a size per time",
    Unit.CELSIUS: "a temperature",
    Unit.CELSIUS_PER_S: "a temperature per time",
    Unit.RATIO: "a share",
    Unit.SECONDS: "a time",
    Unit.COUNT: "a number",
    Unit.PER_S: "a rate",
    Unit.TOKENS_PER_S: "a token rate",
    Unit.HERTZ: "a frequency",
    Unit.WATTS: "a power",
    Unit.BOOL: "true or false",
}
_ALL_SUFFIXES: Final = {
    suffix: unit for unit, (table, _, _) in _SUFFIXES.items() for suffix in table
}

_LARGEST: Final = 2.0**63


class QuantityError(ValueError):
    """A quantity that can't be read.

    Args:
        message: What was found and what is allowed.
        suggestion: What to write instead, where that is clear.
    """

    def __init__(self, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion


def parse_quantity(found: object, unit: Unit) -> float:
    """A value of the given unit.

    Args:
        found: What stands in the file: text, a number, true or false.
        unit: The unit that is wanted.

    Returns:
        The value in the base unit; for `Unit.BOOL` 1.0 or 0.0.

    Raises:
        QuantityError: If it isn't such a quantity, isn't finite, or is negative where that makes
            no sense (everywhere but for temperatures).
    """
    if unit is Unit.BOOL:
        return _parse_bool(found)
    suffixes, bare_allowed, example = _SUFFIXES[unit]
    if unit is Unit.SECONDS and isinstance(found, str):
        compound = _parse_compound(found)
        if compound is not None:
            return compound
    number, suffix = _split(found, unit, example)
    value = _apply(number, suffix, suffixes, unit, bare_allowed, example)
    if value < 0 and unit is not Unit.CELSIUS:
        raise QuantityError(f"{found!r} is negative; {_KIND[unit]} starts at 0")
    if unit is Unit.RATIO and value > 1:
        raise QuantityError(
            f"{found!r} is more than 100%; a share lies between 0% and 100%",
            f"{number:g}%" if suffix == "" and number <= 100 else "",
        )
    return value


def parse_slope(found: object, unit: Unit) -> float:
    """How fast a signal of the given unit changes, per second.

    Raises:
        QuantityError: If it isn't such a rate, or isn't above 0.
    """
    if unit not in _SLOPES:
        raise QuantityError(f"a signal in {unit} has no trend; compare its value instead")
    suffixes, example = _SLOPES[unit]
    number, suffix = _split(found, unit, example)
    value = _apply(number, suffix, suffixes, unit, False, example)
    if value <= 0:
        raise QuantityError(f"{found!r} isn't above 0; a trend needs a speed such as {example}")
    return value


def parse_any(found: object) -> float:
    """A quantity of any kind, for signals whose unit their owner declares.

    Raises:
        QuantityError: If it is no number with a known unit or none.
    """
    if isinstance(found, bool):
        return float(found)
    number, suffix = _split(found, Unit.COUNT, "12.5")
    unit = _ALL_SUFFIXES.get(suffix, Unit.COUNT)
    return _apply(number, suffix, _SUFFIXES[unit][0], unit, True, "12.5")


def parse_any_slope(found: object) -> float:
    """How fast a signal of an unknown unit changes, per second.

    Raises:
        QuantityError: If it is no number per time, or isn't above 0.
    """
    _, suffix = _split(found, Unit.COUNT, "5/min")
    for unit, (suffixes, _) in _SLOPES.items():
        if suffix in suffixes:
            return parse_slope(found, unit)
    return parse_slope(found, Unit.COUNT)


def format_quantity(value: float, unit: Unit | None) -> str:
    """The value as a person would write it: `512MiB`, `80C`, `5s`, `25%`.

    Args:
        value: In the base unit.
        unit: None prints the bare number.
    """
    if unit is None:
        return f"{value:.6g}"
    return _FORMATS[unit](value)


def exact_size(size_bytes: int) -> str:
    """A size that is read back as the very same number of bytes: `1.5GiB`, `4498.5MiB`, `77B`."""
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        shown = f"{size_bytes / size:.3f}".rstrip("0").rstrip(".")
        if size_bytes >= size and int(float(shown) * size) == size_bytes:
            return f"{shown}{name}"
    return f"{size_bytes}B"


def format_slope(value: float, unit: Unit | None) -> str:
    """A slope, per second, as a person would write it: `20MiB/s`."""
    return format_quantity(value, unit) + "/s"


def format_duration(seconds: float) -> str:
    """`300ms`, `5s`, `90s`, `10min`, `2h`: the largest unit that gives a whole number."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.4g}ms"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds / size:.0f}{name}"
    return f"{seconds:.4g}s"


def unit_example(unit: Unit) -> str:
    """One way of writing a value of this unit."""
    return _SUFFIXES[unit][2]


def _parse_bool(found: object) -> float:
    if isinstance(found, bool):
        return float(found)
    hint = {"on": "true", "yes": "true", "off": "false", "no": "false"}.get(str(found), "")
    raise QuantityError(f"found {found!r}; allowed are true and false", hint)


def _parse_compound(text: str) -> float | None:
    """`1h30m` and the like; None if the text is anything else."""
    stripped = text.strip()
    parts = _DURATION_PART.findall(stripped)
    if len(parts) < 2 or "".join(number + unit for number, unit in parts) != stripped:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _split(found: object, unit: Unit, example: str) -> tuple[float, str]:
    """Number and suffix of what was found."""
    kind = _KIND[unit]
    if isinstance(found, bool) or found is None or not isinstance(found, (int, float, str)):
        raise QuantityError(f"found {show(found)}; {kind} is wanted, such as {example}")
    if isinstance(found, (int, float)):
        if not math.isfinite(found) or abs(found) > _LARGEST:
            raise QuantityError(f"found {found}; {kind} is a finite number, such as {example}")
        return float(found), ""
    match = _QUANTITY.match(found)
    if match is None:
        raise QuantityError(f"found {show(found)}; {kind} is wanted, such as {example}")
    number = float(match[1])
    if not math.isfinite(number) or abs(number) > _LARGEST:
        raise QuantityError(f"found {show(found)}; that number is beyond all measure")
    return number, (match[2] or "").replace(" ", "")


def _apply(
    number: float,
    suffix: str,
    suffixes: dict[str, float],
    unit: Unit,
    bare_allowed: bool,
    example: str,
) -> float:
    """The number times what its suffix means."""
    if suffix == "":
        if number == 0 or bare_allowed:
            return number
        raise QuantityError(
            f"found {number:g} without a unit; {_KIND[unit]} needs one, such as {example}",
            _with_unit(number, suffixes),
        )
    factor = suffixes.get(suffix)
    if factor is None:
        raise QuantityError(*_wrong_suffix(number, suffix, suffixes, unit, example))
    value = number * factor
    if abs(value) > _LARGEST:
        raise QuantityError(f"found {number:g}{suffix}; that number is beyond all measure")
    return value


def _with_unit(number: float, suffixes: dict[str, float]) -> str:
    """The number with the usual suffix, as a suggestion."""
    if suffixes is _SECONDS and number >= 100:
        return f"{number:g}ms or {number:g}s"
    for usual in ("s", "C", "/s", "MiB", "MiB/s", "%/s"):
        if usual in suffixes:
            return f"{number:g}{usual}"
    return ""


def _wrong_suffix(
    number: float, suffix: str, suffixes: dict[str, float], unit: Unit, example: str
) -> tuple[str, str]:
    """What to say of an unknown suffix, and what to write instead."""
    shown = f"{number:g}{suffix}"
    if suffix in {"F", "°F"} and unit is Unit.CELSIUS:
        return f"found {shown}; temperatures are in Celsius", f"{(number - 32) / 1.8:.0f}C"
    folded = {known.lower(): known for known in suffixes}
    if suffix.lower() in folded:
        right = folded[suffix.lower()]
        return f"found {shown}; the unit is written {right!r}", f"{number:g}{right}"
    kind = _KIND[unit]
    other = _ALL_SUFFIXES.get(suffix)
    if other is not None and other is not unit:
        return f"found {shown}, which is {_KIND[other]}; {kind} is wanted, such as {example}", ""
    allowed = ", ".join(suffixes) if len(suffixes) <= 12 else f"such as {example}"
    return f"found {shown}: unknown unit {suffix!r}; {kind} is wanted ({allowed or 'no unit'})", ""


def _format_bytes(value: float) -> str:
    for size, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= size:
            return f"{value / size:.4g}{name}"
    return f"{value:.4g}B"


_FORMATS: Final[dict[Unit, Callable[[float], str]]] = {
    Unit.BYTES: _format_bytes,
    Unit.BYTES_PER_S: lambda value: _format_bytes(value) + "/s",
    Unit.CELSIUS: lambda value: f"{value:.4g}C",
    Unit.CELSIUS_PER_S: lambda value: f"{value:.3g}C/s",
    Unit.RATIO: lambda value: f"{value * 100:.4g}%",
    Unit.SECONDS: format_duration,
    Unit.COUNT: lambda value: f"{value:.6g}",
    Unit.PER_S: lambda value: f"{value:.4g}/s",
    Unit.TOKENS_PER_S: lambda value: f"{value:.4g}tokens/s",
    Unit.HERTZ: lambda value: f"{value / 1e9:.4g}GHz" if value >= 1e9 else f"{value / 1e6:.4g}MHz",
    Unit.WATTS: lambda value: f"{value:.3g}W",
    Unit.BOOL: lambda value: "true" if value else "false",
}


def show(found: object) -> str:
    """What was found, cut to a length that fits a message."""
    if isinstance(found, dict):
        return "a mapping"
    if isinstance(found, list):
        return "a list"
    if found is None:
        return "nothing"
    text = repr(found)
    return text if len(text) <= 60 else text[:57] + "...'"
