"""Checks of meaning: what is well-formed and still can't be meant."""

from __future__ import annotations

from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence
from itertools import combinations
from math import inf
from typing import Final

from trimtab.domain.readings import Unit
from trimtab.domain.view import fits
from trimtab.policy.compiled import (
    AllOf,
    AnyOf,
    BetweenTimes,
    Comparison,
    Condition,
    Policy,
    Rule,
    SignalCondition,
    Tightening,
)
from trimtab.policy.conditions import check_span
from trimtab.policy.cron import CronError, parse_cron
from trimtab.policy.document import PathParts
from trimtab.policy.possible import always_true, disjoint, never_true
from trimtab.policy.problems import nearest
from trimtab.policy.report import Report
from trimtab.policy.schema import PolicyFile
from trimtab.policy.units import format_quantity
from trimtab.policy.words import signal_unit

TRIANGLE: Final = (
    "latency, memory and accuracy pull against each other, and a device can hold two of them: "
    "a fast and precise model needs memory, a fast and small one loses accuracy, a precise and "
    "small one is slow"
)
_LEAST_HEADROOM_BYTES: Final = 64 * 2**20
_OWN_KIND: Final = "a draft whose KV cache is like theirs, or none"
_HOT_CELSIUS: Final = (30.0, 125.0)


def check_policy(
    written: PolicyFile,
    policy: Policy,
    report: Report,
    device: Sequence[str] | None,
    quality_ratios: AbstractMapping[str, float],
    fingerprints: AbstractMapping[str, str],
    weights_bytes: AbstractMapping[str, int],
) -> None:
    """Everything that is about the policy as a whole."""
    _check_corners(written, report)
    _check_limits(policy, report)
    _check_knobs(policy, report)
    _check_spans(policy, report)
    _check_repeats(written, report)
    _check_contradictions(written, policy, report)
    if device is not None:
        remaining = _check_device(policy, report, device, quality_ratios)
        _check_drafts(policy, report, remaining, fingerprints)
        _check_draft_sizes(policy, report, remaining, fingerprints, weights_bytes)


def check_rule(rule: Rule, leave: Condition, path: PathParts, report: Report) -> None:
    """Whether a rule can come in force, and end.

    Args:
        rule: The rule.
        leave: What the file gives for its end, without the end of its time of the day.
        path: Where it stands.
        report: Takes the problems.
    """
    why = never_true(rule.when)
    if why:
        report.error((*path, "when"), f"this rule can never come in force: {why}")
    why = always_true(rule.when)
    if why:
        report.warning((*path, "when"), f"this rule is always in force: {why}", "tighten the knob")
    why = never_true(leave)
    if why:
        report.error((*path, "leave"), f"this rule would never end: {why}")
    for enter in _direct(rule.when):
        for end in _direct(leave):
            _check_band(enter, end, (*path, "leave"), report)


def _direct(condition: Condition) -> list[SignalCondition]:
    """The tests of a condition that aren't turned round by a `not`."""
    if isinstance(condition, SignalCondition):
        return [condition]
    if isinstance(condition, (AllOf, AnyOf)):
        return [test for part in condition.parts for test in _direct(part)]
    return []


def _check_band(
    enter: SignalCondition, end: SignalCondition, path: PathParts, report: Report
) -> None:
    """A rule's end must lie on the good side of its beginning, with a band between."""
    plain = (Comparison.ABOVE, Comparison.BELOW)
    if enter.signal != end.signal or enter.comparison not in plain or end.comparison not in plain:
        return
    _, unit = signal_unit(enter.signal)
    if unit is Unit.BOOL:
        if enter.comparison is end.comparison:
            report.error(path, "the rule would end on the very value that brings it in force")
        return
    shown = format_quantity(enter.threshold, unit)
    upper = enter.comparison is Comparison.ABOVE
    good = "below" if upper else "above"
    if enter.comparison is end.comparison:
        message = (
            f"on the wrong side: the rule begins {enter.comparison} {shown}, so it ends {good}"
        )
        report.error(path, message, f"{good}: a value on the other side of {shown}")
    elif (end.threshold > enter.threshold) if upper else (end.threshold < enter.threshold):
        other = format_quantity(end.threshold, unit)
        message = (
            f"on the wrong side: the rule begins {enter.comparison} {shown} and would end "
            f"{good} {other}"
        )
        report.error(path, message, f"{good}: a value {'under' if upper else 'over'} {shown}")
    elif end.threshold == enter.threshold:
        message = (
            f"it begins and ends at {shown}: without a band between the rule may flip at each tick"
        )
        report.warning(path, message)


