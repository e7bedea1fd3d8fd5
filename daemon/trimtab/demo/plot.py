"""The picture of a demo: memory, variant, tokens/s and decisions over time, for a stranger."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trimtab.demo.result import Result
from trimtab.demo.stage import Sample, Stage, Told
from trimtab.errors import TrimtabError

MISSING: Final = "matplotlib isn't installed, so there is no plot: pip install 'trimtab[plot]'"
_COLOURS: Final = ("#2a9d57", "#2b8cbe", "#e08a1e", "#a04fb0", "#7a7a7a")
_GIB: Final = 2.0**30
_WRAP: Final = 158


def available() -> bool:
    """True if plots can be made here."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(stage: Stage, result: Result, path: Path) -> None:
    """Write the picture as PNG.

    Raises:
        TrimtabError: The file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    decisions = [told for told in stage.told if told.direction != "hold"]
    notes = _notes(decisions)
    note_lines = sum(note.count("\n") + 1 for note in notes)
    notes_inches = 0.35 + 0.19 * note_lines
    figure = Figure(figsize=(11, 7.6 + notes_inches), layout="constrained")
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(2, 1, height_ratios=[7.6, notes_inches])
    top, bottom = parts
    memory, band, speed = top.subplots(3, 1, sharex=True, height_ratios=[5, 0.8, 3.4])
    top.suptitle(_title(stage, result), fontsize=12.5)
    end_s = stage.samples[-1].at_s if stage.samples else 1.0
    _memory(memory, stage)
    _variants(band, stage)
    _speed(speed, stage)
    for axes in (memory, band, speed):
        _mark(axes, decisions)
    _number(memory, decisions, end_s)
    speed.set_xlabel("time since the start of the demo (seconds)")
    speed.set_xlim(0, end_s)
    bottom.text(0.012, 0.97, "\n".join(notes), va="top", ha="left", fontsize=8.5)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise TrimtabError(f"{path}: the plot can't be written: {error.strerror}") from error


def _title(stage: Stage, result: Result) -> str:
    down, up = result.switches_down, result.switches_up
    return (
        f"trimtab keeps {stage.title} running while another process takes memory away\n"
        f"{down} step{'s' * (down != 1)} down, {up} step{'s' * (up != 1)} up, "
        f"{result.streams} chats, {result.streams_broken} broken, {result.tokens} tokens"
    )


def _memory(axes: Any, stage: Stage) -> None:
    known = [sample for sample in stage.samples if sample.available_bytes is not None]
    times = [sample.at_s for sample in known]
    available_gib = [(sample.available_bytes or 0.0) / _GIB for sample in known]
    headroom, leave = stage.plan.headroom_bytes / _GIB, stage.plan.leave_bytes / _GIB
    squeezed = [
        value + sample.squeeze_bytes / _GIB
        for value, sample in zip(available_gib, known, strict=True)
    ]
    axes.fill_between(
        times,
        available_gib,
        squeezed,
        color="#d9534f",
        alpha=0.22,
        linewidth=0,
        label="taken by the squeezing process",
    )
    axes.plot(times, available_gib, color="#1b1b1b", linewidth=1.6, label="available")
    axes.axhline(
        leave,
        color="#2a9d57",
        linestyle=":",
        linewidth=1.4,
        label="leave: a step up must keep this much",
    )
    axes.axhline(
        headroom,
        color="#c0392b",
        linestyle="--",
        linewidth=1.4,
        label="headroom: under this the model gives way",
    )
    low, high = min([*available_gib, headroom]), max([*squeezed, leave])
    room = (high - low) or 0.1
    axes.set_ylim(low - 0.10 * room, high + 0.55 * room)
    axes.set_ylabel("memory (GiB)")
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", ncols=2, fontsize=8.5, framealpha=0.9)


def _variants(axes: Any, stage: Stage) -> None:
    """Which variant served, as a band; white where none was loaded."""
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel("variant", rotation=0, ha="right", va="center")
    axes.set_title("white: none is loaded, and the chats are held", loc="right", fontsize=8, pad=3)
    end_s = stage.samples[-1].at_s if stage.samples else 1.0
    for name, begun_s, ended_s in spans(stage.samples):
        axes.axvspan(begun_s, ended_s, color=_colour(stage, name), alpha=0.85, linewidth=0)
        if ended_s - begun_s > 0.05 * end_s:
            middle_s = (begun_s + ended_s) / 2
            axes.text(middle_s, 0.5, name, ha="center", va="center", color="white", weight="bold")


def _speed(axes: Any, stage: Stage) -> None:
    times = [sample.at_s for sample in stage.samples]
    rates = [sample.tokens_per_s for sample in stage.samples]
    axes.plot(times, rates, color="#1b1b1b", linewidth=1.0)
    for name, begun_s, ended_s in spans(stage.samples):
        inside = [begun_s <= time_s <= ended_s for time_s in times]
        axes.fill_between(
            times, rates, where=inside, color=_colour(stage, name), alpha=0.5, linewidth=0
        )
    axes.set_ylim(0, max([*rates, 1.0]) * 1.15)
    axes.set_ylabel("tokens/s, all chats\n(as the clients saw it)")
    axes.grid(alpha=0.25)


def spans(samples: Sequence[Sample]) -> list[tuple[str, float, float]]:
    """For how long each variant served: name, begin and end, in order."""
    found: list[tuple[str, float, float]] = []
    before: str | None = None
    for sample in samples:
        if sample.variant is not None:
            if before == sample.variant:
                name, begun_s, _ = found[-1]
                found[-1] = (name, begun_s, sample.at_s)
            else:
                found.append((sample.variant, sample.at_s, sample.at_s))
        before = sample.variant
    return found


def _colour(stage: Stage, variant: str) -> str:
    ladder = stage.plan.ladder
    place = ladder.index(variant) if variant in ladder else len(ladder)
    return _COLOURS[min(place, len(_COLOURS) - 1)]


def _mark(axes: Any, decisions: Sequence[Told]) -> None:
    for told in decisions:
        axes.axvline(max(0.0, told.at_s), color="#555555", linewidth=0.9, alpha=0.7)


def _number(axes: Any, decisions: Sequence[Told], end_s: float) -> None:
    """Numbered circles above the first graph; those that lie close together are moved apart."""
    gap_s = 0.022 * end_s
    at_s = -gap_s
    for number, told in enumerate(decisions, 1):
        at_s = max(told.at_s, 0.0, at_s + gap_s)
        axes.annotate(
            str(number),
            (at_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 10),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.5,
            color="white",
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": "#555555", "edgecolor": "none"},
            annotation_clip=False,
        )


def _notes(decisions: Sequence[Told]) -> list[str]:
    notes = []
    for number, told in enumerate(decisions, 1):
        text = f"{number}  at {max(0.0, told.at_s):.1f} s: {told.sentence}"
        notes.append(textwrap.fill(text, _WRAP, subsequent_indent="     "))
    return notes or ["No decision was made."]
