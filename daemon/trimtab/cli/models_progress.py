"""How long model commands look: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from trimtab.catalog.progress import Progress

# What progress bars of other programs leave in their lines.
_BAR: Final = re.compile(r"\|[^|]*\|")


class TerminalProgress:
    """A spinner with the step and its latest detail; a line with the time when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def step(self, title: str) -> AbstractContextManager[Callable[[str], None]]:
        """Show the step while it runs."""
        return self._step(title)

    @contextlib.contextmanager
    def _step(self, title: str) -> Iterator[Callable[[str], None]]:
        begun = time.perf_counter()
        with self._console.status(escape(title)) as status:

            def note(text: str) -> None:
                room = max(10, self._console.width - len(title) - 8)
                detail = _BAR.sub("", text).strip()[:room]
                status.update(f"{escape(title)}  [dim]{escape(detail)}[/dim]")

            try:
                yield note
            except BaseException:
                self._done("✗", "red", title, begun)
                raise
        self._done("✓", "green", title, begun)

    def _done(self, mark: str, colour: str, title: str, begun: float) -> None:
        spent_s = time.perf_counter() - begun
        line = Text.assemble((mark, colour), f" {title}  ", (f"{spent_s:.1f} s", "dim"))
        self._console.print(line)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"  {escape(text)}", highlight=False)


class PlainProgress:
    """One line when a step begins, one when it ends: for logs and pipes."""

    def step(self, title: str) -> AbstractContextManager[Callable[[str], None]]:
        """Say that the step begins, and how long it took."""
        return self._step(title)

    @contextlib.contextmanager
    def _step(self, title: str) -> Iterator[Callable[[str], None]]:
        begun = time.perf_counter()
        click.echo(f"{title} ...", err=True)
        try:
            yield lambda _: None
        except BaseException:
            click.echo(f"{title}: failed after {time.perf_counter() - begun:.1f} s", err=True)
            raise
        click.echo(f"{title}: done in {time.perf_counter() - begun:.1f} s", err=True)

    def say(self, text: str) -> None:
        """A line."""
        click.echo(text, err=True)


def make_progress() -> Progress:
    """The kind that fits standard error; standard output stays free for results."""
    console = Console(stderr=True)
    return TerminalProgress(console) if console.is_terminal else PlainProgress()
