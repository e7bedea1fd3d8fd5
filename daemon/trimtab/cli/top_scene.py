"""What `trimtab top` knows at one moment: the daemon's answers as values, and what limits apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from trimtab.cli.signal_source import SignalRow, watched_signals
from trimtab.domain.decisions import UNKNOWN, Grounds
from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.readings import Quality
from trimtab.policy.compiled import Comparison, Policy, SignalCondition
from trimtab.policy.effective import EffectiveValue, show_policy
from trimtab.policy.load import compile_text
from trimtab.policy.possible import signals_of
from trimtab.serving.control import StatusView

_NEAR: Final = 0.8  # of a limit that has no leave threshold
_LIMIT_AT: Final = 0.75  # where a bar shows an upper limit, so that all marks stand in one column
_LEAST_AT: Final = 0.25  # and a lower one

# What is shown after the signals that have limits, in this order, if the device has it.
_OTHERS: Final = (
    "throughput.tokens_per_s",
    "cpu.busy",
    "cpu.others",
    "memory.own.pss",
    "memory.psi.some_avg10",
    "temperature.max",
    "cpu.throttled",
    "kv.leased",
    "kv.idle",
    "memory.available.slope",
    "cpu.psi.some_avg10",
    "io.psi.some_avg10",
    "latency.itl_p95",
    "memory.swap.in_rate",
    "disk.free",
    "power.battery",
    "power.package",
    "gpu.busy",
    "gpu.memory.free",
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the planner expects of a point; see `domain.decisions.Prediction`."""

    memory_bytes: int
    quality_ratio: float
    decode_tps: float | None = None
    ttft_s: float | None = None
    grounds: Grounds = UNKNOWN


@dataclass(frozen=True, slots=True)
class PointRow:
    """One operating point as the API lists it.

    ``reason`` says why it is out, ``passed_over`` why another is in force though it isn't out.
    """

    point: OperatingPoint
    predicted: Expected
    in_force: bool
    reason: str
    passed_over: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything on the screen, at one moment.

    Attributes:
        status: None before the daemon answered for the first time.
        decisions: Records, oldest first.
        policy: The policy in force, compiled; None if nobody could tell its values.
        at_s: When the daemon last answered (monotonic).
        fault: Why there is nothing newer; empty while it answers.
        hint: The way out of it.
    """

    status: StatusView | None = None
    signals: tuple[SignalRow, ...] = ()
    points: tuple[PointRow, ...] = ()
    decisions: tuple[Mapping[str, Any], ...] = ()
    policy: Policy | None = None
    at_s: float = 0.0
    fault: str = ""
    hint: str = ""

    def value(self, name: str) -> float | None:
        """A signal's value, if it can be trusted."""
        row = next((row for row in self.signals if row.name == name), None)
        return row.value if row is not None and row.quality is Quality.GOOD else None

    def in_force(self) -> PointRow | None:
        """The point that is in force, with what is expected of it."""
        return next((one for one in self.points if one.in_force), None)


