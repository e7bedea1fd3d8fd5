"""What a person sees of the demo: screen or lines, then the summary, the plot and the JSON line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from trimtab.config.schema import Config
from trimtab.demo import plot
from trimtab.demo.plain import PlainScreen
from trimtab.demo.plan import make_plan
from trimtab.demo.result import Result
from trimtab.demo.screen import LiveScreen
from trimtab.demo.show import Cast, Screen, put_on
from trimtab.demo.stage import Stage
from trimtab.domain.models import ModelSpec
from trimtab.errors import TrimtabError
from trimtab.runtime.clock import SystemClock
from trimtab.sensors.config import SensorConfig
from trimtab.sensors.suite import SensorSuite
from trimtab.telemetry.words import size

PLOT_NAME: Final = "trimtab-demo.png"
MIN_COLUMNS: Final = 60
MIN_ROWS: Final = 20


def present(model: ModelSpec, config: Config, out: Path, *, as_json: bool) -> bool:
    """Run the demo and show it.

    Args:
        model: What to show.
        config: Where models and sensors are.
        out: Folder for the plot.
        as_json: Only the JSON line on standard output; the show goes to standard error.

    Returns:
        True if it showed what it promises.

    Raises:
        TooSmallError: This model can show nothing on this machine.
        TrimtabError: Something that it needs failed.
    """
    console = Console(stderr=as_json)
    plan = make_plan(model, available_bytes(config))
    cast = Cast(config.models, plan, model.display_name)
    _begin(console, cast)
    with _screen(console) as screen:
        result, stage = asyncio.run(put_on(cast, screen))
    result = _plotted(stage, result, out, console)
    _summary(console, stage, result)
    if as_json:
        sys.stdout.write(json.dumps(result.as_json()) + "\n")
        sys.stdout.flush()
    return result.passed


def available_bytes(config: Config) -> int:
    """The signal ``memory.available`` as the daemon will see it, cgroup limits included.

    Raises:
        TrimtabError: It can't be known here.
    """
    sensors = config.sensors
    clock = SystemClock()
    suite = SensorSuite(SensorConfig(sensors.proc_root, sensors.sys_root, sensors.board))
    try:
        reading = suite.memory_available(clock.monotonic_s())
    finally:
        suite.close()
    if not reading.usable or reading.value is None:
        raise TrimtabError(
            f"the available memory can't be known: {reading.reason}",
            hint="`trimtab doctor` says what this machine offers.",
        )
    return int(reading.value)


def _begin(console: Console, cast: Cast) -> None:
    plan = cast.plan
    console.print(
        f"[bold]trimtab demo[/bold]: {cast.title} as {', '.join(plan.ladder)}; "
        f"{size(plan.available_bytes)} of memory are available.\n"
        f"The policy keeps {size(plan.headroom_bytes)} free. A child process will take about "
        f"{size(plan.second_squeeze_bytes)} of real memory and give it back.",
        highlight=False,
    )
    if not plot.available():
        console.print(f"[yellow]{plot.MISSING}[/yellow]", highlight=False)


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[Screen]:
    width, height = console.size
    if console.is_terminal and width >= MIN_COLUMNS and height >= MIN_ROWS:
        with LiveScreen(console) as live:
            yield live
    else:
        yield PlainScreen(
            lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)
        )


def _plotted(stage: Stage, result: Result, out: Path, console: Console) -> Result:
    if not plot.available():
        return result
    path = out / PLOT_NAME
    try:
        plot.draw(stage, result, path)
    except TrimtabError as error:
        console.print(f"[yellow]{error.message}[/yellow]", highlight=False)
        return result
    return replace(result, plot=str(path.absolute()))


def _summary(console: Console, stage: Stage, result: Result) -> None:
    console.print()
    for told in stage.told:
        console.print(f"{told.clock} {told.sentence}", highlight=False, markup=False)
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_row("steps", _steps(stage))
    table.add_row(
        "chats",
        f"{result.streams} in all, {result.streams_broken} broken; "
        f"{result.streams_crossed} were served by more than one variant",
    )
    table.add_row("tokens", f"{result.tokens} in {result.seconds:.0f} s")
    table.add_row("squeeze", f"{size(result.squeeze_bytes)} at most")
    if result.plot is not None:
        table.add_row("plot", result.plot)
    console.print(table, highlight=False)
    console.print()
    if result.passed:
        console.print(
            "[bold green]It stepped down under pressure, stepped up again, and no chat broke.[/]",
            highlight=False,
        )
    for problem in result.problems:
        console.print(f"[bold red]Not as it should be:[/] {problem}", highlight=False)


def _steps(stage: Stage) -> str:
    if not stage.moves:
        return "none"
    names = [stage.moves[0].source, *(move.target for move in stage.moves)]
    return " → ".join(names)
