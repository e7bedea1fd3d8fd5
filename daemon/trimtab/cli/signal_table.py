"""Signals on a screen: the important ones first, cut to what fits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from rich.table import Table
from rich.text import Text

from trimtab.cli.signal_source import SignalRow
from trimtab.cli.sparkline import sparkline
from trimtab.domain.readings import Quality
from trimtab.telemetry.words import amount

# What a gateway's owner looks for first, in this order; all others follow by name.
_FIRST: Final = (
    "memory.available",
    "memory.headroom",
    "memory.available.slope",
    "memory.psi.some_avg10",
    "memory.psi.some_now",
    "temperature.max",
    "temperature.headroom",
    "temperature.time_to_trip",
    "cpu.throttled",
    "cpu.busy",
    "cpu.others",
    "latency.ttft_p95",
    "latency.tpot_p95",
    "queue.depth",
    "requests.running",
    "throughput.tokens_per_s",
    "memory.own.pss",
    "memory.swap.in_rate",
    "disk.free",
    "power.mains",
    "power.battery",
    "cpu.own",
    "cpu.steal",
    "memory.psi.full_avg10",
    "memory.psi.own.some_avg10",
    "cpu.psi.some_avg10",
    "io.psi.some_avg10",
    "memory.limit",
    "memory.total",
    "memory.swap.free",
    "memory.zram.used",
)
_LAST: Final = ("*_avg60", "*_avg300", "clock.jump")
_RANK: Final = {name: rank for rank, name in enumerate(_FIRST)}
_STYLES: Final[dict[Quality, str]] = {
    Quality.GOOD: "green",
    Quality.SUSPECT: "yellow",
    Quality.STALE: "yellow",
    Quality.ABSENT: "dim",
    Quality.FAILED: "red",
}
_MARKS: Final[dict[Quality, str]] = {
    Quality.GOOD: "",
    Quality.SUSPECT: "suspect",
    Quality.STALE: "stale",
    Quality.ABSENT: "absent",
    Quality.FAILED: "failed",
}
_NAME_WIDTH: Final = 28
_VALUE_WIDTH: Final = 12
_NARROW: Final = 100
_HISTORY: Final = 120


@dataclass(slots=True)
class History:
    """The last values of each signal, for sparklines."""

    _values: dict[str, deque[float | None]] = field(default_factory=dict)

    def add(self, rows: Sequence[SignalRow]) -> None:
        """Takes in one look; a value that can't be trusted is a gap."""
        for row in rows:
            values = self._values.setdefault(row.name, deque(maxlen=_HISTORY))
            values.append(row.value if row.quality is Quality.GOOD else None)

    def of(self, name: str) -> list[float | None]:
        """Oldest first."""
        return list(self._values.get(name, ()))


def select(
    rows: Sequence[SignalRow], patterns: Sequence[str], *, everything: bool
) -> list[SignalRow]:
    """The rows to show, the important ones first.

    Args:
        rows: All of them.
        patterns: Shell patterns on names; a bare word matches all that begin with it.
        everything: True shows absent signals too. With patterns they are shown in any case.
    """
    shown = [
        row
        for row in rows
        if (_matches(row.name, patterns) if patterns else everything or not _quiet(row))
    ]
    return sorted(shown, key=_order)


def _quiet(row: SignalRow) -> bool:
    """Hardware that isn't there, unless a rule looks at it."""
    return row.quality is Quality.ABSENT and not row.watched_by


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatchcase(name, pattern) or name.startswith(f"{pattern.rstrip('.')}.")
        for pattern in patterns
    )


def _order(row: SignalRow) -> tuple[bool, bool, int, str]:
    """What rules look at, then what is broken, then the well-known, then the rest."""
    broken = row.quality in {Quality.FAILED, Quality.SUSPECT, Quality.STALE}
    last = any(fnmatchcase(row.name, pattern) for pattern in _LAST)
    rank = len(_RANK) + last if row.name not in _RANK else _RANK[row.name]
    return (not row.watched_by, not broken, rank, row.name)


def signal_table(
    rows: Sequence[SignalRow],
    history: History,
    *,
    width: int,
    plain: bool = False,
    fill: bool = True,
) -> Table:
    """Rows as a table.

    Args:
        rows: In the order to show.
        history: For the sparklines.
        width: Columns of the terminal.
        plain: True on terminals that show ASCII only.
        fill: False in a pipe: lines end where their text does.
    """
    bars = 10 if width < _NARROW else 24
    table = Table(box=None, padding=(0, 1, 0, 0), expand=fill, show_edge=False)
    table.add_column("signal", width=_NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column("value", width=_VALUE_WIDTH, justify="right", no_wrap=True)
    table.add_column("trend", width=bars, no_wrap=True)
    table.add_column("note", ratio=1 if fill else None, no_wrap=True, overflow="ellipsis")
    for row in rows:
        style = _STYLES[row.quality]
        low, high = (0.0, 1.0) if row.unit in {"ratio", "bool"} else (None, None)
        table.add_row(
            Text(_short(row.name), style="bold" if row.watched_by else ""),
            Text(value_text(row), style=style if row.quality is not Quality.GOOD else ""),
            Text(sparkline(history.of(row.name), bars, low=low, high=high, plain=plain), "cyan"),
            note(row),
        )
    return table


def _short(name: str) -> str:
    """A name that fits: the middle goes, since both ends tell signals apart."""
    if len(name) <= _NAME_WIDTH:
        return name
    return f"{name[: _NAME_WIDTH - 13]}…{name[-12:]}"


def value_text(row: SignalRow) -> str:
    """The value in its unit, or how it is missing."""
    if row.value is None:
        return _MARKS[row.quality]
    return amount(row.value, row.unit or None)


def note(row: SignalRow) -> Text:
    """What is wrong with it, else who looks at it, else how it came about."""
    text = Text()
    if row.quality is not Quality.GOOD:
        text.append(row.reason or str(row.quality), style=_STYLES[row.quality])
        if row.watched_by:
            text.append(f"; {', '.join(row.watched_by)}")
        return text
    if row.watched_by:
        return text.append(", ".join(row.watched_by))
    return text.append(row.reason, style="dim")


def summary(rows: Sequence[SignalRow], shown: int, told_by: str) -> Text:
    """The line below the table."""
    counts: Mapping[Quality, int] = {
        quality: sum(row.quality is quality for row in rows) for quality in Quality
    }
    parts = [f"{count} {quality}" for quality, count in counts.items() if count]
    text = Text(f"{', '.join(parts)}; {told_by}", style="dim", no_wrap=True, overflow="ellipsis")
    hidden = len(rows) - shown
    if hidden > 0:
        text.append(f"; {hidden} hidden (-a, or name some)", style="dim")
    return text
