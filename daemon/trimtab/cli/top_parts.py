"""The parts of the screen of `trimtab top`, each as lines of text that never wrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from trimtab.cli.signal_table import History, value_text
from trimtab.cli.sparkline import sparkline
from trimtab.cli.top_lines import LABEL, labelled, wrapped
from trimtab.cli.top_scene import Gauge, Level, PointRow, Scene
from trimtab.domain.decisions import Decision, Direction
from trimtab.domain.knobs import PLACEMENT_WORDS, SPECULATION_OFF, KvPlacement, OperatingPoint
from trimtab.serving.control import StatusView, WorkerView
from trimtab.telemetry.explain import decision_of, explain, headline
from trimtab.telemetry.words import (
    amount,
    clock_time,
    counted,
    grounds_words,
    point_words,
    seconds,
    size,
)

STATE_STYLES: Final[dict[str, str]] = {
    "ready": "bold green",
    "loading": "bold yellow",
    "parked": "bold yellow",
    "draining": "bold yellow",
    "no_model": "bold red",
    "degraded": "bold red",
}
_LEVEL_STYLES: Final[dict[Level, str]] = {
    Level.FREE: "cyan",
    Level.GOOD: "green",
    Level.NEAR: "yellow",
    Level.OVER: "bold red",
    Level.ABSENT: "dim",
}
# Told without colour as well.
_LEVEL_SIGNS: Final[dict[Level, str]] = {
    Level.FREE: " ",
    Level.GOOD: " ",
    Level.NEAR: "~",
    Level.OVER: "!",
    Level.ABSENT: " ",
}
_DIRECTION_STYLES: Final[dict[Direction, str]] = {
    Direction.DOWN: "yellow",
    Direction.UP: "green",
    Direction.START: "green",
    Direction.PARK: "red",
    Direction.HOLD: "",
    Direction.RELIEF: "cyan",
    Direction.GIVE_WAY: "yellow",
    Direction.SHED: "yellow",
}
_NAME: Final = 22
_WIDE_NAME: Final = 30
_VALUE: Final = 10
_LIMIT: Final = 11
_WIDE: Final = 76  # columns from which signals say who looks at them


def point_line(status: StatusView) -> Text:
    """The operating point, where it moves, and what a person has fixed."""
    line = Text(_words(status.point), style="bold")
    if status.target != status.point:
        line.append(f" → {_words(status.target)}", style="bold yellow")
    if status.pinned:
        knobs = ", ".join(f"{knob}={value}" for knob, value in status.pinned.items())
        left = status.pin_expires_in_s
        line.append(f"  pinned: {knobs}", style="magenta")
        line.append("" if left is None else f" for {seconds(left)}", style="magenta")
        line.append(", not to be had now" if status.pin_waits else "", style="bold yellow")
    if status.paused:
        line.append("  steps are paused", style="magenta")
    return labelled("point", line)


def policy_lines(scene: Scene, status: StatusView, width: int, rows: int) -> list[Text]:
    """The policy and what it protects; a warning if its file is bad."""
    view, policy = status.policy, scene.policy
    line = Text(view.name, style="bold")
    line.append(f" ({view.revision})", style="dim")
    told = "its limits can't be read here"
    if policy is not None:
        told = f"protects {' and '.join(policy.protect)}, gives {policy.sacrifice}"
    lines = _parted(labelled("policy", line), told, "  ", width)
    if view.stale:
        told = f"STALE, the last good one holds: {' '.join(view.error.split())}"
        lines += wrapped(told, width, rows - 1, indent=LABEL, style="bold red")
    return lines


def stream_line(status: StatusView, history: History, width: int) -> Text:
    """Streams now, and the speed over the last while."""
    line = Text(f"{status.running} running", style="bold")
    if status.waiting_turn:
        line.append(f" ({status.waiting_turn} paused)")
    line.append(f", {status.queued} queued", style="yellow" if status.queued else "")
    line.append(f", {status.held} held", style="yellow" if status.held else "")
    line.append(f"  {status.tokens_per_s:.1f} tokens/s ", style="bold")
    room = min(60, width - LABEL - len(line) - 1)
    if room >= 8:
        past = history.of("throughput.tokens_per_s")
        line.append(sparkline(past, min(room, max(8, len(past))), low=0.0), style="cyan")
    return labelled("streams", line)


def total_line(status: StatusView) -> Text:
    """What was counted since the start."""
    told = f"{counted(status.requests_total, 'request')}, {counted(status.tokens_total, 'token')}"
    told += f", {counted(status.switches_total, 'switch', 'switches')}"
    line = Text(told)
    if status.restarts_total:
        line.append(f", {status.restarts_total} worker restarts", style="yellow")
    return labelled("counts", line)


def _parted(first: Text, rest: str, between: str, width: int) -> list[Text]:
    """What belongs together on one line, or on two where it is too long."""
    if not rest or len(first) + len(between) + len(rest) <= width:
        return [first.append(f"{between}{rest}" if rest else "", style="")]
    return [first, labelled("", rest)]


def worker_lines(status: StatusView, width: int, rows: int) -> list[Text]:
    """Each worker on a line, or two if there is room; workers that don't fit are counted."""
    if not status.workers:
        return [labelled("worker", "none", "dim")]
    shown = status.workers[: max(1, rows)]
    room = width if rows >= 2 * len(shown) else 1000
    lines = [line for worker in shown for line in _worker(worker, room)]
    if len(shown) < len(status.workers):
        lines[-1].append(f"; {len(status.workers) - len(shown)} more", style="dim")
    return lines


