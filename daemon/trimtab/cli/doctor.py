"""`trimtab doctor`: what this machine offers, what it lacks, and what to do about it."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Final

import click

from trimtab.cli.settings import json_option, loaded, print_json, styled

if TYPE_CHECKING:
    from trimtab.config.load import Loaded
    from trimtab.sensors.checkup import Finding

_SETTLE_S: Final = 3.0
_BETWEEN_S: Final = 0.6  # rates need two looks
_MARKS: Final = {"good": ("✓", "green"), "note": ("·", "cyan"), "warning": ("!", "yellow"),
                 "bad": ("✗", "red")}  # fmt: skip
_NAME_WIDTH: Final = 11


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what this machine can and can't do, and what to do about it.

    Looks at the board, its memory and control groups, sensors, the kernel's help and the disk.
    Changes nothing. Ends with 1 if trimtab can't do its job here.
    """
    findings = _examine(loaded(ctx))
    bad = any(finding.level == "bad" for finding in findings)
    if as_json:
        print_json({"fit": not bad, "findings": findings})
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        for finding in findings:
            for line in _lines(finding, width):
                click.echo(line)
        click.echo(_verdict(findings))
    if bad:
        ctx.exit(1)


def _examine(settings: Loaded) -> list[Finding]:
    import time

    from trimtab.runtime.clock import SystemClock
    from trimtab.sensors import SensorSuite
    from trimtab.sensors.board import identify
    from trimtab.sensors.checkup import Machine, examine
    from trimtab.sensors.configured import sensor_config

    config = settings.config
    clock = SystemClock()
    suite = SensorSuite(sensor_config(config))
    try:
        suite.snapshot(clock.monotonic_s(), clock.wall_s())
        suite.settle(_SETTLE_S)
        time.sleep(_BETWEEN_S)
        snapshot = suite.snapshot(clock.monotonic_s(), clock.wall_s())
        roots = suite.config.roots
        return examine(
            Machine(
                snapshot,
                suite.board,
                identify(roots),
                roots,
                config.state,
                config.models,
                suite.hung,
            )
        )
    finally:
        suite.close()


def _lines(finding: Finding, width: int) -> list[str]:
    """One finding, wrapped below itself, and what to do."""
    mark, colour = _MARKS[finding.level]
    indent = " " * (_NAME_WIDTH + 2)
    room = max(30, width - len(indent))
    says = textwrap.wrap(finding.says, room) or [""]
    lines = [f"{styled(mark, fg=colour)} {finding.check:<{_NAME_WIDTH}}{says[0]}"]
    lines += [f"{indent}{line}" for line in says[1:]]
    if finding.todo:
        todo = textwrap.wrap(f"→ {finding.todo}", room, subsequent_indent="  ")
        lines += [styled(f"{indent}{line}", dim=True) for line in todo]
    return lines


def _verdict(findings: list[Finding]) -> str:
    counts = {level: sum(one.level == level for one in findings) for level in _MARKS}
    if counts["bad"]:
        return styled("trimtab can't do its job here yet.", fg="red", bold=True)
    if counts["warning"]:
        told = "1 warning" if counts["warning"] == 1 else f"{counts['warning']} warnings"
        return styled(f"trimtab works here, with {told}.", fg="yellow", bold=True)
    return styled("trimtab works well here.", fg="green", bold=True)