def _check_corners(written: PolicyFile, report: Report) -> None:
    path: PathParts = ("protect",)
    corners = list(dict.fromkeys(written.protect))
    if len(corners) < len(written.protect):
        report.error(path, "a corner is named twice; protect two different ones")
    elif len(corners) == 3:
        message = f"all three corners can't be protected: {TRIANGLE}. Name two"
        report.error(path, message, "protect: [latency, memory], sacrifice: accuracy")
    elif len(corners) < 2:
        report.error(path, f"{len(corners)} corner is protected; two hold and the third gives")
    elif written.sacrifice in corners:
        third = next(c for c in ("latency", "memory", "accuracy") if c not in corners)
        message = f"{written.sacrifice} is protected; what gives is the third corner"
        report.error(("sacrifice",), message, third, also=[path])


def _check_limits(policy: Policy, report: Report) -> None:
    memory, temperature = policy.memory, policy.temperature
    path: PathParts = ("limits", "memory")
    if memory is not None:
        headroom = format_quantity(memory.headroom_bytes, Unit.BYTES)
        if memory.leave_bytes <= memory.headroom_bytes:
            message = f"on the wrong side: leave must be above the headroom of {headroom}"
            suggestion = format_quantity(memory.headroom_bytes * 1.5, Unit.BYTES)
            report.error((*path, "leave"), message, suggestion)
        if memory.headroom_bytes < _LEAST_HEADROOM_BYTES:
            message = f"{headroom} is gone in a fraction of a second; 64MiB is the least that helps"
            report.warning((*path, "headroom"), message, "64MiB")
    path = ("limits", "temperature")
    if temperature is not None:
        enter = format_quantity(temperature.enter_celsius, Unit.CELSIUS)
        if temperature.leave_celsius >= temperature.enter_celsius:
            message = f"on the wrong side: leave must be under enter, which is {enter}"
            suggestion = format_quantity(temperature.enter_celsius - 6, Unit.CELSIUS)
            report.error((*path, "leave"), message, suggestion)
        low, high = _HOT_CELSIUS
        if not low <= temperature.enter_celsius <= high:
            message = f"{enter} is no limit for a processor; allowed are {low:g}C to {high:g}C"
            report.error((*path, "enter"), message)


def _check_knobs(policy: Policy, report: Report) -> None:
    knobs = policy.knobs
    pairs = (
        ("context", knobs.context_min, knobs.context_max, "{:g}"),
        ("threads", knobs.threads_min, knobs.threads_max, "{:g}"),
        ("pace", knobs.pace_min_ratio, knobs.pace_max_ratio, "{:.0%}"),
    )
    for name, least, most, shown in pairs:
        if most is not None and least > most:
            message = f"min is {shown.format(least)} and max is {shown.format(most)}"
            report.error(("knobs", name), f"{message}: nothing remains")
    if policy.floor.context > knobs.context_max:
        message = f"{policy.floor.context} tokens is above knobs.context.max, {knobs.context_max}"
        also: list[PathParts] = [("knobs", "context", "max")]
        report.error(("floor", "context"), message, str(knobs.context_max), also=also)
    if knobs.window.keep is not None and not fits(knobs.window.keep, knobs.context_min):
        message = (
            f"{knobs.window.keep} tokens are half of the least context, {knobs.context_min}, or "
            "more: a conversation that gets no more than that ends there"
        )
        report.warning(("knobs", "context", "window", "keep"), message)
    drafts = [name.removeprefix("draft:") for name in knobs.speculation if ":" in name]
    for name in drafts:
        if knobs.variants and name not in knobs.variants:
            message = f"the draft {name!r} isn't among knobs.variant"
            report.warning(("knobs", "speculation"), message, nearest(name, knobs.variants))


