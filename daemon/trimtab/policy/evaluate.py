"""Which rules are in force: one pass over all conditions for each tick. Pure and incremental.

Every condition is fed on every tick, whether its rule is in force or not, so that "for 5 s" means
the last five seconds. A signal that is absent, stale or failed makes its condition unknown: a rule
doesn't come in force on it, and one that is in force stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.domain.decisions import Trigger
from trimtab.domain.readings import Snapshot, Unit
from trimtab.policy.compiled import (
    AllOf,
    AnyOf,
    BetweenTimes,
    Comparison,
    Condition,
    Not,
    Policy,
    Rule,
    SignalCondition,
)
from trimtab.policy.trend import Samples, feed, slope
from trimtab.policy.units import format_quantity, format_slope
from trimtab.policy.words import describe_condition, signal_unit


@dataclass(frozen=True, slots=True)
class LeafState:
    """What one test of a signal remembers.

    Attributes:
        since_s: Since when its comparison has held without a break; None while it doesn't.
        samples: Of a trend, the readings of its window.
    """

    since_s: float | None = None
    samples: Samples = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a rule is in force.

    Attributes:
        rule: The rule.
        in_force: Whether its tightening holds.
        since_s: Since when that has been so; None: ever since.
        why: What made it so: signal, value, threshold, how long it had held.
        absent: Signals that it looks at and can't use now.
    """

    rule: Rule
    in_force: bool = False
    since_s: float | None = None
    why: Trigger | None = None
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleState:
    """What one rule remembers: its tests in the order of the conditions, and its verdict."""

    when: tuple[LeafState, ...]
    leave: tuple[LeafState, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RulesState:
    """What all rules of a policy remember."""

    rules: tuple[Rule, ...] = ()
    states: tuple[RuleState, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of the last tick."""
        return tuple(state.verdict for state in self.states)


_FRESH: Final = LeafState()


def evaluate(
    policy: Policy, state: RulesState, snapshot: Snapshot, wall_minute: int | None
) -> tuple[RulesState, tuple[Verdict, ...]]:
    """Feed a tick's readings to every rule.

    Args:
        policy: In force. Where it isn't the one that the state belongs to, rules that both have
            keep what they remember.
        state: From the last tick.
        snapshot: This tick's readings.
        wall_minute: Local time in minutes since midnight; None if the clock can't be trusted.

    Returns:
        The new state and the verdict for each rule, in the policy's order.
    """
    if state.rules is not policy.rules:
        state = carry_over(state, policy)
    states = tuple(_advance(one, snapshot, wall_minute) for one in state.states)
    return RulesState(policy.rules, states), tuple(one.verdict for one in states)


def carry_over(state: RulesState, policy: Policy) -> RulesState:
    """The state for another policy: equal rules go on, others begin."""
    earlier = dict(zip(state.rules, state.states, strict=True))
    states = tuple(earlier.get(rule) or _begin(rule) for rule in policy.rules)
    return RulesState(policy.rules, states)


def _begin(rule: Rule) -> RuleState:
    return RuleState(
        (_FRESH,) * _leaf_count(rule.when), (_FRESH,) * _leaf_count(rule.leave), Verdict(rule)
    )


def _leaf_count(condition: Condition) -> int:
    match condition:
        case SignalCondition():
            return 1
        case AllOf(parts) | AnyOf(parts):
            return sum(_leaf_count(part) for part in parts)
        case Not(part):
            return _leaf_count(part)
        case BetweenTimes():
            return 0


class _Pass:
    """One condition's pass over one tick: reads the old leaves, collects the new ones."""

    __slots__ = ("absent", "at_s", "leaves", "minute", "old", "snapshot", "true_leaf")

    def __init__(self, old: tuple[LeafState, ...], snapshot: Snapshot, minute: int | None) -> None:
        self.old = old
        self.snapshot = snapshot
        self.at_s = snapshot.at_s
        self.minute = minute
        self.leaves: list[LeafState] = []
        self.absent: list[str] = []
        self.true_leaf: tuple[SignalCondition, float, float] | None = None

    def truth(self, condition: Condition) -> bool | None:
        """True, false or unknown. Every leaf is fed, whatever the others say."""
        if type(condition) is SignalCondition:
            return self._signal(condition)
        match condition:
            case AllOf(parts):
                return _all([self.truth(part) for part in parts])
            case AnyOf(parts):
                return _any([self.truth(part) for part in parts])
            case Not(part):
                inner = self.truth(part)
                return None if inner is None else not inner
            case BetweenTimes(start, end):
                if self.minute is None:
                    return None
                if start <= end:
                    return start <= self.minute < end
                return self.minute >= start or self.minute < end
            case _:
                raise AssertionError(condition)

    def _signal(self, test: SignalCondition) -> bool | None:
        old = self.old[len(self.leaves)]
        value = self.snapshot.value(test.signal)
        if value is None:
            self.absent.append(test.signal)
            # What isn't known breaks the time for which something has held.
            self.leaves.append(LeafState(None, old.samples) if old.since_s is not None else old)
            return None
        samples = old.samples
        if test.window_s:
            samples = feed(samples, self.at_s, value, test.window_s)
            measured = slope(samples, test.window_s)
            if measured is None:
                self.leaves.append(LeafState(None, samples))
                return None
            value = measured
        if not _compares(test, value):
            self.leaves.append(_leaf(old, None, samples))
            return False
        since_s = old.since_s if old.since_s is not None else self.at_s
        self.leaves.append(_leaf(old, since_s, samples))
        held_s = self.at_s - since_s
        if held_s < test.for_s:
            return False
        if self.true_leaf is None:
            self.true_leaf = (test, value, held_s)
        return True


def _leaf(old: LeafState, since_s: float | None, samples: Samples) -> LeafState:
    """The old value where nothing has changed: most leaves of most ticks."""
    if old.since_s == since_s and old.samples is samples:
        return old
    return LeafState(since_s, samples)


def _compares(test: SignalCondition, value: float) -> bool:
    match test.comparison:
        case Comparison.ABOVE | Comparison.RISING:
            return value > test.threshold
        case Comparison.BELOW:
            return value < test.threshold
        case Comparison.FALLING:
            return value < -test.threshold


def _all(parts: Sequence[bool | None]) -> bool | None:
    if False in parts:
        return False
    return None if None in parts else True


def _any(parts: Sequence[bool | None]) -> bool | None:
    if True in parts:
        return True
    return None if None in parts else False


def _advance(state: RuleState, snapshot: Snapshot, minute: int | None) -> RuleState:
    """One rule, one tick."""
    verdict = state.verdict
    rule = verdict.rule
    when = _Pass(state.when, snapshot, minute)
    begins = when.truth(rule.when)
    leave = _Pass(state.leave, snapshot, minute)
    ends = leave.truth(rule.leave)
    absent = tuple(dict.fromkeys(when.absent + leave.absent)) if when.absent or leave.absent else ()
    if not verdict.in_force and begins:
        why = _why(when, rule.when)
        verdict = Verdict(rule, True, snapshot.at_s, why, absent)
    elif verdict.in_force and ends and not begins:
        why = _why(leave, rule.leave)
        verdict = Verdict(rule, False, snapshot.at_s, why, absent)
    elif absent != verdict.absent:
        verdict = Verdict(rule, verdict.in_force, verdict.since_s, verdict.why, absent)
    return RuleState(
        _same_or_new(state.when, when.leaves), _same_or_new(state.leave, leave.leaves), verdict
    )


def _same_or_new(old: tuple[LeafState, ...], new: Sequence[LeafState]) -> tuple[LeafState, ...]:
    if all(map(_is, old, new)):
        return old
    return tuple(new)


def _is(one: LeafState, other: LeafState) -> bool:
    return one is other


def _why(passed: _Pass, condition: Condition) -> Trigger:
    """What brought a rule in force, or ended it, for the record."""
    if passed.true_leaf is None:
        return Trigger("time", text=describe_condition(condition))
    test, value, held_s = passed.true_leaf
    return Trigger(test.signal, value, test.threshold, held_s, _sentence(test, value, held_s))


def _sentence(test: SignalCondition, value: float, held_s: float) -> str:
    """``memory.psi.some_avg10 was 14%, above 10% for 6s``."""
    _, unit = signal_unit(test.signal)
    held = f" for {format_quantity(round(held_s, 1), Unit.SECONDS)}" if held_s >= 1 else ""
    if unit is Unit.BOOL:
        return f"{test.signal} was {format_quantity(value, unit)}{held}"
    if test.window_s:
        speed = format_slope(abs(value), unit)
        limit = format_slope(test.threshold, unit)
        return f"{test.signal} was {test.comparison} by {speed}, faster than {limit}{held}"
    shown, limit = format_quantity(value, unit), format_quantity(test.threshold, unit)
    return f"{test.signal} was {shown}, {test.comparison} {limit}{held}"


def standing(verdict: Verdict) -> str:
    """A verdict in words, for status and `trimtab why`."""
    missing = f" ({', '.join(verdict.absent)} can't be read)" if verdict.absent else ""
    if verdict.in_force:
        because = f": {verdict.why.text}" if verdict.why is not None else ""
        kept = ", so it stays" if verdict.absent else ""
        return f"in force{because}{missing}{kept}"
    return f"not in force{missing}"
