"""The triangle: where the daemon stands between latency, memory and accuracy.

Each corner has a score from 0 to 1 that says how much of what it wants it has now:

- memory: of the memory that trimtab could take, the share that it leaves free:
  free / (free + own), where free is `memory.available` less the policy's headroom, and own is
  what trimtab holds (`memory.own.pss`, else what its workers hold). 0 is the limit.
- accuracy: the quality of the variant in force, exp(−mean KL to the best variant). 0 when parked.
- latency: 1 − measured / objective, the worse of `latency.ttft_p95` and `latency.tpot_p95`.
  0 is the limit. While no request has ended lately, what the planner expects of the point stands
  for what isn't measured. Without an objective: the point's speed against the fastest point's.

The mark is the mean of the three corners, weighted with the squares of the scores: it stands in
the middle if all are served equally, and moves away from the one that gives. Squares make a
quarter less of one visible on a triangle of nine rows. What isn't known counts as one half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from trimtab.cli.top_scene import Scene
from trimtab.policy.compiled import Corner, Policy
from trimtab.telemetry.words import seconds, size

LEAST_ROWS: Final = 5
_UNKNOWN: Final = 0.5
_LOW: Final = 0.15
_FAIR: Final = 0.35


@dataclass(frozen=True, slots=True)
class Score:
    """How well a corner is served, 0 to 1, and from what that follows; None: not known."""

    ratio: float | None
    told: str


@dataclass(frozen=True, slots=True)
class Where:
    """The scores of the three corners."""

    latency: Score
    memory: Score
    accuracy: Score

    def of(self, corner: Corner) -> Score:
        """One of them."""
        match corner:
            case Corner.LATENCY:
                return self.latency
            case Corner.MEMORY:
                return self.memory
            case Corner.ACCURACY:
                return self.accuracy

    def weights(self) -> tuple[float, float, float]:
        """Shares of latency, memory and accuracy in the mark's place; they add up to one."""
        ratios = (one.ratio for one in (self.latency, self.memory, self.accuracy))
        squares = [(_UNKNOWN if ratio is None else ratio) ** 2 for ratio in ratios]
        whole = sum(squares)
        if whole <= 0:
            return (1 / 3, 1 / 3, 1 / 3)
        return (squares[0] / whole, squares[1] / whole, squares[2] / whole)


def where(scene: Scene) -> Where | None:
    """Where the daemon stands; None while it hasn't said anything."""
    if scene.status is None:
        return None
    return Where(_latency(scene), _memory(scene), _accuracy(scene))


def _memory(scene: Scene) -> Score:
    available = scene.value("memory.available")
    if available is None:
        return Score(None, "memory.available isn't known")
    if scene.policy is None:
        return Score(None, "the policy's headroom isn't known")
    memory = scene.policy.memory
    free = available - (memory.headroom_bytes if memory is not None else 0)
    own = _own_bytes(scene)
    if free <= 0:
        return Score(0.0, f"{size(-free)} under the headroom")
    side = "over headroom" if memory is not None else "available, no limit"
    return Score(free / (free + own), f"{size(free)} {side}, {size(own)} ours")


def _own_bytes(scene: Scene) -> float:
    told = scene.value("memory.own.pss")
    if told is not None:
        return told
    workers = scene.status.workers if scene.status is not None else []
    return sum(worker.resident_bytes or 0 for worker in workers)


def _accuracy(scene: Scene) -> Score:
    if scene.status is None or scene.status.point.variant is None:
        return Score(0.0, "parked: nothing answers")
    row = _serving(scene)
    if row is None:
        return Score(None, "quality isn't known")
    name = scene.status.point.variant
    return Score(row, f"{name} keeps {row:.3f} of the best")


def _serving(scene: Scene) -> float | None:
    """Quality of the variant that serves now, which isn't the target's while a step runs."""
    name = scene.status.point.variant if scene.status is not None else None
    found = (one for one in scene.points if one.point.variant == name)
    return next((one.predicted.quality_ratio for one in found), None)


