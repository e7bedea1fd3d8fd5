"""Schema → compiled policy. Total: whatever comes in, a value or problems come out. Pure."""

from __future__ import annotations

from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.knobs import KvPlacement
from trimtab.domain.models import ModelSpec
from trimtab.policy.compiled import (
    Admission,
    AllOf,
    AnyOf,
    BetweenTimes,
    Carry,
    Condition,
    Corner,
    Floor,
    Handover,
    KnobBounds,
    KvPolicy,
    MemoryLimit,
    Not,
    Policy,
    Rule,
    ScheduleEntry,
    Share,
    Slo,
    Stability,
    TemperatureLimit,
    Window,
)
from trimtab.policy.conditions import compile_condition
from trimtab.policy.document import Mapping, PathParts
from trimtab.policy.effects import compile_then
from trimtab.policy.meaning import check_policy, check_rule
from trimtab.policy.possible import signals_of
from trimtab.policy.problems import Problem
from trimtab.policy.report import Report
from trimtab.policy.rule_schema import Rule as RuleFile
from trimtab.policy.rule_schema import SignalTest
from trimtab.policy.schema import PolicyFile, WindowShift
from trimtab.policy.validate import validate

LEAVE_SHARE: Final = 1.5
"""Without `leave`, a step up must leave this many times the headroom."""

LEAVE_CELSIUS: Final = 6.0
"""Without `leave`, a step up waits until it is this much cooler than `enter`."""


@dataclass(frozen=True, slots=True)
class DeviceVariants:
    """What the device's model has.

    Attributes:
        names: Its variants, most precise first.
        quality_ratios: Their quality, where known.
        fingerprints: Of their KV caches, where known: variants with equal ones can share them.
        weights_bytes: What their weights take in memory, where known.
    """

    names: tuple[str, ...]
    quality_ratios: AbstractMapping[str, float] = field(default_factory=dict)
    fingerprints: AbstractMapping[str, str] = field(default_factory=dict)
    weights_bytes: AbstractMapping[str, int] = field(default_factory=dict)


def device_variants(model: ModelSpec | None) -> DeviceVariants | None:
    """What a model has; None without one."""
    if model is None:
        return None
    return DeviceVariants(
        tuple(one.name for one in model.variants),
        {one.name: one.quality for one in model.variants},
        {one.name: one.fingerprint for one in model.variants},
        {one.name: one.weights_bytes for one in model.variants},
    )


def compile_document(
    document: Mapping, revision: str, device: DeviceVariants | None
) -> tuple[Policy | None, list[Problem]]:
    """Compile a whole document.

    Args:
        document: The policy, what it extends already merged in.
        revision: Content hash of all that it was made of.
        device: The variants that this device has; None if that isn't known.

    Returns:
        The policy, None if there is an error; and every problem.
    """
    written, sound, removed, problems = validate(document)
    if written is None:
        return None, problems
    report = Report(sound, removed, list(problems))
    policy = _compile(written, report, revision)
    check_policy(
        written,
        policy,
        report,
        device.names if device else None,
        device.quality_ratios if device else {},
        device.fingerprints if device else {},
        device.weights_bytes if device else {},
    )
    return (None if report.failed else policy), report.problems


def _compile(written: PolicyFile, report: Report, revision: str) -> Policy:
    floor = _floor(written)
    knobs = _knobs(written)
    protect = tuple(Corner(name) for name in written.protect)
    third = next((corner for corner in Corner if corner not in protect), Corner.ACCURACY)
    first, second = (*protect, Corner.LATENCY, Corner.MEMORY)[:2]
    return Policy(
        name=written.name,
        revision=revision,
        description=written.description,
        protect=(first, second),
        sacrifice=Corner(written.sacrifice) if written.sacrifice else third,
        slo=Slo(written.slo.ttft_p95, written.slo.tpot_p95, written.slo.window),
        memory=_memory(written),
        temperature=_temperature(written),
        floor=floor,
        knobs=knobs,
        rules=_rules(written.rules, report, knobs, floor),
        stability=Stability(
            written.stability.dwell,
            written.stability.cooldown,
            written.stability.switches_per_hour,
        ),
        handover=Handover(
            Carry(written.handover.down), Carry(written.handover.up), written.handover.hold_max
        ),
        admission=_admission(written),
        kv=_kv(written),
        schedule=tuple(
            ScheduleEntry(item.cron, item.policy, item.timezone, item.for_)
            for item in written.schedule
        ),
    )


