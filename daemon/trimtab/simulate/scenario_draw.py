"""The timeline around a missed expectation, drawn as a person would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.domain.decisions import Decision, Direction
from trimtab.domain.readings import Unit
from trimtab.policy.units import format_quantity
from trimtab.simulate.scenario_expect import Miss, clock
from trimtab.simulate.scenario_values import Sample, Trace

BEFORE_S: Final = 120.0
AFTER_S: Final = 60.0
MOST_ROWS: Final = 24
BAR: Final = 20
_EPSILON_S: Final = 1e-6


def draw_miss(trace: Trace, miss: Miss) -> str:
    """The expectation, what was so instead, and the timeline around that moment.

    Rows are the moments at which something changed; `⋮` stands for what stayed as it was. The bar
    is available memory, with a mark at the policy's headroom.
    """
    lines = [f"line {miss.line}: expected {miss.expected}", f"  but {miss.found}", ""]
    rows = _rows(trace, miss)
    wide = max(len(sample.describe()) for sample in rows)
    shown_before: Sample | None = None
    for sample in rows:
        if shown_before is not None and _skipped(trace.samples, shown_before, sample):
            lines.append(f"    {'⋮':>8}")
        mark = "✗" if abs(sample.at_s - _nearest(trace, miss)) < _EPSILON_S else " "
        since = shown_before.at_s if shown_before is not None else sample.at_s - _EPSILON_S
        lines += _row(trace, sample, since, mark, wide)
        shown_before = sample
    return "\n".join(line.rstrip() for line in lines)


def draw_decisions(trace: Trace) -> str:
    """Every happening and decision of a run, a line each."""
    notes = [(at_s, text) for at_s, text in trace.happenings]
    notes += [(one.at_s - trace.start_s, _decision(one)) for one in trace.decisions]
    ordered = sorted(notes, key=lambda note: note[0])
    return "\n".join(f"    {clock(at_s):>8}  {text}" for at_s, text in ordered)


def _row(trace: Trace, sample: Sample, since: float, mark: str, wide: int) -> list[str]:
    """One moment: its line, and a line for each thing that happened since the last one."""
    available = format_quantity(sample.available_bytes, Unit.BYTES)
    warm = f" {sample.celsius:5.1f}C" if sample.celsius is not None else ""
    line = (
        f"  {mark} {clock(sample.at_s):>8}  {_bar(trace, sample)} {available:>9}{warm}  "
        f"{sample.describe():<{wide}}"
    )
    notes = [text for at_s, text in trace.happenings if since < at_s <= sample.at_s]
    notes += [
        _decision(one)
        for one in trace.decisions
        if since < one.at_s - trace.start_s <= sample.at_s + _EPSILON_S
    ]
    if sample.rules:
        notes.append(f"in force: {'; '.join(sample.rules)}")
    if not notes:
        return [line]
    indent = " " * (len(line) + 2)
    return [f"{line}  {notes[0]}", *(f"{indent}{note}" for note in notes[1:])]


def _bar(trace: Trace, sample: Sample) -> str:
    """Available memory as a share of all, with a mark at the headroom."""
    full = round(BAR * min(1.0, sample.available_bytes / trace.memory_bytes))
    cells = ["█"] * full + ["·"] * (BAR - full)
    if trace.policy.memory is not None:
        place = int(BAR * min(1.0, trace.policy.memory.headroom_bytes / trace.memory_bytes))
        cells[min(place, BAR - 1)] = "┃"
    return "".join(cells)


def _decision(one: Decision) -> str:
    target = one.target.describe()
    words = {
        Direction.DOWN: f"▼ down to {target}",
        Direction.UP: f"▲ up to {target}",
        Direction.START: f"▲ start {target}",
        Direction.PARK: "▼ park",
        Direction.HOLD: f"hold {target}",
    }
    return f"{words[one.direction]}: {one.trigger.text}"


def _rows(trace: Trace, miss: Miss) -> list[Sample]:
    """The moments to show: changes around the miss, the miss itself, and the ends."""
    near = [
        sample
        for sample in trace.samples
        if miss.at_s - BEFORE_S <= sample.at_s <= miss.at_s + AFTER_S
    ] or trace.samples[-1:]
    busy_s = [at_s for at_s, _ in trace.happenings]
    busy_s += [one.at_s - trace.start_s for one in trace.decisions]
    chosen: list[Sample] = []
    before: Sample | None = None
    for sample in near:
        at_miss = abs(sample.at_s - _nearest(trace, miss)) < _EPSILON_S
        happened = before is not None and any(before.at_s < at_s <= sample.at_s for at_s in busy_s)
        if before is None or at_miss or happened or _differs(before, sample) or sample is near[-1]:
            chosen.append(sample)
        before = sample
    return _fewer(chosen, miss.at_s)


def _fewer(rows: list[Sample], at_s: float) -> list[Sample]:
    """At most so many rows: those nearest to the miss."""
    if len(rows) <= MOST_ROWS:
        return rows
    nearest = sorted(rows, key=lambda sample: abs(sample.at_s - at_s))[:MOST_ROWS]
    return sorted(nearest, key=lambda sample: sample.at_s)


def _nearest(trace: Trace, miss: Miss) -> float:
    """The last sample up to the miss."""
    return max(
        (sample.at_s for sample in trace.samples if sample.at_s <= miss.at_s + _EPSILON_S),
        default=trace.samples[-1].at_s,
    )


def _differs(before: Sample, after: Sample) -> bool:
    return (before.point, before.rules, before.loading, before.refused) != (
        after.point,
        after.rules,
        after.loading,
        after.refused,
    )


def _skipped(samples: Sequence[Sample], one: Sample, other: Sample) -> bool:
    return any(one.at_s < sample.at_s < other.at_s for sample in samples)
