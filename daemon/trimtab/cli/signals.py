"""`trimtab signals`: what the daemon sees, live, and which rules look at it."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from trimtab.cli.settings import json_option, loaded, print_json
from trimtab.config.load import Loaded

PERIOD_S: Final = 1.0
_PIPE_WIDTH: Final = 200
_LINES_AROUND: Final = 3  # the table's head, the summary and the cursor


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME|PATTERN]...")
@click.option("-a", "--all", "everything", is_flag=True, help="Show absent signals too.")
@click.option("--once", is_flag=True, help="Print once and end, as in a pipe.")
@click.option("--direct", is_flag=True, help="Read the sensors here, even if a daemon runs.")
@click.option("--markdown", is_flag=True, help="Print the reference of all signals and end.")
@json_option
@click.pass_context
def signals(
    ctx: click.Context,
    names: tuple[str, ...],
    everything: bool,
    once: bool,
    direct: bool,
    markdown: bool,
    as_json: bool,
) -> None:
    """Show signals live: value, trend, quality, and which rules look at each.

    Asks the daemon; without one, or with --proc-root and --sys-root, the sensors are read here.
    NAMES are signals, shell patterns or areas: `trimtab signals temperature 'memory.psi.*'`.
    """
    if markdown:
        from trimtab.signals.reference import signal_reference

        click.echo(signal_reference(), nl=False)
        return
    settings = loaded(ctx)
    if as_json:
        _print_json(settings, names, direct=direct)
    elif once or not sys.stdout.isatty():
        _print_once(settings, names, everything=everything, direct=direct)
    else:
        _live(settings, names, everything=everything, direct=direct)


def _print_json(settings: Loaded, names: tuple[str, ...], *, direct: bool) -> None:
    from trimtab.cli.signal_source import open_source, watchers, with_watchers
    from trimtab.cli.signal_table import select
    from trimtab.runtime.clock import SystemClock

    source = open_source(settings, SystemClock(), direct=direct)
    try:
        rows = with_watchers(source.rows(), watchers(settings, source))
    finally:
        source.close()
    shown: list[Any] = select(rows, names, everything=True)
    print_json({"told_by": source.told_by, "signals": sorted(shown, key=lambda row: row.name)})


def _print_once(
    settings: Loaded, names: tuple[str, ...], *, everything: bool, direct: bool
) -> None:
    from rich.console import Console

    from trimtab.cli.signal_source import open_source, watchers, with_watchers
    from trimtab.cli.signal_table import History, select, signal_table, summary
    from trimtab.runtime.clock import SystemClock

    source = open_source(settings, SystemClock(), direct=direct)
    history = History()
    try:
        watched = watchers(settings, source)
        history.add(source.rows())
        time.sleep(PERIOD_S / 2)  # rates need a second look
        rows = with_watchers(source.rows(), watched)
    finally:
        source.close()
    shown = select(rows, names, everything=everything)
    console = Console(highlight=False)
    history.add(rows)
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    fill = console.is_terminal
    console.print(signal_table(shown, history, width=console.width, fill=fill))
    console.print(summary(rows, len(shown), source.told_by))


def _live(settings: Loaded, names: tuple[str, ...], *, everything: bool, direct: bool) -> None:
    """The live screen, until Ctrl-C."""
    from rich.console import Console, Group
    from rich.live import Live

    from trimtab.cli.signal_source import open_source, watchers, with_watchers
    from trimtab.cli.signal_table import History, select, signal_table, summary
    from trimtab.runtime.clock import SystemClock

    console = Console(highlight=False)
    source = open_source(settings, SystemClock(), direct=direct)
    history = History()
    try:
        watched = watchers(settings, source)
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                rows = with_watchers(source.rows(), watched)
                history.add(rows)
                shown = select(rows, names, everything=everything)
                shown = shown[: max(1, console.height - _LINES_AROUND)]
                live.update(
                    Group(
                        signal_table(
                            shown,
                            history,
                            width=console.width,
                            plain=console.encoding not in {"utf-8", "utf8"},
                        ),
                        summary(rows, len(shown), f"{source.told_by}; Ctrl-C ends"),
                    ),
                    refresh=True,
                )
                time.sleep(PERIOD_S)
    except KeyboardInterrupt:
        pass
    finally:
        source.close()
