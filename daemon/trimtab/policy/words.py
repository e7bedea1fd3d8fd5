"""Conditions in words, and the units of signals. Pure."""

from __future__ import annotations

from trimtab.domain.readings import Unit
from trimtab.policy.compiled import (
    AllOf,
    AnyOf,
    BetweenTimes,
    Comparison,
    Condition,
    Not,
    SignalCondition,
)
from trimtab.policy.units import format_quantity, format_slope
from trimtab.signals.registry import DYNAMIC_PREFIXES, SIGNALS


def signal_unit(name: str) -> tuple[bool, Unit | None]:
    """Whether a signal of this name can exist, and its unit; None if its owner declares it."""
    spec = SIGNALS.get(name)
    if spec is not None:
        return True, spec.unit
    for prefix, unit in DYNAMIC_PREFIXES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return True, unit
    return False, None


def describe_condition(condition: Condition) -> str:
    """The condition in words: ``memory.available below 512MiB for 5s``."""
    match condition:
        case SignalCondition():
            return _describe_signal(condition)
        case AllOf(parts):
            return " and ".join(_inner(part) for part in parts)
        case AnyOf(parts):
            return " or ".join(_inner(part) for part in parts)
        case Not(part):
            return f"not {_inner(part)}"
        case BetweenTimes(start, end):
            return f"between {_clock(start)} and {_clock(end)}"


def _describe_signal(test: SignalCondition) -> str:
    _, unit = signal_unit(test.signal)
    held = f" for {format_quantity(test.for_s, Unit.SECONDS)}" if test.for_s else ""
    match test.comparison:
        case Comparison.ABOVE | Comparison.BELOW if unit is Unit.BOOL:
            words = "is true" if test.comparison is Comparison.ABOVE else "is false"
        case Comparison.ABOVE | Comparison.BELOW:
            words = f"{test.comparison} {format_quantity(test.threshold, unit)}"
        case Comparison.RISING | Comparison.FALLING:
            words = f"{test.comparison} faster than {format_slope(test.threshold, unit)}"
    return f"{test.signal} {words}{held}"


def _inner(condition: Condition) -> str:
    text = describe_condition(condition)
    return f"({text})" if isinstance(condition, (AllOf, AnyOf)) else text


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
