"""`trimtab completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

# Where each shell looks for such scripts by itself.
_PLACES: Final[dict[str, str]] = {
    "bash": "~/.local/share/bash-completion/completions/trimtab",
    "zsh": "a folder of $fpath, as _trimtab",
    "fish": "~/.config/fish/completions/trimtab.fish",
}


@click.command(
    epilog="Put it where the shell looks: " + "; ".join(f"{k}: {v}" for k, v in _PLACES.items())
)
@click.argument("shell", type=click.Choice(list(_PLACES)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    For this session only: `eval "$(trimtab completion bash)"`.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    script = kind(ctx.find_root().command, {}, "trimtab", "_TRIMTAB_COMPLETE").source()
    click.echo(script)