def _latency(scene: Scene) -> Score:
    if scene.status is None or scene.status.point.variant is None:
        return Score(0.0, "parked: nothing answers")
    if scene.policy is None:
        return Score(None, "the policy's objectives aren't known")
    slo = scene.policy.slo
    row = scene.in_force()
    expected = row.predicted if row is not None else None
    ttft_s = expected.ttft_s if expected is not None else None
    tps = expected.decode_tps if expected is not None else None
    held = [
        _against(scene, "ttft", slo.ttft_p95_s, ttft_s),
        _against(scene, "tpot", slo.tpot_p95_s, 1 / tps if tps else None),
    ]
    known = [one for one in held if one is not None]
    if known:
        return min(known, key=lambda one: one.ratio or 0.0)
    speeds = [one.predicted.decode_tps or 0.0 for one in scene.points]
    if tps and max(speeds, default=0.0) > 0:
        return Score(tps / max(speeds), f"{tps:.0f} of {max(speeds):.0f} tokens/s at most")
    return Score(None, "no objective and no speed known")


def _against(
    scene: Scene, what: str, objective_s: float | None, expected_s: float | None
) -> Score | None:
    """A time against its objective; None if there is no such objective or time."""
    if objective_s is None:
        return None
    measured_s = scene.value(f"latency.{what}_p95")
    time_s = expected_s if measured_s is None else measured_s
    if time_s is None:
        return None
    how = "expected" if measured_s is None else "p95"
    told = f"{what} {how} {seconds(time_s)} of {seconds(objective_s)}"
    return Score(max(0.0, 1 - time_s / objective_s), told)


def triangle(
    here: Where | None,
    trail: Iterable[Where],
    policy: Policy | None,
    width: int,
    height: int,
) -> list[Text]:
    """The triangle with the mark, the way that led to it, and the corners' scores.

    Args:
        here: Where the daemon stands.
        trail: Where it stood before, oldest first.
        policy: Says which corners are protected.
        width: Columns.
        height: Rows, the labels' two included; one sheds a row of the slopes.
    """
    rows = min(height - 2, (width - 2) // 2)
    if rows < LEAST_ROWS - 2:
        return []
    grid = _outline(rows)
    for one in trail:
        _put(grid, one, rows, "·", "cyan")
    if here is not None:
        _put(grid, here, rows, "●", "bold magenta")
    left = max(0, (width - 2 * rows) // 2)
    lines = [_label(here, Corner.ACCURACY, policy)]
    lines[0].pad_left(max(0, left + rows - len(lines[0]) // 2))
    lines += [_row(cells, left) for cells in grid]
    bottom, other = (_label(here, one, policy) for one in (Corner.LATENCY, Corner.MEMORY))
    span = max(2 * rows + 4, len(bottom) + len(other) + 2)
    start = max(0, (width - span) // 2)
    bottom.pad_left(start)
    bottom.append(" " * max(1, min(span, width) - (len(bottom) - start) - len(other)))
    lines.append(bottom.append_text(other))
    return lines


Cell = tuple[str, str]


def _outline(rows: int) -> list[list[Cell]]:
    """An empty triangle: two columns wider with each row, closed at the bottom."""
    grid: list[list[Cell]] = []
    for row in range(rows):
        inside = "─" if row == rows - 1 else " "
        line: list[Cell] = [(inside, "dim")] * (2 * rows)
        for column in range(2 * rows):
            if not rows - 1 - row < column < rows + row:
                line[column] = (" ", "")
        line[rows - 1 - row], line[rows + row] = ("╱", "dim"), ("╲", "dim")
        grid.append(line)
    return grid


def _put(grid: list[list[Cell]], one: Where, rows: int, mark: str, style: str) -> None:
    """Set a mark, kept inside the slopes."""
    latency, memory, accuracy = one.weights()
    row = min(rows - 2, max(1, round((1 - accuracy) * (rows - 1))))
    middle = rows - 0.5
    column = round(middle + (memory - latency) * (rows - 1))
    grid[row][min(rows + row - 1, max(rows - row, column))] = (mark, style)


def _row(cells: Sequence[Cell], left: int) -> Text:
    line = Text(" " * left)
    for sign, style in cells:
        line.append(sign, style=style)
    return line


def _label(here: Where | None, corner: Corner, policy: Policy | None) -> Text:
    """A corner's name and score; a star if the policy protects it."""
    star = "*" if policy is not None and corner in policy.protect else ""
    label = Text().append(f"{corner}{star} ", style="bold" if star else "")
    ratio = here.of(corner).ratio if here is not None else None
    label.append("?" if ratio is None else f"{ratio:.2f}", style=score_style(ratio))
    return label


def score_style(ratio: float | None) -> str:
    """A colour for a score."""
    if ratio is None:
        return "dim"
    return "bold red" if ratio < _LOW else "yellow" if ratio < _FAIR else "green"
