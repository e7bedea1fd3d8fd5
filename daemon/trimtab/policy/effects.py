"""What rules demand of knobs: from the schema to a `Tightening`, with the checks of its meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.domain.knobs import KvPlacement
from trimtab.policy.compiled import Floor, KnobBounds, Tightening
from trimtab.policy.document import PathParts
from trimtab.policy.problems import nearest
from trimtab.policy.report import Report
from trimtab.policy.rule_schema import (
    AllowPlacement,
    AllowSpeculation,
    PaceBounds,
    Then,
    ThreadBounds,
    TokenBounds,
    VariantBounds,
)


@dataclass(frozen=True, slots=True)
class _Range:
    """At most and at least of one knob; None leaves that side as it is."""

    at_most: float | None = None
    at_least: float | None = None


def compile_then(
    then: Then, path: PathParts, report: Report, knobs: KnobBounds, floor: Floor
) -> Tightening | None:
    """A rule's demands as the core sees them.

    Returns:
        The demands, or None if they have an error.
    """
    if not then.model_fields_set:
        message = "a rule must demand something of variant, context, speculation, kv_placement, "
        report.error(path, message + "threads or pace", "context: {at_most: 2048}")
        return None
    context = _range(then.context)
    least = max(knobs.context_min, floor.context)
    _check_range(report, (*path, "context"), context, least, knobs.context_max, "tokens")
    threads = _range(then.threads)
    _check_range(
        report, (*path, "threads"), threads, knobs.threads_min, knobs.threads_max, "threads"
    )
    pace = _range(then.pace)
    _check_range(
        report, (*path, "pace"), pace, knobs.pace_min_ratio, knobs.pace_max_ratio, "of the time"
    )
    return Tightening(
        variants=_variants(then.variant, (*path, "variant"), report, knobs.variants),
        context_at_most=_whole(context.at_most),
        context_at_least=_whole(context.at_least),
        speculation=_speculation(then.speculation, (*path, "speculation"), report, knobs),
        kv_placement=_placements(then.kv_placement, (*path, "kv_placement"), report, knobs),
        threads_at_most=_whole(threads.at_most),
        threads_at_least=_whole(threads.at_least),
        pace_at_most_ratio=pace.at_most,
        pace_at_least_ratio=pace.at_least,
    )


def _range(bounds: float | TokenBounds | ThreadBounds | PaceBounds | None) -> _Range:
    if bounds is None:
        return _Range()
    if isinstance(bounds, (TokenBounds, ThreadBounds, PaceBounds)):
        return _Range(bounds.at_most, bounds.at_least)
    return _Range(bounds, bounds)


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None else None


def _check_range(
    report: Report, path: PathParts, wanted: _Range, least: float, most: float | None, what: str
) -> None:
    """Demands must leave something between the policy's own bounds, and change something."""
    if wanted.at_most is None and wanted.at_least is None:
        return
    shown = _percent if what == "of the time" else _number
    if wanted.at_most is not None and wanted.at_most < least:
        report.error(
            path,
            f"at most {shown(wanted.at_most)} {what}, but the policy's own bounds and floor begin "
            f"at {shown(least)}: nothing would remain",
            f"at_most: {shown(least)}",
        )
    if wanted.at_least is not None and most is not None and wanted.at_least > most:
        report.error(
            path,
            f"at least {shown(wanted.at_least)} {what}, but the policy's own bounds end at "
            f"{shown(most)}: nothing would remain",
            f"at_least: {shown(most)}",
        )
    if wanted.at_most is not None and wanted.at_least is not None:
        if wanted.at_least > wanted.at_most:
            message = f"at least {shown(wanted.at_least)} and at most {shown(wanted.at_most)}"
            report.error(path, f"{message}: nothing would remain")
        return
    loose_top = wanted.at_most is not None and most is not None and wanted.at_most >= most
    loose_end = wanted.at_least is not None and wanted.at_least <= least
    if loose_top or loose_end:
        report.warning(path, "this changes nothing: the policy's own bounds are as tight already")


def _number(value: float) -> str:
    return f"{value:g}"


def _percent(value: float) -> str:
    return f"{value * 100:g}%"


