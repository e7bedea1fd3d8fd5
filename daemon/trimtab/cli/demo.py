"""`trimtab demo`: the main job on a real model, with real memory taken away and given back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trimtab.cli.settings import loaded

if TYPE_CHECKING:
    from trimtab.config.schema import Config
    from trimtab.domain.models import ModelSpec

DEFAULT_MODEL: Final = "smollm2-135m"
BUILD_HINT: Final = f"`trimtab models build {DEFAULT_MODEL}` makes one, in some minutes."


@click.command()
@click.option(
    "--model", metavar="ID", help="Model to show. Default: smollm2-135m, or the only one."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder for the plot. Default: the current one.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on the last line.")
@click.pass_context
def demo(ctx: click.Context, model: str | None, out: Path, as_json: bool) -> None:
    """Show trimtab at work, in about a minute and a half.

    Starts a daemon of its own with a real model, chats with it over its socket, takes a few hundred
    MiB of memory away so that the model steps down, and gives them back so that it steps up again.
    It ends with a summary and a plot. Exit code 0 means that all of this happened and that no chat
    broke. Ctrl-C leaves nothing behind.
    """
    from trimtab.demo.output import present

    settings = loaded(ctx).config
    passed = present(_model(settings, model), settings, out, as_json=as_json)
    ctx.exit(0 if passed else 1)


def _model(config: Config, wanted: str | None) -> ModelSpec:
    """The model to show.

    Raises:
        NoModelError: There is none; the hint says how to get one.
    """
    from trimtab.catalog.load import load_catalog
    from trimtab.errors import NoModelError

    catalog = load_catalog(config.models)
    name = wanted or config.model or DEFAULT_MODEL
    if wanted is None and config.model is None and name not in catalog.models:
        if len(catalog.models) == 1:
            return next(iter(catalog.models.values()))
        if not catalog.damaged:
            folders = ", ".join(catalog.folders)
            raise NoModelError(f"there is no model {name} in {folders}", hint=BUILD_HINT)
    return catalog.model(name)
