"""The demo on a terminal: drawn anew some times a second, fitted to the window's size."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trimtab.demo.plan import MIB
from trimtab.demo.stage import Chat, ChatState, Sample, Stage
from trimtab.telemetry.words import size

COLOURS: Final = ("green", "cyan", "yellow", "magenta", "blue", "red")
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_SPARK_SAMPLES: Final = 4  # looks that make one character
_LABEL: Final = 10
_WIDE: Final = 100
_CHAT_ROWS: Final = 3


class LiveScreen:
    """A full screen, as a context manager; the terminal is as before afterwards.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def draw(self, stage: Stage) -> None:
        """Draw the stage."""
        width, height = self._console.size
        self._live.update(picture(stage, width, height), refresh=True)


def picture(stage: Stage, width: int, height: int) -> RenderableType:
    """The whole screen.

    Args:
        stage: What to show.
        width: Columns.
        height: Rows.
    """
    head: list[RenderableType] = [
        _title(stage, width),
        Text(stage.line, style="bold", no_wrap=True, overflow="ellipsis"),
        Text(),
        _ladder(stage),
        *_memory(stage, width),
        _speed(stage, width),
    ]
    decisions = _decisions(stage, width, most_lines=max(4, (height - 8) // 3))
    room = height - len(head) - len(decisions) - 2
    return Group(*head, *_chats(stage, width, room), Text(), *decisions)


def colour(stage_ladder: Sequence[str], variant: str | None) -> str:
    """The colour of a variant: the best is green, and it goes on from there."""
    if variant not in stage_ladder:
        return "white"
    return COLOURS[stage_ladder.index(variant) % len(COLOURS)]


def _title(stage: Stage, width: int) -> RenderableType:
    row = Table.grid(expand=True)
    row.add_column()
    row.add_column(justify="right")
    row.add_row(
        Text(f"trimtab demo · {stage.title}", style="bold reverse"),
        Text(f"{stage.now_s:.0f} s · Ctrl-C ends it", style="dim"),
    )
    return row


def _ladder(stage: Stage) -> RenderableType:
    """All variants, the one that serves set off, the one that is coming marked."""
    line = Text(f"{'variant':<{_LABEL}}", style="dim", no_wrap=True)
    last = stage.last
    for name in stage.plan.ladder:
        here = last is not None and last.variant == name
        style = f"bold reverse {colour(stage.plan.ladder, name)}" if here else "dim"
        line.append(f" {name} ", style=style)
        line.append("  ")
    if last is None:
        return line
    if last.coming is not None and last.coming != last.variant:
        line.append(f"→ loading {last.coming} ", style="bold yellow")
    if last.held:
        line.append(f"{last.held} chats held meanwhile", style="yellow")
    return line


def _memory(stage: Stage, width: int) -> list[RenderableType]:
    """What is available as a bar around the limits, since far from them nothing happens."""
    last, plan = stage.last, stage.plan
    if last is None or last.available_bytes is None:
        return [_labelled("memory", Text("not known yet", style="dim")), Text()]
    columns = max(20, min(width - _LABEL - 2, 100))
    low = plan.headroom_bytes - 128 * MIB
    high = max(plan.available_bytes, plan.leave_bytes + 256 * MIB)
    bar = _bar(last.available_bytes, plan.headroom_bytes, low, high, columns)
    above = last.available_bytes - plan.headroom_bytes
    side = "above" if above >= 0 else "under"
    told = Text(f"{size(last.available_bytes)} available, ")
    told.append(f"{size(abs(above))} {side} the headroom ┃", style="green" if above >= 0 else "red")
    if last.squeeze_bytes:
        told.append(f", squeeze {size(last.squeeze_bytes)}", style="red")
    if width >= _WIDE:
        told.append(f" (headroom {size(plan.headroom_bytes)})", style="dim")
    return [_labelled("memory", bar), _labelled("", told)]


def _labelled(label: str, value: Text) -> Text:
    name = Text(f"{label:<{_LABEL}}", style="dim")
    return Text.assemble(name, value, no_wrap=True, overflow="ellipsis")


def _bar(value: float, limit: float, low: float, high: float, columns: int) -> Text:
    """A bar from ``low`` to ``high`` with a mark at the limit."""

    def place(at: float) -> int:
        return max(0, min(columns - 1, round((at - low) / (high - low) * (columns - 1))))

    mark, end = place(limit), place(value)
    good = "green" if value >= limit else "red"
    bar = Text(no_wrap=True)
    for column in range(columns):
        if column == mark:
            bar.append("┃", style="bold white")
        elif column <= end:
            bar.append("█", style=good)
        else:
            bar.append("░", style="dim")
    return bar


def _speed(stage: Stage, width: int) -> RenderableType:
    """Tokens a second, now and over the last while, coloured by variant."""
    line = Text(f"{'speed':<{_LABEL}}", style="dim", no_wrap=True)
    rate = stage.last.tokens_per_s if stage.last is not None else 0.0
    line.append(f"{rate:4.0f} tokens/s  ", style="bold")
    columns = max(8, width - _LABEL - 18)
    groups = _groups(stage.samples, columns)
    top = max((tps for tps, _ in groups), default=0.0) or 1.0
    for tps, variant in groups:
        level = round(tps / top * (len(_LEVELS) - 1))
        line.append(_LEVELS[level], style=colour(stage.plan.ladder, variant))
    return line


def _groups(samples: Sequence[Sample], columns: int) -> list[tuple[float, str | None]]:
    """The newest samples, some to a column: mean speed and the variant that served.

    Columns begin at fixed samples, so that the curve moves on and doesn't flicker.
    """
    newest = len(samples) // _SPARK_SAMPLES
    first = max(0, newest - columns + 1)
    groups = []
    for at in range(first, newest + 1):
        part = samples[at * _SPARK_SAMPLES : (at + 1) * _SPARK_SAMPLES]
        if part:
            groups.append((sum(one.tokens_per_s for one in part) / len(part), part[-1].variant))
    return groups


def _chats(stage: Stage, width: int, room: int) -> list[RenderableType]:
    """The chats that run, in frames of equal height; the newest text at the bottom."""
    running = [chat for chat in stage.chats if chat.ended_s is None]
    done = sum(chat.state is ChatState.DONE for chat in stage.chats)
    broken = sum(chat.state is ChatState.BROKEN for chat in stage.chats)
    tokens = sum(chat.tokens for chat in stage.chats)
    line = Text(f"{'chats':<{_LABEL}}", style="dim", no_wrap=True)
    line.append(f"{len(running)} running, {done} complete, ", style="default")
    line.append(f"{broken} broken", style="bold red" if broken else "default")
    line.append(f", {tokens} tokens", style="default")
    shown = running[: max(0, (room - 1) // _CHAT_ROWS)]
    if not shown:
        return [line]
    rows, left = divmod(room - 1, len(shown))
    return [line, *(_chat(chat, width, rows + (at < left)) for at, chat in enumerate(shown))]


def _chat(chat: Chat, width: int, rows: int) -> RenderableType:
    inside = max(1, rows - 2)
    columns = max(10, width - 4)
    flat = " ".join(chat.text.split()) or "…"
    lines = textwrap.wrap(flat, columns)
    if inside == 1 and len(lines) > 1:  # a new line would begin nearly empty
        lines = ["…" + flat[1 - columns :]]
    title = Text(f"{chat.number}: {chat.prompt}", no_wrap=True, overflow="ellipsis")
    title.truncate(max(10, width - 8), overflow="ellipsis")
    return Panel(
        Text("\n".join(lines[-inside:])),
        title=title,
        title_align="left",
        height=rows,
        border_style="dim",
    )


def _decisions(stage: Stage, width: int, most_lines: int) -> list[RenderableType]:
    """The newest decisions that fit, each in a sentence."""
    shown: list[list[str]] = []
    for told in reversed(stage.told):
        lines = textwrap.wrap(f"{told.clock} {told.sentence}", max(20, width - 2))
        if sum(map(len, shown)) + len(lines) > most_lines and shown:
            break
        shown.append(lines[:most_lines])
    if not shown:
        return [Text("No decision yet.", style="dim")]
    newest = shown[0]
    texts: list[RenderableType] = []
    for lines in reversed(shown):
        style = "bold" if lines is newest else "dim"
        texts += [Text(text, style=style, no_wrap=True) for text in lines]
    return texts
