"""The root command: subcommands are imported when they are used, so that each starts fast."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

import click

from trimtab import __version__
from trimtab.errors import NotRunningError, TrimtabError, UsageError

# name -> (module below trimtab.cli, attribute, one line of help). A new command is one line here.
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "run": ("run", "run", "Run the daemon in the foreground."),
    "status": ("status", "status", "Show what runs: operating point, policy, streams, workers."),
    "top": ("top", "top", "Show everything live on one screen, with the triangle."),
    "why": ("decisions", "why", "Explain the last decision, or any, in sentences."),
    "decisions": ("decisions", "decisions", "List decisions, or follow them as they are made."),
    "points": ("points", "points", "List operating points, and why each isn't in force."),
    "signals": ("signals", "signals", "Show signals live, and which rules look at each."),
    "push": ("push", "push", "Tell the daemon a value of your own, as a signal."),
    "chat": ("chat", "chat", "Chat with the model; works in pipes too."),
    "pin": ("orders", "pin", "Fix knobs for a while: `trimtab pin variant=int8 --for 10m`."),
    "unpin": ("orders", "unpin", "Take the pin off."),
    "pause": ("orders", "pause", "Stop all steps but those for memory safety."),
    "resume": ("orders", "resume", "Start steps again."),
    "models": ("models", "models", "List, build, add, fetch and verify models and variants."),
    "profile": ("profile", "profile", "Measure what the model does on this device."),
    "plan": ("plan", "plan", "Say on paper what a model would hold and do on a device."),
    "policy": ("policy", "policy", "Check, test, show, compare and use policies."),
    "bench": ("bench", "bench", "Measure what this machine does, against the targets."),
    "demo": ("demo", "demo", "Show it at work: squeeze real memory under real chats."),
    "record": ("record", "record", "Record signals to a file, for replay and for reports."),
    "replay": ("replay", "replay", "Run a recording through the controller again."),
    "simulate": (
        "simulate",
        "simulate",
        "Run the controller through a day or a trace, in seconds.",
    ),
    "doctor": ("doctor", "doctor", "Say what this machine can and can't do, and what to do."),
    "config": ("config", "config", "Check and show the configuration."),
    "install-service": (
        "install_service",
        "install_service",
        "Make trimtab a systemd service, or take it away.",
    ),
    "completion": ("completion", "completion", "Print the completion script for a shell."),
    "reference": ("reference", "reference", "Print the reference of all commands."),
}

HIDDEN: Final = frozenset({"reference"})
"""Commands for those who work on trimtab."""

EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 1
EXIT_NOT_RUNNING: Final = 3
EXIT_ABORTED: Final = 130


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table, which is the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is no such name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        command: click.Command = getattr(
            importlib.import_module(f"trimtab.cli.{module}"), attribute
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help page, without importing anything."""
        with formatter.section("Commands"):
            shown = {name: entry for name, entry in COMMANDS.items() if name not in HIDDEN}
            formatter.write_dl([(name, entry[2]) for name, entry in shown.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trimtab")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TRIMTAB_CONFIG",
    help="Configuration file. Default: /etc/trimtab/trimtab.toml or ~/.config/trimtab/.",
)
@click.option(
    "--sockets",
    metavar="DIR",
    help="Folder of the daemon's sockets, here or forwarded with `ssh -L`.",
)
@click.option("--proc-root", metavar="DIR", help="Read this tree instead of /proc.")
@click.option("--sys-root", metavar="DIR", help="Read this tree instead of /sys.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set any key of the configuration, such as api.idle=30s.",
)
@click.pass_context
def root(
    ctx: click.Context,
    config: Path | None,
    sockets: str | None,
    proc_root: str | None,
    sys_root: str | None,
    settings: tuple[str, ...],
) -> None:
    """Keep a local language model useful while the device under it changes.

    Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 the daemon isn't running,
    4 it runs and tokens can't flow (`status --check`), 130 interrupted.
    """
    ctx.ensure_object(dict)
    ctx.obj["config"] = config
    named = (
        ("--sockets", "sockets.folder", sockets),
        ("--proc-root", "sensors.proc_root", proc_root),
        ("--sys-root", "sensors.sys_root", sys_root),
    )
    flags: dict[str, tuple[str, object]] = ctx.obj.setdefault("flags", {})
    flags.update({path: (flag, value) for flag, path, value in named if value is not None})
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is no KEY=VALUE", param_hint="--set")
        flags[key] = (f"--set {key}", value)


def main() -> None:
    """Run the command line; a trimtab error is one line with the way out, never a traceback."""
    try:
        code = root.main(prog_name="trimtab", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        click.echo("aborted", err=True)
        sys.exit(EXIT_ABORTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except TrimtabError as error:
        click.echo(f"trimtab: {error.message}", err=True)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)
        sys.exit(exit_code(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(EXIT_FAILED)


def exit_code(error: TrimtabError) -> int:
    """The exit code of a fault."""
    match error:
        case UsageError():
            return EXIT_USAGE
        case NotRunningError():
            return EXIT_NOT_RUNNING
        case _:
            return EXIT_FAILED
