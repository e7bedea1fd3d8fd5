"""`trimtab run`: the daemon in the foreground."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

import click

from trimtab.cli.settings import loaded
from trimtab.lean import lean_daemon
from trimtab.runtime.control_group import begin_in_own_group


@click.command()
@click.option("--model", metavar="ID", help="Model to serve. Default: the only one.")
@click.option("--policy", metavar="NAME", help="Policy in force. Default: balanced.")
@click.option("--threads", metavar="N", help="Engine threads. Default: all cores but one.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The least that is told.",
)
@click.option(
    "--log-format", type=click.Choice(["auto", "json", "human"]), help="auto: JSON under systemd."
)
@click.pass_context
def run(
    ctx: click.Context,
    model: str | None,
    policy: str | None,
    threads: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C.

    It runs unprivileged and without any file: sockets go to $XDG_RUNTIME_DIR/trimtab, state to
    ~/.local/state/trimtab. `trimtab config show` prints every value and where it came from.
    """
    begin_in_own_group()
    settings = loaded(
        ctx,
        model=("--model", model),
        policy=("--policy", policy),
        engine__threads=("--threads", threads),
        log__level=("--log-level", log_level),
        log__format=("--log-format", log_format),
    )
    for warning in settings.warnings:
        click.echo(f"trimtab: {warning}", err=True)
    lean_daemon()
    from trimtab import app

    _leave(app.run(settings.config))


def _leave(status: int) -> NoReturn:
    """End now: the interpreter would wait for its threads, and a disk that hangs keeps them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)