def _check_spans(policy: Policy, report: Report) -> None:
    check_span(report, ("slo", "window"), policy.slo.window_s)
    check_span(report, ("stability", "dwell"), policy.stability.dwell_s)
    check_span(report, ("stability", "cooldown"), policy.stability.cooldown_s)
    check_span(report, ("handover", "hold_max"), policy.handover.hold_max_s)
    if policy.slo.window_s == 0:
        report.error(("slo", "window"), "objectives need a time to be taken over", "60s")
    for name in ("ttft_p95", "tpot_p95"):
        if getattr(policy.slo, f"{name}_s") == 0:
            report.error(("slo", name), "nothing is done in no time at all", "300ms")
    _check_schedule(policy, report)


def _check_schedule(policy: Policy, report: Report) -> None:
    for index, entry in enumerate(policy.schedule):
        try:
            parse_cron(entry.cron)
        except CronError as error:
            report.error(("schedule", index, "cron"), str(error), "0 22 * * *")
        if entry.for_s < 60:
            message = "a schedule goes by the minute; this is shorter"
            report.error(("schedule", index, "for"), message, "8h")


def _check_repeats(written: PolicyFile, report: Report) -> None:
    lists: tuple[tuple[PathParts, Sequence[str]], ...] = (
        (("knobs", "variant"), written.knobs.variant or ()),
        (("knobs", "speculation"), written.knobs.speculation),
        (("knobs", "kv_placement"), written.knobs.kv_placement),
    )
    for path, names in lists:
        for index, name in enumerate(names):
            if name in names[:index]:
                report.error((*path, index), f"{name!r} is here a second time")
    seen: set[str] = set()
    for index, rule in enumerate(written.rules):
        if rule.name in seen:
            message = f"a second rule is called {rule.name!r}; records couldn't tell them apart"
            report.error(("rules", index, "name"), message)
        seen.add(rule.name)


def _check_contradictions(written: PolicyFile, policy: Policy, report: Report) -> None:
    """Two rules that can hold together must leave something of every knob."""
    numbers = {rule.name: index for index, rule in enumerate(written.rules)}
    for one, other in combinations(policy.rules, 2):
        knob = _nothing_left(one.then, other.then)
        if knob and not _never_together(one, other):
            message = (
                f"contradicts the rule {one.name!r}: when both are in force, "
                f"nothing remains of {knob}"
            )
            report.error(("rules", numbers[other.name], "then", knob), message)


def _nothing_left(one: Tightening, other: Tightening) -> str:
    """The first knob of which two demands together leave nothing, or an empty string."""
    sets = (
        ("variant", one.variants, other.variants),
        ("speculation", one.speculation, other.speculation),
        ("kv_placement", one.kv_placement, other.kv_placement),
    )
    for knob, mine, yours in sets:
        if mine is not None and yours is not None and not set(mine) & set(yours):
            return knob
    ranges: tuple[tuple[str, float | None, float | None], ...] = (
        ("context", one.context_at_least, other.context_at_most),
        ("context", other.context_at_least, one.context_at_most),
        ("threads", one.threads_at_least, other.threads_at_most),
        ("threads", other.threads_at_least, one.threads_at_most),
        ("pace", one.pace_at_least_ratio, other.pace_at_most_ratio),
        ("pace", other.pace_at_least_ratio, one.pace_at_most_ratio),
    )
    return next(
        (
            knob
            for knob, least, most in ranges
            if least is not None and most is not None and least > most
        ),
        "",
    )


def _never_together(one: Rule, other: Rule) -> bool:
    """True if the two rules are bound to times of the day that don't meet."""
    return any(disjoint(mine, yours) for mine in _spans(one.when) for yours in _spans(other.when))


