"""`trimtab reference`: all commands with their options, in Markdown, for docs/cli.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import click

BEGIN: Final = "<!-- made by `trimtab reference` -->"


@click.command(hidden=True)
@click.pass_context
def reference(ctx: click.Context) -> None:
    """Print the reference of all commands in Markdown."""
    click.echo(command_reference(ctx.find_root().command))


def command_reference(root: click.Command) -> str:
    """The reference: one section a command, in the order of the help page."""
    lines = [BEGIN]
    for context in _contexts(click.Context(root, info_name="trimtab")):
        lines += ["", *_section(context)]
    return "\n".join(lines)


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _contexts(click.Context(below, parent=context, info_name=name))


def _section(context: click.Context) -> list[str]:
    command = context.command
    usage = " ".join(part.strip() for part in command.collect_usage_pieces(context))
    lines = [f"## {context.command_path}", "", f"    {context.command_path} {usage}"]
    lines += ["", *_paragraphs(command.help or "")]
    rows = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        and not parameter.hidden
        and "--help" not in parameter.opts
        and (record := parameter.get_help_record(context))
    ]
    if rows:
        lines += ["", "| Option | |", "|---|---|"]
        lines += [f"| `{_cell(option)}` | {_cell(told)} |" for option, told in rows]
    return lines


def _paragraphs(text: str) -> list[str]:
    """The help text, with each paragraph on one line."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += [paragraph.replace("\b ", ""), ""]
    return lines[:-1]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
