"""Conditions of rules: from the schema to compiled values, with the checks of their meaning."""

from __future__ import annotations

from typing import Final

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
from trimtab.policy.document import PathParts
from trimtab.policy.problems import nearest
from trimtab.policy.report import Report
from trimtab.policy.rule_schema import AllTest, AnyTest, BetweenTest, NotTest, SignalTest
from trimtab.policy.units import (
    QuantityError,
    parse_any,
    parse_any_slope,
    parse_quantity,
    parse_slope,
)
from trimtab.policy.words import signal_unit
from trimtab.signals.registry import SIGNALS

TICK_S: Final = 1.0
"""The idle tick: a shorter span can't be told apart from none at all."""

DEFAULT_OVER_S: Final = 10.0
_COMPARISONS: Final = ("above", "below", "is_", "rising_faster_than", "falling_faster_than")
_WRITTEN: Final = "above, below, is, rising_faster_than, falling_faster_than"

Test = AllTest | AnyTest | NotTest | BetweenTest | SignalTest


def check_span(report: Report, path: PathParts, seconds: float) -> None:
    """Report a time that is shorter than a tick, and not none."""
    if 0 < seconds < TICK_S:
        report.error(path, "shorter than a tick, which is 1 s", "1s, or 0s for no wait at all")


def compile_condition(
    test: Test, path: PathParts, report: Report, signal: str | None = None
) -> Condition | None:
    """A condition as the core sees it.

    Args:
        test: What the file says.
        path: Where it says it.
        report: Takes the problems.
        signal: What a test without a signal means; None where every test must name its own.

    Returns:
        The condition, or None if it has an error.
    """
    match test:
        case AllTest():
            parts = _compile_parts(test.all, (*path, "all"), report, signal)
            return AllOf(parts) if parts is not None else None
        case AnyTest():
            parts = _compile_parts(test.any, (*path, "any"), report, signal)
            return AnyOf(parts) if parts is not None else None
        case NotTest():
            part = compile_condition(test.not_, (*path, "not"), report, signal)
            return Not(part) if part is not None else None
        case BetweenTest():
            return _compile_between(test, (*path, "between"), report)
        case SignalTest():
            return _compile_signal(test, path, report, signal)


def _compile_parts(
    tests: list[Test], path: PathParts, report: Report, signal: str | None
) -> tuple[Condition, ...] | None:
    parts = [
        compile_condition(test, (*path, index), report, signal) for index, test in enumerate(tests)
    ]
    whole = tuple(part for part in parts if part is not None)
    return whole if len(whole) == len(parts) else None


def _compile_between(test: BetweenTest, path: PathParts, report: Report) -> BetweenTimes | None:
    if len(test.between) != 2:
        return None
    start, end = (int(time[:2]) * 60 + int(time[3:]) for time in test.between)
    if start == end:
        report.error(path, f"from {test.between[0]} until {test.between[1]} is no time at all")
        return None
    return BetweenTimes(start, end)


def _compile_signal(
    test: SignalTest, path: PathParts, report: Report, signal: str | None
) -> SignalCondition | None:
    name = test.signal or signal
    if name is None:
        report.error(path, "the field 'signal' is missing", "signal: memory.available")
        return None
    known, unit = signal_unit(name)
    if not known:
        message = f"unknown signal {name!r}; 'trimtab signals' lists all of them"
        report.error((*path, "signal"), message, nearest(name, SIGNALS))
        return None
    given = [field for field in _COMPARISONS if getattr(test, field) is not None]
    if len(given) != 1:
        found = ", ".join(field.rstrip("_") for field in given) or "none"
        report.error(path, f"exactly one comparison is needed of {_WRITTEN}; found {found}")
        return None
    check_span(report, (*path, "for"), test.for_)
    is_trend = given[0].endswith("faster_than")
    if test.over is not None:
        check_span(report, (*path, "over"), test.over)
        if not is_trend:
            report.error((*path, "over"), "only a trend is taken over a time", "use 'for' instead")
    return _with_threshold(test, given[0], name, unit, path, report)


def _with_threshold(
    test: SignalTest, field: str, name: str, unit: Unit | None, path: PathParts, report: Report
) -> SignalCondition | None:
    written = getattr(test, field)
    place = (*path, field.rstrip("_"))
    comparison, threshold = Comparison.ABOVE, 0.5
    try:
        match field:
            case "above" | "below":
                comparison = Comparison(field)
                threshold = parse_any(written) if unit is None else parse_quantity(written, unit)
                if unit is Unit.BOOL:
                    raise QuantityError(f"{name} is true or false", f"is: {str(written).lower()}")
            case "is_":
                comparison = Comparison.ABOVE if written else Comparison.BELOW
                if unit not in (Unit.BOOL, None):
                    raise QuantityError(f"{name} isn't true or false; use above or below")
            case _:
                comparison = Comparison(field.removesuffix("_faster_than"))
                threshold = parse_any_slope(written) if unit is None else parse_slope(written, unit)
    except QuantityError as error:
        report.error(place, f"{name}: {error.message}", error.suggestion)
        return None
    is_trend = field.endswith("faster_than")
    over_s = (test.over if test.over is not None else DEFAULT_OVER_S) if is_trend else 0.0
    return SignalCondition(name, comparison, threshold, test.for_, over_s, report.place(path))
