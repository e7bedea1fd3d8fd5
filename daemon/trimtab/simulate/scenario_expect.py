"""Expectations of scenarios, held against what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.domain.decisions import Direction
from trimtab.domain.readings import Unit
from trimtab.policy.units import format_quantity
from trimtab.simulate.scenario_schema import CountsFile, ExpectFile, StateFile, given
from trimtab.simulate.scenario_values import Sample, Trace

_EPSILON_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Miss:
    """An expectation that wasn't met.

    Attributes:
        line: Where the expectation stands.
        at_s: The moment that shows it best.
        expected: In words.
        found: In words.
    """

    line: int
    at_s: float
    expected: str
    found: str


def judge(trace: Trace, one: ExpectFile, line: int) -> Miss | None:
    """Hold one expectation against a trace; None if it is met."""
    from_s = one.from_ or 0.0
    until_s = one.until if one.until is not None else trace.samples[-1].at_s
    window = [s for s in trace.samples if from_s - _EPSILON_S <= s.at_s <= until_s + _EPSILON_S]
    if one.never is not None:
        return _never(window, one.never, line)
    if one.at_most is not None or one.at_least is not None:
        return _counts(trace, one, line, from_s, until_s)
    if one.at is not None:
        return _at(trace.samples, one, line, one.at)
    if one.by is not None:
        return _by(trace.samples, one, line, from_s, one.by)
    return _throughout(window, one, line)


def _at(samples: Sequence[Sample], one: ExpectFile, line: int, at_s: float) -> Miss | None:
    sample = [s for s in samples if s.at_s <= at_s + _EPSILON_S][-1]
    if _holds(sample, one):
        return None
    return Miss(line, at_s, f"at {clock(at_s)}: {_state_words(one)}", _found(sample, one))


def _by(
    samples: Sequence[Sample], one: ExpectFile, line: int, from_s: float, by_s: float
) -> Miss | None:
    window = [s for s in samples if from_s - _EPSILON_S <= s.at_s <= by_s + _EPSILON_S]
    if any(_holds(sample, one) for sample in window):
        return None
    later = next((s for s in samples if s.at_s > by_s and _holds(s, one)), None)
    end = f"; it came at {clock(later.at_s)}" if later else "; it never came"
    start = f"between {clock(from_s)} and " if from_s else "by "
    expected = f"{start}{clock(by_s)}: {_state_words(one)}"
    return Miss(line, by_s, expected, _found(window[-1] if window else samples[-1], one) + end)


def _throughout(window: Sequence[Sample], one: ExpectFile, line: int) -> Miss | None:
    bad = next((sample for sample in window if not _holds(sample, one)), None)
    if bad is None:
        return None
    span = f"from {clock(window[0].at_s)} to {clock(window[-1].at_s)}"
    return Miss(line, bad.at_s, f"{span}: {_state_words(one)}", _found(bad, one))


def _never(window: Sequence[Sample], state: StateFile, line: int) -> Miss | None:
    bad = next((sample for sample in window if _holds(sample, state)), None)
    if bad is None:
        return None
    return Miss(line, bad.at_s, f"never: {_state_words(state)}", _found(bad, state))


def _counts(trace: Trace, one: ExpectFile, line: int, from_s: float, until_s: float) -> Miss | None:
    for name, limit in _given_counts(one.at_most).items():
        moments = _COUNTED[name](trace, from_s, until_s)
        if len(moments) > limit:
            found = f"there were {len(moments)}"
            return Miss(line, moments[limit], f"at most {limit} {name}", found)
    for name, limit in _given_counts(one.at_least).items():
        moments = _COUNTED[name](trace, from_s, until_s)
        if len(moments) < limit:
            found = f"there were {len(moments)}"
            return Miss(line, until_s, f"at least {limit} {name}", found)
    return None


def _given_counts(counts: CountsFile | None) -> dict[str, int]:
    if counts is None:
        return {}
    return {
        name: value
        for name in type(counts).model_fields
        if (value := getattr(counts, name)) is not None
    }


def _decided(direction: Direction) -> Callable[[Trace, float, float], list[float]]:
    def moments(trace: Trace, from_s: float, until_s: float) -> list[float]:
        times = (one.at_s - trace.start_s for one in trace.decisions if one.direction is direction)
        return [at_s for at_s in times if from_s <= at_s <= until_s]

    return moments


def _switches(trace: Trace, from_s: float, until_s: float) -> list[float]:
    """Times at which another variant was loaded than the one before; waking up counts not."""
    moments: list[float] = []
    last: str | None = None
    for sample in trace.samples:
        variant = sample.point.variant
        if variant is not None and last is not None and variant != last:
            moments.append(sample.at_s)
        last = variant or last
    return [at_s for at_s in moments if from_s <= at_s <= until_s]


def _grown(field: str) -> Callable[[Trace, float, float], list[float]]:
    """Times at which a running total grew, once for each."""

    def moments(trace: Trace, from_s: float, until_s: float) -> list[float]:
        found: list[float] = []
        last = 0
        for sample in trace.samples:
            total: int = getattr(sample, field)
            found += [sample.at_s] * (total - last)
            last = total
        return [at_s for at_s in found if from_s <= at_s <= until_s]

    return moments


_COUNTED: Final[dict[str, Callable[[Trace, float, float], list[float]]]] = {
    "switches": _switches,
    "down": _decided(Direction.DOWN),
    "up": _decided(Direction.UP),
    "parked": _decided(Direction.PARK),
    "refused": _grown("refused"),
    "answered": _grown("answered"),
}


def _holds(sample: Sample, state: StateFile) -> bool:
    """True if everything that is said of a moment is so."""
    return all(_CHECKS[name](sample, value) for name, value in given(state).items())


def _variant(sample: Sample, value: object) -> bool:
    return sample.point.variant in ([value] if isinstance(value, str) else list(value))  # type: ignore[call-overload]


def _within(found: float, value: object) -> bool:
    """A number equals another one, or lies within bounds."""
    if isinstance(value, (int, float)):
        return abs(found - value) < 1e-9
    low, high = getattr(value, "at_least", None), getattr(value, "at_most", None)
    return (low is None or found >= low) and (high is None or found <= high)


_CHECKS: Final[dict[str, Callable[[Sample, object], bool]]] = {
    "variant": _variant,
    "context": lambda sample, value: (
        not sample.point.parked and _within(sample.point.context, value)
    ),
    "pace": lambda sample, value: (
        not sample.point.parked and _within(sample.point.pace_ratio, value)
    ),
    "parked": lambda sample, value: sample.parked is value,
    "rule": lambda sample, value: value in sample.rules,
    "no_rule": lambda sample, value: value not in sample.rules,
    "available": lambda sample, value: _within(sample.available_bytes, value),
}


def _state_words(state: StateFile) -> str:
    return ", ".join(f"{name} {_words(name, value)}" for name, value in given(state).items())


def _words(name: str, value: object) -> str:
    if isinstance(value, str):
        return repr(value) if name in {"rule", "no_rule"} else value
    if isinstance(value, list):
        return " or ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number(name, value)
    low, high = getattr(value, "at_least", None), getattr(value, "at_most", None)
    parts = []
    if low is not None:
        parts.append(f"at least {_number(name, low)}")
    if high is not None:
        parts.append(f"at most {_number(name, high)}")
    return " and ".join(parts)


def _number(name: str, value: float) -> str:
    units = {"available": Unit.BYTES, "pace": Unit.RATIO}
    return format_quantity(value, units.get(name))


def _found(sample: Sample, state: StateFile) -> str:
    """What was so instead, as far as it was asked."""
    said: list[str] = []
    for name in given(state):
        match name:
            case "rule" | "no_rule":
                said.append(f"rules in force: {', '.join(sample.rules) or 'none'}")
            case "available":
                said.append(f"{format_quantity(sample.available_bytes, Unit.BYTES)} available")
            case _:
                said.append(f"it was {sample.describe()}")
    return "; ".join(dict.fromkeys(said))


def clock(at_s: float) -> str:
    """A moment of a scenario, as it may be written: ``90s`` becomes ``1m30s``."""
    whole, rest = int(at_s), at_s - int(at_s)
    hours, minutes, seconds = whole // 3600, whole % 3600 // 60, whole % 60
    parts = f"{hours}h" * (hours > 0) + f"{minutes}m" * (minutes > 0)
    if seconds or rest >= 0.05 or not parts:
        parts += f"{seconds + round(rest, 1):g}s"
    return parts