class Level(StrEnum):
    """Where a value stands to its limit."""

    FREE = "free"  # there is no limit
    GOOD = "good"
    NEAR = "near"  # between leave and enter, or close to a limit without one
    OVER = "over"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A signal, and its limit if it has one.

    Attributes:
        limit: In the signal's unit; None without one.
        at_least: True if the value must stay above the limit.
        filled_ratio: How much of a bar is filled, 0 to 1.
        mark_ratio: Where on the bar the limit is.
        who: What of the policy looks at it.
    """

    row: SignalRow
    limit: float | None
    at_least: bool
    level: Level
    filled_ratio: float
    mark_ratio: float
    who: str


@dataclass(frozen=True, slots=True)
class _Limit:
    signal: str
    value: float
    leave: float | None = None
    at_least: bool = False


def policy_of(values: Sequence[Mapping[str, Any]]) -> Policy | None:
    """The policy whose values a daemon tells; None if they don't make one here.

    The values are YAML with units: what reads policy files reads them too.
    """
    told = tuple(EffectiveValue(tuple(one["path"]), str(one["text"]), "") for one in values)
    return compile_text(show_policy(told).encode(), "policy", None).policy


def rows_of(signals: Any) -> tuple[SignalRow, ...]:
    """Signals from an answer of the API."""
    return tuple(msgspec.convert(signals, list[SignalRow]))


def points_of(points: Any) -> tuple[PointRow, ...]:
    """Points from an answer of the API."""
    return tuple(msgspec.convert(points, list[PointRow]))


def merged(
    records: Sequence[Mapping[str, Any]], newer: Sequence[Mapping[str, Any]], most: int
) -> tuple[Mapping[str, Any], ...]:
    """Decision records by number; a newer one with the same number carries the outcome."""
    by_number = {record["id"]: record for record in (*records, *newer)}
    return tuple(by_number[number] for number in sorted(by_number))[-most:]


def gauges(scene: Scene) -> list[Gauge]:
    """Signals for the screen: those with limits first, the most urgent at the top."""
    rows = {row.name: row for row in scene.signals}
    watched = watched_signals(scene.policy) if scene.policy is not None else {}
    limited = [
        _gauge(rows[limit.signal], limit, ", ".join(watched.get(limit.signal, ())))
        for limit in _limits(scene.policy)
        if limit.signal in rows
    ]
    limited.sort(key=lambda one: one.level is Level.ABSENT)
    held = {one.row.name for one in limited}
    others = [name for name in (*watched, *_OTHERS) if name in rows and name not in held]
    free = [_free(rows[name], ", ".join(watched.get(name, ()))) for name in dict.fromkeys(others)]
    return limited + [one for one in free if one.level is not Level.ABSENT]


def _limits(policy: Policy | None) -> list[_Limit]:
    """What the policy holds signals to, one limit for each."""
    if policy is None:
        return []
    found: list[_Limit] = []
    if policy.memory is not None:
        memory = policy.memory
        found.append(
            _Limit("memory.available", memory.headroom_bytes, memory.leave_bytes, at_least=True)
        )
    if policy.temperature is not None:
        heat = policy.temperature
        found.append(_Limit("temperature.max", heat.enter_celsius, heat.leave_celsius))
    if policy.slo.ttft_p95_s is not None:
        found.append(_Limit("latency.ttft_p95", policy.slo.ttft_p95_s))
    if policy.slo.tpot_p95_s is not None:
        found.append(_Limit("latency.tpot_p95", policy.slo.tpot_p95_s))
    for rule in policy.rules:
        leaves = {test.signal: test.threshold for test in signals_of(rule.leave)}
        found += [_of_rule(test, leaves) for test in signals_of(rule.when) if _plain(test)]
    found.append(_Limit("queue.depth", policy.admission.queue))
    found.append(_Limit("requests.running", policy.admission.conversations))
    return list({limit.signal: limit for limit in reversed(found)}.values())[::-1]


def _plain(test: SignalCondition) -> bool:
    return test.comparison in {Comparison.ABOVE, Comparison.BELOW}


def _of_rule(test: SignalCondition, leaves: Mapping[str, float]) -> _Limit:
    below = test.comparison is Comparison.BELOW
    return _Limit(test.signal, test.threshold, leaves.get(test.signal), at_least=below)


def _gauge(row: SignalRow, limit: _Limit, who: str) -> Gauge:
    mark = _LEAST_AT if limit.at_least else _LIMIT_AT
    if row.value is None or row.quality is Quality.ABSENT:
        return Gauge(row, limit.value, limit.at_least, Level.ABSENT, 0.0, mark, who)
    scale = limit.value / mark if limit.value > 0 else 1.0
    filled = min(1.0, max(0.0, row.value / scale))
    return Gauge(row, limit.value, limit.at_least, _level(row.value, limit), filled, mark, who)


def _level(value: float, limit: _Limit) -> Level:
    """Reaching a limit of requests is no fault, so only beyond it counts as over."""
    if limit.at_least:
        near = limit.value / _NEAR if limit.leave is None else limit.leave
        return Level.OVER if value < limit.value else Level.NEAR if value < near else Level.GOOD
    near = limit.value * _NEAR if limit.leave is None else limit.leave
    return Level.OVER if value > limit.value else Level.NEAR if value > near else Level.GOOD


def _free(row: SignalRow, who: str) -> Gauge:
    level = Level.ABSENT if row.value is None else Level.FREE
    return Gauge(row, None, False, level, 0.0, 0.0, who)