def _memory(written: PolicyFile) -> MemoryLimit:
    memory = written.limits.memory
    leave = memory.leave if memory.leave is not None else memory.headroom * LEAVE_SHARE
    return MemoryLimit(int(memory.headroom), int(leave))


def _temperature(written: PolicyFile) -> TemperatureLimit | None:
    limit = written.limits.temperature
    if limit is None:
        return None
    return TemperatureLimit(
        limit.enter, limit.leave if limit.leave is not None else limit.enter - LEAVE_CELSIUS
    )


def _floor(written: PolicyFile) -> Floor:
    context = written.floor.context
    return Floor(
        written.floor.quality, context if context is not None else written.knobs.context.min
    )


def _knobs(written: PolicyFile) -> KnobBounds:
    knobs = written.knobs
    window = knobs.context.window
    shift = isinstance(window, WindowShift)
    keep = window.keep if isinstance(window, WindowShift) else None
    return KnobBounds(
        variants=tuple(knobs.variant or ()),
        context_min=knobs.context.min,
        context_max=knobs.context.max,
        window=Window(shift, keep if isinstance(keep, int) else None),
        speculation=tuple(knobs.speculation),
        kv_placement=tuple(KvPlacement(name) for name in knobs.kv_placement),
        threads_min=knobs.threads.min,
        threads_max=knobs.threads.max,
        pace_min_ratio=knobs.pace.min,
        pace_max_ratio=knobs.pace.max,
    )


def _admission(written: PolicyFile) -> Admission:
    admission = written.admission
    return Admission(
        admission.queue,
        admission.max_wait,
        admission.conversations,
        tuple(admission.priorities.items()),
    )


def _kv(written: PolicyFile) -> KvPolicy:
    kv = written.kv
    return KvPolicy(
        int(kv.pool) if kv.pool is not None else None,
        int(kv.disk_quota),
        int(kv.writes_per_day),
        Share(kv.share),
    )


def _rules(
    rules: Sequence[RuleFile], report: Report, knobs: KnobBounds, floor: Floor
) -> tuple[Rule, ...]:
    compiled = (
        _rule(rule, ("rules", index), report, knobs, floor) for index, rule in enumerate(rules)
    )
    return tuple(rule for rule in compiled if rule is not None)


def _rule(
    written: RuleFile, path: PathParts, report: Report, knobs: KnobBounds, floor: Floor
) -> Rule | None:
    then = compile_then(written.then, (*path, "then"), report, knobs, floor)
    when = compile_condition(written.when, (*path, "when"), report)
    if when is None:
        return None
    leave = _leave(written, when, path, report)
    if leave is None or then is None:
        return None
    rule = Rule(written.name, when, _with_end_of_time(when, leave), then)
    check_rule(rule, leave, path, report)
    return rule


def _leave(written: RuleFile, when: Condition, path: PathParts, report: Report) -> Condition | None:
    """What ends the rule; without `leave` that is the end of its time of the day."""
    names = list(dict.fromkeys(test.signal for test in signals_of(when)))
    if written.leave is None:
        if not names:
            return Not(when)
        message = (
            f"the field 'leave' is missing: without it nothing says when {names[0]} is well again"
        )
        report.error((*path, "leave"), message, "leave: {below: ..., for: 30s}")
        return None
    if isinstance(written.leave, SignalTest) and written.leave.signal is None and len(names) != 1:
        found = ", ".join(names) or "none"
        message = f"name the signal: 'when' looks at {len(names)} ({found})"
        report.error((*path, "leave"), message, f"signal: {names[0]}" if names else "")
        return None
    return compile_condition(
        written.leave, (*path, "leave"), report, names[0] if len(names) == 1 else None
    )


def _with_end_of_time(when: Condition, leave: Condition) -> Condition:
    """A rule that is bound to times of the day also ends with them."""
    if not isinstance(when, AllOf):
        return leave
    spans = tuple(Not(part) for part in when.parts if isinstance(part, BetweenTimes))
    return AnyOf((leave, *spans)) if spans else leave
