"""The root command: subcommands are imported when they are used, so that each starts fast."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

import click

from trimtab import __version__
from trimtab.errors import TrimtabError

# name -> (module below trimtab.cli, attribute, one line of help). Adding a command is one line here.
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "models": ("models", "models", "List, build, add, fetch and verify models and variants."),
}

EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 1


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of the table, which is the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, imported now; None if there is no such name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        command: click.Command = getattr(
            importlib.import_module(f"trimtab.cli.{module}"), attribute
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The help page, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trimtab")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TRIMTAB_CONFIG",
    help="Configuration file. Default: /etc/trimtab/trimtab.toml or ~/.config/trimtab/.",
)
@click.pass_context
def root(ctx: click.Context, config: Path | None) -> None:
    """Keep a local language model useful while the device under it changes."""
    ctx.ensure_object(dict)
    ctx.obj["config"] = config


def main() -> None:
    """Run the command line; a trimtab error is one line with the way out, never a traceback."""
    try:
        root.main(prog_name="trimtab", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("aborted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except TrimtabError as error:
        click.echo(f"trimtab: {error.message}", err=True)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)
        sys.exit(EXIT_FAILED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
