"""What every command takes from the root: the configuration, and how it prints."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Any

import click
import msgspec

from trimtab.config.load import Loaded, load_config

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")


def loaded(ctx: click.Context, **flags: tuple[str, Any]) -> Loaded:
    """The configuration in force for this command.

    Args:
        ctx: The command's context.
        flags: Flags of the command itself, by key of the configuration (``__`` for a dot): the
            flag as it is typed, and its value; None means that it wasn't given.

    Raises:
        ConfigError: It is wrong.
    """
    given: dict[str, tuple[str, Any]] = dict(ctx.obj.get("flags", {}))
    for key, (flag, value) in flags.items():
        if value is not None:
            given[key.replace("__", ".")] = (flag, value)
    return load_config(ctx.obj.get("config"), flags=given)


def print_json(value: Any) -> None:
    """One JSON document on standard output: indented for people, on one line for programs."""
    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded, indent=2)
    click.echo(encoded.decode())


def wrapped(text: str, indent: int = 0) -> str:
    """Long sentences broken between words on a terminal; left alone everywhere else.

    Args:
        text: On one line.
        indent: Columns that its later lines are moved by.
    """
    if not sys.stdout.isatty():
        return text
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def styled(text: str, **style: Any) -> str:
    """Colour on a terminal; click takes it out everywhere else."""
    return click.style(text, **style)