def _variants(
    wanted: str | VariantBounds | None, path: PathParts, report: Report, listed: tuple[str, ...]
) -> frozenset[str] | None:
    if wanted is None:
        return None
    if isinstance(wanted, str):
        return _known_names((wanted,), path, report, listed)
    names: frozenset[str] | None = None
    if wanted.allow is not None:
        names = _known_names(wanted.allow, (*path, "allow"), report, listed)
    for field, bound in (("at_most", wanted.at_most), ("at_least", wanted.at_least)):
        if bound is None:
            continue
        side = _one_side(bound, field, (*path, field), report, listed)
        names = side if names is None else names & side
    if names is None:
        report.error(path, "one of allow, at_most, at_least is needed", "allow: [int4]")
        return None
    if not names:
        report.error(path, "no variant would remain")
    elif listed and names >= set(listed):
        report.warning(path, "this changes nothing: it allows every variant of the policy")
    return names


def _known_names(
    names: Sequence[str], path: PathParts, report: Report, listed: tuple[str, ...]
) -> frozenset[str]:
    for name in names:
        if listed and name not in listed:
            message = (
                f"{name!r} isn't among knobs.variant ({', '.join(listed)}); rules only tighten"
            )
            report.error(path, message, nearest(name, listed))
    return frozenset(names)


def _one_side(
    bound: str, field: str, path: PathParts, report: Report, listed: tuple[str, ...]
) -> frozenset[str]:
    """The variants on one side of another in the policy's own order."""
    if not listed:
        message = f"{field} goes by the order of knobs.variant, which this policy doesn't give"
        report.error(path, message, f"allow: [{bound}]")
        return frozenset((bound,))
    if bound not in listed:
        message = f"{bound!r} isn't among knobs.variant ({', '.join(listed)})"
        report.error(path, message, nearest(bound, listed))
        return frozenset(listed)
    place = listed.index(bound)
    return frozenset(listed[place:] if field == "at_most" else listed[: place + 1])


def _speculation(
    wanted: str | AllowSpeculation | None, path: PathParts, report: Report, knobs: KnobBounds
) -> frozenset[str] | None:
    if wanted is None:
        return None
    names = frozenset((wanted,) if isinstance(wanted, str) else wanted.allow)
    _check_choice(report, path, names, knobs.speculation, "knobs.speculation")
    return names


def _placements(
    wanted: str | AllowPlacement | None, path: PathParts, report: Report, knobs: KnobBounds
) -> frozenset[KvPlacement] | None:
    if wanted is None:
        return None
    names = frozenset((wanted,) if isinstance(wanted, str) else wanted.allow)
    _check_choice(report, path, names, knobs.kv_placement, "knobs.kv_placement")
    placements = frozenset(KvPlacement(name) for name in names)
    _check_last_rung(report, path, placements, knobs)
    return placements


def _check_last_rung(
    report: Report, path: PathParts, allowed: frozenset[KvPlacement], knobs: KnobBounds
) -> None:
    """A rule that has KV go to disk seldom means that everything is to be parked sooner.

    One that leaves memory alone keeps KV off the disk, and means it.
    """
    last = KvPlacement.DISK_ALL
    if last not in knobs.kv_placement or last in allowed or KvPlacement.DISK not in allowed:
        return
    message = (
        f"this takes {last} away, which knobs.kv_placement has: where memory runs out while the "
        "rule is in force, everything is parked"
    )
    kept = [str(place) for place in knobs.kv_placement if place in allowed or place is last]
    report.warning(path, message, f"{{allow: [{', '.join(kept)}]}}")


def _check_choice(
    report: Report, path: PathParts, names: frozenset[str], listed: Sequence[str], field: str
) -> None:
    allowed = [str(name) for name in listed]
    beyond = sorted(names - set(allowed))
    if beyond:
        message = (
            f"{', '.join(beyond)} isn't among {field} ({', '.join(allowed)}); rules only tighten"
        )
        report.error(path, message, nearest(beyond[0], allowed))
    elif names >= set(allowed):
        report.warning(path, f"this changes nothing: {field} allows no more")