def _worker(worker: WorkerView, width: int) -> list[Text]:
    line = Text(worker.variant, style="bold")
    line.append(f" {worker.state}", style="green" if worker.state == "ready" else "yellow")
    if worker.resident_bytes:
        line.append(f", {size(worker.resident_bytes)}", style="")
    line.append(f", {counted(worker.streams, 'stream')}", style="")
    parts = [counted(worker.threads, "thread")]
    parts += [f"pid {worker.pid}"] if worker.pid else []
    parts += [f"decoder {worker.decoder}"] if worker.decoder else []
    parts += [f"loaded in {seconds(worker.load_s)}"] if worker.load_s is not None else []
    return _parted(labelled("worker", line), ", ".join(parts), ", ", width)


def signal_lines(found: Sequence[Gauge], history: History, width: int, rows: int) -> list[Text]:
    """Signals with bars to their limits, or with their trend where there is no limit."""
    shown = found[:rows]
    longest = max((len(one.row.name) for one in shown), default=0)
    name = min(longest, _NAME if width < _WIDE else _WIDE_NAME)
    room = width - name - _VALUE - _LIMIT - 2
    bar = max(5, room if width < _WIDE else min(24, room * 2 // 5))
    return [_signal(one, history, name, bar, width >= _WIDE) for one in shown]


def _signal(one: Gauge, history: History, name: int, bar: int, who: bool) -> Text:
    style = _LEVEL_STYLES[one.level]
    line = Text(f"{_short(one.row.name, name):<{name}} ", style="bold" if one.limit else "")
    if one.limit is not None and one.level is not Level.ABSENT:
        line.append_text(_bar(one, bar, style))
    else:
        low, high = (0.0, 1.0) if one.row.unit in {"ratio", "bool"} else (None, None)
        past = sparkline(history.of(one.row.name), bar, low=low, high=high)
        line.append(" " * bar if one.level is Level.ABSENT else past, style="cyan")
    line.append(_LEVEL_SIGNS[one.level], style=style)
    value = "none yet" if _quiet(one) else value_text(one.row).replace("tokens/s", "tok/s")
    line.append(f"{value:>{_VALUE}}", style=style if one.level is not Level.FREE else "")
    if one.limit is not None:
        side = "≥" if one.at_least else "≤"
        line.append(f" {side}{amount(one.limit, one.row.unit or None):<{_LIMIT - 2}}", style="dim")
    else:
        line.append(" " * _LIMIT)
    if who and (one.who or one.level is Level.ABSENT):
        told = one.row.reason if one.level is Level.ABSENT else one.who
        line.append(f" {told}", style="dim")
    return line


def _quiet(one: Gauge) -> bool:
    """A latency that isn't there yet, for want of requests."""
    return one.level is Level.ABSENT and one.row.name.startswith("latency.")


def _bar(one: Gauge, columns: int, style: str) -> Text:
    mark = min(columns - 1, round(one.mark_ratio * columns))
    filled = round(one.filled_ratio * columns)
    bar = Text()
    for column in range(columns):
        if column == mark:
            bar.append("┃", style="bold")
        elif column < filled:
            bar.append("█", style=style)
        else:
            bar.append("░", style="dim")
    return bar


def _short(name: str, columns: int) -> str:
    if len(name) <= columns:
        return name
    return f"{name[: columns - 11]}…{name[-10:]}"


def point_rows(points: Sequence[PointRow]) -> list[PointRow]:
    """The point in force, the best of each other variant, then the rest.

    The best of a variant is its first that could be taken; the API lists the best first. Of
    points that look the same here and are out for the same reason, one is enough.
    """
    first = [one for one in points if one.in_force]
    seen = {one.point.variant for one in first}
    for one in sorted(points, key=lambda one: bool(one.reason)):
        if one.point.variant not in seen:
            seen.add(one.point.variant)
            first.append(one)
    order = {one.point.variant: at for at, one in reversed(list(enumerate(points)))}
    first[1:] = sorted(first[1:], key=lambda one: order[one.point.variant])
    told = {(one.point.variant, one.point.context, one.reason) for one in first if one.reason}
    for one in points:
        same = (one.point.variant, one.point.context, one.reason)
        if one not in first and same not in told:
            first.append(one)
            told |= {same} if one.reason else set()
    return first


def point_lines(scene: Scene, rows: int) -> list[Text]:
    """Points as a table, with why each isn't the one."""
    if not scene.points:
        return [Text("no points: there is no model", style="dim")]
    ranked = point_rows(scene.points)
    shown = ranked[: max(1, rows - (1 if rows > 2 else 0))]
    name = max(7, *(len(one.point.variant or "parked") for one in shown))
    head = f"  {'':<{name}} {'context':>7} {'memory':>9} {'tok/s':>5} {'quality':>7}  why not"
    lines = [Text(head, style="dim")] if rows > 2 else []
    here = next((one for one in ranked if one.in_force), None)
    lines += [_point(one, here, name) for one in shown]
    return lines


def points_title(scene: Scene, shown: int) -> str:
    """What the table of points is called, with how many of them it leaves out."""
    hidden = len(scene.points) - shown
    return "operating points" + (f", {hidden} more in `trimtab points -a`" if hidden > 0 else "")


def _point(one: PointRow, here: PointRow | None, name: int) -> Text:
    expected = one.predicted
    speed = "?" if expected.decode_tps is None else f"{expected.decode_tps:.0f}"
    variant = one.point.variant or "parked"
    style = "bold green" if one.in_force else "dim" if one.reason else ""
    line = Text()
    line.append("▶ " if one.in_force else "× " if one.reason else "  ", style=style or "red")
    line.append(
        f"{variant:<{name}} {one.point.context:>7} {size(expected.memory_bytes):>9} "
        f"{speed:>5} {expected.quality_ratio:>7.3f}  ",
        style=style,
    )
    if one.in_force:
        from_what = f", {grounds_words(expected.grounds)}" if expected.decode_tps else ""
        return line.append(f"in force{_extras(one.point)}{from_what}", style="green")
    line.append(one.reason or one.passed_over)
    if not one.reason and here is not None and (apart := _apart(one, here)):
        line.append(f"; would bring {apart}" if one.passed_over else apart, style="dim")
    return line


def _extras(point: OperatingPoint) -> str:
    """Knobs that have no column, where they aren't at rest."""
    parts = [f"speculation {point.speculation}"] if point.speculation != SPECULATION_OFF else []
    if point.kv_placement is not KvPlacement.MEMORY:
        parts.append(PLACEMENT_WORDS[point.kv_placement])
    parts += [f"pace {point.pace_ratio:.0%}"] if point.pace_ratio < 1 else []
    return "".join(f", {part}" for part in parts)


def _apart(one: PointRow, here: PointRow) -> str:
    """What it would give and take against the point in force; empty if nothing."""
    quality = one.predicted.quality_ratio - here.predicted.quality_ratio
    memory = one.predicted.memory_bytes - here.predicted.memory_bytes
    parts = []
    if abs(quality) >= 0.0005:
        parts.append(f"quality {quality:+.3f}")
    if abs(memory) >= 1024 * 1024:
        parts.append(f"{size(abs(memory))} {'more' if memory > 0 else 'less'}")
    if one.point.context != here.point.context:
        parts.append(f"{one.point.context - here.point.context:+d} tokens of context")
    if one.point.speculation != here.point.speculation:
        parts.append(f"speculation {one.point.speculation}")
    if one.point.kv_placement != here.point.kv_placement:
        parts.append(PLACEMENT_WORDS[one.point.kv_placement])
    if one.point.pace_ratio != here.point.pace_ratio:
        parts.append(f"pace {one.point.pace_ratio:.0%}")
    if one.point.threads != here.point.threads:
        parts.append(f"{one.point.threads} threads")
    return ", ".join(parts)


def decision_lines(
    records: Sequence[Mapping[str, Any]], width: int, rows: int, scroll: int, *, full: bool
) -> list[Text]:
    """Decisions in sentences, the newest at the top.

    Args:
        records: Oldest first.
        width: Columns.
        rows: Lines at most.
        scroll: How many of the newest are skipped.
        full: With what was expected and what came of each.
    """
    if not records:
        return [Text("No decision has been made yet.", style="dim")]
    lines: list[Text] = []
    for record in records[::-1][scroll:]:
        if len(lines) >= rows:
            break
        lines += _decision(record, width, rows - len(lines), full=full)
    return lines[:rows]


def _decision(record: Mapping[str, Any], width: int, rows: int, *, full: bool) -> list[Text]:
    decision = decision_of(record)
    told = explain(record) if full else f"{clock_time(record['wall_s'])} {headline(decision)}"
    style = _DIRECTION_STYLES[decision.direction]
    lines = wrapped(f"{told}{'' if full else _ending(decision)}", width, rows, indent=9)
    for line in lines:
        line.stylize(style, 0, 0)
    if lines:
        lines[0].stylize(f"bold {style}".strip(), 0, 9)
    if decision.outcome is not None and decision.outcome.kind == "failed":
        for line in lines:
            line.stylize("red")
    return lines


def _ending(decision: Decision) -> str:
    """How it went, in short."""
    outcome = decision.outcome
    if outcome is None or outcome.kind == "superseded":
        return ""
    if outcome.kind == "failed":
        return f" It failed: {outcome.reason}"
    return f" Done in {seconds(outcome.took_s)}."


def _words(point: Any) -> str:
    return point_words({name: getattr(point, name) for name in point.__struct_fields__})
