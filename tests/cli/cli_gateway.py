"""Running commands against a gateway of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import click.testing

from api_fakes import Gateway
from trimtab.cli.root import exit_code, root
from trimtab.errors import TrimtabError


@dataclass
class Told:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


class ServedGateway(Gateway):
    """A gateway in a thread with its own loop."""

    loop: asyncio.AbstractEventLoop

    def soon(self, call: Callable[[], object]) -> None:
        """Run something in its loop."""
        self.loop.call_soon_threadsafe(call)


def run_command(*arguments: str, stdin: str | None = None) -> Told:
    """The command line in this process, with the exit code that a shell would see."""
    result = click.testing.CliRunner().invoke(
        root, list(arguments), input=stdin, prog_name="trimtab"
    )
    if isinstance(result.exception, TrimtabError):
        error = result.exception
        return Told(exit_code(error), result.stdout, f"{error.message}\n{error.hint}")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Told(result.exit_code, result.stdout, result.stderr)
