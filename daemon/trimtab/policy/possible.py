"""Whether a condition can come true at all, by its signals' ranges and by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.policy.compiled import (
    AllOf,
    AnyOf,
    BetweenTimes,
    Comparison,
    Condition,
    Not,
    SignalCondition,
)
from trimtab.policy.units import format_quantity
from trimtab.policy.words import describe_condition
from trimtab.signals.registry import SIGNALS


def signals_of(condition: Condition) -> Iterator[SignalCondition]:
    """Every test of a signal in a condition."""
    match condition:
        case SignalCondition():
            yield condition
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from signals_of(part)
        case Not(part):
            yield from signals_of(part)
        case BetweenTimes():
            return


def never_true(condition: Condition) -> str:
    """Why the condition can never come true, or an empty string if it can."""
    match condition:
        case SignalCondition():
            return _beyond_the_signal(condition)
        case AllOf(parts):
            each = next((why for part in parts if (why := never_true(part))), "")
            return each or _contradiction(parts)
        case AnyOf(parts):
            reasons = [never_true(part) for part in parts]
            return reasons[0] if all(reasons) else ""
        case Not() | BetweenTimes():
            return ""


def always_true(condition: Condition) -> str:
    """Why the condition holds whatever happens, or an empty string if it doesn't."""
    match condition:
        case SignalCondition():
            return _whole_range(condition)
        case AllOf(parts):
            reasons = [always_true(part) for part in parts]
            return reasons[0] if all(reasons) else ""
        case AnyOf(parts):
            return next((why for part in parts if (why := always_true(part))), "")
        case Not() | BetweenTimes():
            return ""


def disjoint(one: BetweenTimes, other: BetweenTimes) -> bool:
    """True if no minute of the day lies in both spans."""
    return not (_holds(one, other.start_min) or _holds(other, one.start_min))


def _holds(span: BetweenTimes, minute: int) -> bool:
    if span.start_min <= span.end_min:
        return span.start_min <= minute < span.end_min
    return minute >= span.start_min or minute < span.end_min


def _beyond_the_signal(test: SignalCondition) -> str:
    spec = SIGNALS.get(test.signal)
    if spec is None:
        return ""
    shown = format_quantity(test.threshold, spec.unit)
    if (
        test.comparison is Comparison.ABOVE
        and spec.high is not None
        and test.threshold >= spec.high
    ):
        return f"{test.signal} is never above {shown}"
    if test.comparison is Comparison.BELOW and spec.low is not None and test.threshold <= spec.low:
        return f"{test.signal} is never below {shown}"
    return ""


def _whole_range(test: SignalCondition) -> str:
    spec = SIGNALS.get(test.signal)
    if spec is None:
        return ""
    shown = format_quantity(test.threshold, spec.unit)
    if test.comparison is Comparison.ABOVE and spec.low is not None and test.threshold < spec.low:
        return f"{test.signal} is always above {shown}"
    if test.comparison is Comparison.BELOW and spec.high is not None and test.threshold > spec.high:
        return f"{test.signal} is always below {shown}"
    return ""


def _contradiction(parts: tuple[Condition, ...]) -> str:
    """Two direct parts of an `all` that exclude each other."""
    tests = [part for part in parts if isinstance(part, SignalCondition)]
    for high in tests:
        for low in tests:
            if (
                high.signal == low.signal
                and high.comparison is Comparison.ABOVE
                and low.comparison is Comparison.BELOW
                and high.threshold >= low.threshold
            ):
                return f"{describe_condition(high)} excludes {describe_condition(low)}"
    spans = [part for part in parts if isinstance(part, BetweenTimes)]
    for index, span in enumerate(spans):
        for other in spans[index + 1 :]:
            if disjoint(span, other):
                return f"{describe_condition(span)} excludes {describe_condition(other)}"
    return ""