def _spans(condition: Condition) -> list[BetweenTimes]:
    if isinstance(condition, BetweenTimes):
        return [condition]
    if isinstance(condition, AllOf):
        return [part for part in condition.parts if isinstance(part, BetweenTimes)]
    return []


def _check_device(
    policy: Policy,
    report: Report,
    device: Sequence[str],
    quality_ratios: AbstractMapping[str, float],
) -> list[str]:
    """What of the policy this device's model has; returns the variants that remain."""
    remaining = _remaining(policy.knobs.variants, ("knobs", "variant"), report, device)
    for index, rule in enumerate(policy.rules):
        if rule.then.variants is not None and remaining:
            left = [name for name in remaining if name in rule.then.variants]
            if not left:
                message = f"this device has none of {', '.join(sorted(rule.then.variants))}"
                report.error(
                    ("rules", index, "then", "variant"), f"{message}: nothing would remain"
                )
    known = [quality_ratios[name] for name in remaining if name in quality_ratios]
    if known and len(known) == len(remaining) and max(known) < policy.floor.quality_ratio:
        message = (
            f"{policy.floor.quality_ratio:.3g} is above every variant that may be used; "
            f"the best of {', '.join(remaining)} has {max(known):.3g}"
        )
        report.error(("floor", "quality"), message, f"{max(known):.2f} or less")
    return remaining


def _check_drafts(
    policy: Policy, report: Report, remaining: Sequence[str], kinds: AbstractMapping[str, str]
) -> None:
    """Whether each draft can write into the KV caches of the variants that may be used."""
    for index, mode in enumerate(policy.knobs.speculation):
        draft = mode.removeprefix("draft:")
        if draft == mode or draft not in kinds:
            continue
        others = [name for name in remaining if kinds.get(name, kinds[draft]) != kinds[draft]]
        if not others:
            continue
        pairs = ((one, name) for one in others for name in reversed(others) if name != one)
        better = next((name for one, name in pairs if kinds[one] == kinds[name]), None)
        message = f"{draft} never drafts for {', '.join(others)}: their KV cache is of another kind"
        way_out = f"draft:{better} beside it" if better else _OWN_KIND
        report.warning(("knobs", "speculation", index), message, way_out)


def _check_draft_sizes(
    policy: Policy,
    report: Report,
    remaining: Sequence[str],
    kinds: AbstractMapping[str, str],
    weights_bytes: AbstractMapping[str, int],
) -> None:
    """Whether each draft is smaller than any variant that it could draft for."""
    for index, mode in enumerate(policy.knobs.speculation):
        draft = mode.removeprefix("draft:")
        own_bytes = weights_bytes.get(draft)
        if draft == mode or own_bytes is None:
            continue
        could = [name for name in remaining if kinds.get(name) == kinds.get(draft)]
        sizes = {name: weights_bytes.get(name, inf) for name in could}
        if not sizes or max(sizes.values()) > own_bytes:
            continue
        least = min(could, key=lambda name: sizes[name])
        shown = format_quantity(own_bytes, Unit.BYTES)
        message = f"{draft} never drafts: none of {', '.join(could)} is larger than its {shown}"
        way_out = f"draft:{least}" if sizes[least] < max(sizes.values()) else "ngram"
        report.warning(("knobs", "speculation", index), message, way_out)


def _remaining(
    listed: Sequence[str], path: PathParts, report: Report, device: Sequence[str]
) -> list[str]:
    if not listed:
        return list(device)
    remaining = [name for name in listed if name in device]
    has = ", ".join(device) or "none at all"
    for index, name in enumerate(listed):
        if name in device:
            continue
        if remaining:
            message = f"this device's model has no variant {name!r}; {', '.join(remaining)} remain"
            report.warning((*path, index), message, nearest(name, device))
        else:
            message = (
                f"this device's model has no variant {name!r}, so nothing remains; it has {has}"
            )
            report.error((*path, index), message, nearest(name, device))
    return remaining
