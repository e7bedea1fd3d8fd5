"""Lines and blocks of lines for a screen: cut and put together so that nothing wraps by itself."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from rich.text import Text

LABEL: Final = 9
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


def labelled(label: str, text: str | Text, style: str = "") -> Text:
    """A dim label and what it says."""
    line = Text().append(f"{label:<{LABEL}}", style="dim")
    return line.append_text(text if isinstance(text, Text) else Text(text, style))


def chart(values: Sequence[float | None], unit: str, width: int, rows: int) -> list[Text]:
    """A signal's last values as columns of blocks, from zero to the greatest that is shown.

    Args:
        values: Oldest first; None where there was none.
        unit: For the label of the greatest.
        width: Columns.
        rows: Lines, the label's included.
    """
    shown = list(values)[-width:]
    most = max((value for value in shown if value is not None), default=0.0)
    levels = [round((value or 0.0) / most * (rows - 1) * 8) if most > 0 else 0 for value in shown]
    lines = [Text(f"{unit}, at most {most:.1f} in the last {len(shown)} s", style="dim")]
    for row in range(rows - 2, -1, -1):
        bars = "".join(_BLOCKS[min(8, max(0, level - row * 8))] for level in levels)
        lines.append(Text(bars.rjust(width), style="cyan"))
    return lines


def wrapped(text: str, width: int, rows: int, *, indent: int = 0, style: str = "") -> list[Text]:
    """Text between words on lines of this width; what is too long ends with an ellipsis."""
    if rows <= 0:
        return []
    broken = textwrap.wrap(
        text,
        max(20, width),
        subsequent_indent=" " * indent,
        max_lines=rows,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return [Text(line, style=style) for line in broken]


def fitted(line: Text, width: int) -> Text:
    """A line of exactly this width."""
    copy = line.copy()
    copy.truncate(width, overflow="ellipsis", pad=True)
    return copy


def beside(left: Sequence[Text], right: Sequence[Text], left_width: int, width: int) -> list[Text]:
    """Two blocks next to each other, with a column between them."""
    rows = max(len(left), len(right))
    blank = Text()

    def at(block: Sequence[Text], row: int) -> Text:
        return block[row] if row < len(block) else blank

    return [
        Text.assemble(
            fitted(at(left, row), left_width), " ", fitted(at(right, row), width - left_width - 1)
        )
        for row in range(rows)
    ]


def framed(title: str, block: Iterable[Text], width: int, height: int) -> list[Text]:
    """A block in a frame of exactly this size."""
    inside = [fitted(line, width - 4) for line in block][: height - 2]
    inside += [Text(" " * (width - 4))] * (height - 2 - len(inside))
    top = Text().append("╭─ ", style="dim")
    top.append(title, style="bold").append(" ")
    top.append("─" * max(0, width - len(top) - 1), style="dim").append("╮", style="dim")
    edge = Text("│", style="dim")
    body = [Text.assemble(edge, " ", line, " ", edge) for line in inside]
    return [top, *body, Text(f"╰{'─' * (width - 2)}╯", style="dim")]


def ruled(title: str, width: int) -> Text:
    """A line that begins a part where there is no room for frames."""
    line = Text().append("── ", style="dim")
    line.append(title, style="bold").append(" ")
    return line.append("─" * max(0, width - len(line)), style="dim")
