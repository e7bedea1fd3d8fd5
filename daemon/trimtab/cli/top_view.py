"""The screen of `trimtab top`, from a scene: pure, exactly as large as the terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.text import Text

from trimtab.cli.signal_table import History
from trimtab.cli.top_lines import beside, chart, fitted, framed, labelled, ruled
from trimtab.cli.top_parts import (
    STATE_STYLES,
    decision_lines,
    point_line,
    point_lines,
    point_rows,
    points_title,
    policy_lines,
    signal_lines,
    stream_line,
    total_line,
    worker_lines,
)
from trimtab.cli.top_scene import Scene, gauges
from trimtab.cli.top_triangle import Where, score_style, triangle, where
from trimtab.policy.compiled import Corner
from trimtab.serving.control import StatusView
from trimtab.telemetry.words import seconds

KEYS: Final = "q quit  p pause  ↑↓ decisions  t triangle"
TRAIL: Final = 40
SNAPSHOT_WIDTH: Final = 100
_WIDE_COLUMNS: Final = 116
_WIDE_ROWS: Final = 34
_TRIANGLE_COLUMNS: Final = 27
_WIDE_TRIANGLE_COLUMNS: Final = 58
_LEAST_FOR_TRIANGLE: Final = (72, 20)

# One character for one, for terminals that show ASCII only.
_ASCII: Final = str.maketrans("─│╭╮╰╯╱╲█░┃●·▶×…≥≤→↑↓–−°▁▂▃▄▅▆▇", "-|++++/\\#.|@.>x~><>^v-- _.-=+*#")
_UNPRINTABLE: Final = dict.fromkeys([*range(32), *range(127, 160)], "?")


@dataclass(slots=True)
class Past:
    """What was, for trends and for the triangle's trail."""

    history: History = field(default_factory=History)
    trail: deque[Where] = field(default_factory=lambda: deque(maxlen=TRAIL))
    _last_s: float = 0.0

    def add(self, scene: Scene) -> None:
        """Takes in a scene, once for each answer of the daemon."""
        if scene.status is None or scene.at_s == self._last_s:
            return
        self._last_s = scene.at_s
        self.history.add(scene.signals)
        here = where(scene)
        if here is not None:
            self.trail.append(here)


@dataclass(frozen=True, slots=True)
class View:
    """How it is looked at.

    Attributes:
        scroll: How many of the newest decisions are skipped.
        ascii_only: The terminal shows no more.
    """

    width: int
    height: int
    now_s: float
    paused: bool = False
    triangle: bool = True
    scroll: int = 0
    ascii_only: bool = False


def picture(scene: Scene, past: Past, view: View) -> list[Text]:
    """The screen: ``view.height`` lines of ``view.width`` columns."""
    head = [_title(scene, view), *_trouble(scene, view)]
    room = view.height - len(head) - 1
    if scene.status is None:
        told = ["No daemon has answered yet.", scene.hint] if scene.fault else []
        body = [Text(), *(Text().append(f"  {line}", style="dim") for line in told)]
    elif view.width >= _WIDE_COLUMNS and view.height >= _WIDE_ROWS:
        body = _wide(scene, scene.status, past, view, room)
    else:
        body = _narrow(scene, scene.status, past, view, room)
    body = body[:room] + [Text()] * (room - len(body))
    lines = [*head, *body, _foot(view)][: view.height]
    return [finished(fitted(line, view.width), ascii_only=view.ascii_only) for line in lines]


def snapshot(scene: Scene, past: Past, *, ascii_only: bool = False) -> list[Text]:
    """The same for pipes: parts below each other, as long as they are, ending where text does."""
    view = View(SNAPSHOT_WIDTH, 1000, scene.at_s, ascii_only=ascii_only)
    status = scene.status
    if status is None:
        return []
    width = view.width
    lines = [_title(scene, view), *_state(scene, status, past, width, rows=8)]
    lines += [Text(), *_scores(scene), Text()]
    lines += signal_lines(gauges(scene), past.history, width, 40)
    lines += [Text(), *point_lines(scene, 10), Text()]
    lines += decision_lines(scene.decisions, width, 30, 0, full=True)[:30]
    told = [finished(line, ascii_only=ascii_only) for line in lines]
    for line in told:
        line.rstrip()
    return told


def finished(line: Text, *, ascii_only: bool) -> Text:
    """A line that any terminal bears: no control characters, and ASCII alone if it must be."""
    plain = line.plain.translate(_UNPRINTABLE)
    if ascii_only:
        plain = "".join(sign if sign.isascii() else "?" for sign in plain.translate(_ASCII))
    if plain == line.plain:
        return line
    return Text(plain, style=line.style, spans=line.spans)


def _title(scene: Scene, view: View) -> Text:
    status = scene.status
    line = Text().append("trimtab top", style="bold")
    if status is None:
        line.append("  waiting for the daemon" if not scene.fault else "", style="dim")
    else:
        line.append("  ")
        state = "not answering" if scene.fault else status.state.replace("_", " ")
        style = "bold red" if scene.fault else STATE_STYLES.get(status.state, "bold")
        line.append(state, style=style)
        line.append(f"  {status.model or 'no model'}")
        line.append(f"  up {seconds(status.uptime_s)}, version {status.version}", style="dim")
    if view.paused:
        line.append("  ")
        line.append(" PAUSED ", style="bold reverse yellow")
    return line


def _trouble(scene: Scene, view: View) -> list[Text]:
    """What keeps the screen from being current, or tokens from flowing."""
    lines = []
    if scene.fault:
        since = f"; this was {seconds(view.now_s - scene.at_s)} ago" if scene.status else ""
        told = f"! {scene.fault}. Trying again{since}."
        lines.append(Text(told, style="bold red"))
    elif scene.status is not None and scene.status.reason:
        lines.append(Text(f"! {scene.status.reason}", style="yellow"))
    return lines


def _foot(view: View) -> Text:
    line = Text().append(KEYS, style="dim")
    if view.scroll:
        line.append(f"   {view.scroll} newer decision{'s' if view.scroll != 1 else ''} above")
    return line


def _state(
    scene: Scene, status: StatusView, past: Past, width: int, rows: int, *, counts: bool = True
) -> list[Text]:
    """Point, policy, streams and workers."""
    lines = [
        point_line(status),
        *policy_lines(scene, status, width, 3),
        stream_line(status, past.history, width),
    ]
    lines += worker_lines(status, width, max(1, rows - len(lines) - counts))
    return [*lines, total_line(status)] if counts else lines


def _scores(scene: Scene) -> list[Text]:
    """The three corners, and from what each score follows."""
    here = where(scene)
    if here is None:
        return []
    lines = []
    for corner in Corner:
        score = here.of(corner)
        told = "   ?" if score.ratio is None else f"{score.ratio:4.2f}"
        line = labelled(str(corner), Text(told, style=score_style(score.ratio)))
        lines.append(line.append(f"  {score.told}", style=""))
    return lines


def _narrow(scene: Scene, status: StatusView, past: Past, view: View, room: int) -> list[Text]:
    """For 80×24 and the like: rules instead of frames, and only what matters most."""
    width = view.width
    lines = _state(scene, status, past, width, rows=4, counts=view.height >= 28)
    left = room - len(lines)
    middle = min(16, max(4, (left - 2) * 9 // 17))
    told = decision_lines(scene.decisions, width, left, view.scroll, full=False)
    spare = left - middle - len(told) - 2
    points = min(len(point_rows(scene.points)) + 1, 12, max(3, spare, (left - middle) * 4 // 9))
    lines += _middle(scene, past, view, middle)
    lines += [ruled(points_title(scene, points - 1), width), *point_lines(scene, points)]
    rest = room - len(lines) - 1
    if rest > 0:
        lines += [ruled("decisions", width), *told[:rest]]
    return lines


def _middle(scene: Scene, past: Past, view: View, rows: int) -> list[Text]:
    """The triangle beside the signals, or the signals alone."""
    width = view.width
    least_width, least_height = _LEAST_FOR_TRIANGLE
    drawn: Sequence[Text] = []
    if view.triangle and width >= least_width and view.height >= least_height:
        columns = max(_TRIANGLE_COLUMNS, min(2 * rows + 6, width // 3))
        drawn = triangle(where(scene), past.trail, scene.policy, columns, rows)
    if not drawn:
        shown = signal_lines(gauges(scene), past.history, width, rows - 1)
        return [ruled("signals", width), *shown]
    found = signal_lines(gauges(scene), past.history, width - columns - 1, rows - 1)
    right = [ruled("signals", width - columns - 1), *found]
    return beside(drawn, right, columns, width)


def _wide(scene: Scene, status: StatusView, past: Past, view: View, room: int) -> list[Text]:
    """For large terminals: frames, whys, and decisions in full."""
    width = view.width
    top = max(15, min(26, room * 2 // 5))
    told = decision_lines(scene.decisions, width - 4, room, view.scroll, full=True)
    spare = room - top - len(told) - 2
    points = max(7, min(len(point_rows(scene.points)) + 3, max(spare, 16), (room - top) * 2 // 3))
    left = _WIDE_TRIANGLE_COLUMNS if view.triangle else 0
    side = 58 if width >= 170 else 0
    block: list[Text] = []
    if left:
        drawn = triangle(where(scene), past.trail, scene.policy, left - 4, top - 6)
        block = framed("triangle", [*drawn, Text(), *_scores(scene)], left, top)
    right = width - left - (1 if left else 0)
    state_rows = top if side else 8
    state_width = side or right
    state = _state(scene, status, past, state_width - 4, rows=state_rows - 2)
    spare = state_rows - 3 - len(state)
    if spare >= 4:
        speed = past.history.of("throughput.tokens_per_s")
        state += [Text(), *chart(speed, "tokens/s", state_width - 4, min(spare, 14))]
    found_width = right - side - 1 if side else right
    found_rows = top if side else top - state_rows
    shown = signal_lines(gauges(scene), past.history, found_width - 4, found_rows - 2)
    signals = framed("signals and limits", shown, found_width, found_rows)
    held = framed("state", state, state_width, state_rows)
    both = beside(held, signals, state_width, right) if side else [*held, *signals]
    lines = beside(block, both, left, width) if left else both
    table = point_lines(scene, points - 2)
    lines += framed(points_title(scene, points - 3), table, width, points)
    rest = max(3, room - len(lines))
    return [*lines, *framed("decisions", told, width, rest)]
