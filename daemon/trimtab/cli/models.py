"""`trimtab models`: list, build, add, fetch and verify models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from trimtab.catalog import cache_folder, load_catalog, models_folder
from trimtab.catalog.recipes import DEFAULT_VARIANTS, MODELS, QUANTIZED_KV, RECIPES, VARIANTS
from trimtab.errors import NoModelError, TrimtabError, UsageError

EXIT_FAILED: Final = 1
FOLDER = click.Path(file_okay=False, path_type=Path)

_out = click.option(
    "--out",
    "--models",
    "out",
    type=FOLDER,
    help="The models folder. Default: TRIMTAB_MODELS, or /var/lib/trimtab/models for the whole "
    "machine, or ~/.local/share/trimtab/models.",
)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
_threads = click.option(
    "--threads",
    type=click.IntRange(1, 256),
    help="Engine threads of the proof. Default: all cores but one.",
)
_id = click.option("--id", "model_id", default="", help="The model's id. Default: from the name.")
_name = click.option("--name", "display_name", default="", help="The model's name for people.")


class ModelsGroup(click.Group):
    """`recommend` asks the planner and the profile: the others start without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in alphabetical order."""
        return sorted([*self.commands, "recommend"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; `recommend` is imported now."""
        if cmd_name == "recommend":
            from trimtab.cli.models_recommend import recommend_variants

            return recommend_variants
        return super().get_command(ctx, cmd_name)


@click.group(cls=ModelsGroup)
def models() -> None:
    """List, build, add, fetch and verify models and their variants."""


@models.command("list")
@_out
@_json
def list_models(out: Path | None, as_json: bool) -> None:
    """Show the models that are here, their variants, and what is damaged."""
    from trimtab.cli.models_tables import catalog_json, print_catalog

    folder = models_folder(out)
    catalog = load_catalog([folder])
    if as_json:
        click.echo(json.dumps(catalog_json(catalog)))
        return
    print_catalog(catalog, _console())
    if not catalog.models and not catalog.damaged:
        click.echo(f"No models in {folder}.")
        click.echo("  `trimtab models build smollm2-135m` makes one.")


@models.command()
@click.argument("name", required=False)
@click.option(
    "--from", "source", type=click.Path(path_type=Path), help="A Hugging Face folder or a GGUF."
)
@click.option(
    "--variants",
    default=",".join(DEFAULT_VARIANTS),
    show_default=True,
    help=f"Which to build, of {', '.join(VARIANTS)}.",
)
@click.option(
    "--kv",
    type=click.Choice(["int8"]),
    help="Build each of them with a quantized KV cache too: a quarter of the memory a token.",
)
@_out
@_id
@_name
@_threads
@click.option("--force", is_flag=True, help="Build again what is there.")
@_json
def build(
    name: str | None,
    source: Path | None,
    variants: str,
    kv: str | None,
    out: Path | None,
    model_id: str,
    display_name: str,
    threads: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Build variants of a model, prove each, and publish the model.

    NAME is a model that trimtab can get by itself (smollm2-135m). With --from it is built from a
    folder or file on this disk instead.

    The first build prepares an environment with torch in the cache folder. A build that is
    interrupted goes on where it stopped. It needs three to five times the memory of the weights in
    fp32: build big models on a big machine, and copy the folder to the gateway.
    """
    from trimtab.catalog.build import BuildRequest, build_model
    from trimtab.catalog.proof import proof_threads
    from trimtab.cli.models_progress import make_progress

    chosen = _source(name, source)
    identifier = model_id or (name or _id_from(chosen.name))
    request = BuildRequest(
        model_id=_checked_id(identifier),
        display_name=display_name or chosen.name,
        source=chosen,
        variants=_variants(variants, with_quantized_kv=kv is not None),
        models=models_folder(out),
        cache=cache_folder(),
        threads=threads or proof_threads(),
        force=force,
    )
    _finish(lambda: build_model(request, make_progress()), as_json)


@models.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@_out
@_id
@_name
@click.option("--copy", is_flag=True, help="Copy the files into the models folder.")
@click.option("--no-verify", is_flag=True, help="Prove nothing: memory and quality are assumed.")
@_threads
@_json
def add(
    folders: tuple[Path, ...],
    out: Path | None,
    model_id: str,
    display_name: str,
    copy: bool,
    no_verify: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Take in ready-made onnxruntime-genai folders, several variants of one model at once.

    Each is loaded and measured against the most precise one. The files stay where they are unless
    --copy is given; beside each graph a second one, model.indices.onnx, is written.
    """
    from trimtab.catalog.add import AddRequest, add_model
    from trimtab.catalog.proof import proof_threads
    from trimtab.cli.models_progress import make_progress

    request = AddRequest(
        folders=folders,
        models=models_folder(out),
        model_id=_checked_id(model_id) if model_id else "",
        display_name=display_name,
        copy=copy,
        verify=not no_verify,
        threads=threads or proof_threads(),
        source={"kind": "added"},
    )
    _finish(lambda: add_model(request, make_progress()), as_json)


@models.command()
@click.argument("repository")
@click.option("--revision", default="", help="Branch, tag or commit. Default: the main branch.")
@click.option("--include", multiple=True, help="Only these paths: 'int4/*'. May be repeated.")
@_out
@_id
@_name
@click.option("--no-verify", is_flag=True, help="Prove nothing: memory and quality are assumed.")
@_threads
@_json
def fetch(
    repository: str,
    revision: str,
    include: tuple[str, ...],
    out: Path | None,
    model_id: str,
    display_name: str,
    no_verify: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Download ready-made variants from a model hub (OWNER/NAME), check and add them.

    An interrupted download goes on where it stopped. HF_ENDPOINT names a mirror.
    """
    from trimtab.catalog.add import AddRequest, add_model
    from trimtab.catalog.build import BuildResult
    from trimtab.catalog.fetch import fetch as fetch_files
    from trimtab.catalog.proof import proof_threads
    from trimtab.cli.models_progress import make_progress

    name = repository.rpartition("/")[2]
    identifier = _checked_id(model_id or _id_from(name))
    folder = models_folder(out)
    staging = folder / f".fetch-{identifier}"
    progress = make_progress()

    def run() -> BuildResult:
        fetched = fetch_files(repository, revision, include, staging, progress)
        source = {"kind": "hub", "repository": repository, "commit": fetched.commit}
        request = AddRequest(
            folders=fetched.folders,
            models=folder,
            model_id=identifier,
            display_name=display_name or name,
            copy=True,
            verify=not no_verify,
            threads=threads or proof_threads(),
            source=source,
        )
        result = add_model(request, progress)
        shutil.rmtree(staging, ignore_errors=True)
        return result

    _finish(run, as_json)


@models.command()
@click.argument("name", required=False)
@_out
@click.option("--files-only", is_flag=True, help="Compare sizes and hashes, run nothing.")
@_threads
@_json
def verify(
    name: str | None, out: Path | None, files_only: bool, threads: int | None, as_json: bool
) -> None:
    """Check that models are what they were and still work; exit code 1 if one isn't.

    Files are compared with the manifest's hashes; then each variant is loaded and generates, and
    its perplexity over the text that ships with trimtab is compared with the manifest's.
    """
    from trimtab.catalog.manifest import read
    from trimtab.catalog.proof import proof_threads
    from trimtab.catalog.verify import verify_variant
    from trimtab.cli.models_progress import make_progress
    from trimtab.cli.models_tables import print_verdicts

    catalog = load_catalog([models_folder(out)])
    wanted = [name] if name else sorted(catalog.locations)
    if not wanted or (name and name not in catalog.locations):
        catalog.model(name or "")
        raise NoModelError(f"there is no model {name}")
    progress = make_progress()
    verdicts = [
        verify_variant(
            Path(catalog.locations[model_id]),
            manifest,
            variant,
            threads=threads or proof_threads(),
            files_only=files_only,
            progress=progress,
        )
        for model_id in wanted
        for manifest in (read(Path(catalog.locations[model_id])),)
        for variant in manifest.variants
    ]
    if as_json:
        click.echo(json.dumps({"variants": [asdict(verdict) for verdict in verdicts]}))
    else:
        print_verdicts(verdicts, _console())
    if any(verdict.problem for verdict in verdicts):
        raise click.exceptions.Exit(EXIT_FAILED)


def _console() -> Console:
    return Console()


def _source(name: str | None, path: Path | None) -> Any:
    """The source that the arguments name."""
    from trimtab.catalog.sources import from_path, from_recipe

    if path is not None:
        return from_path(path)
    if name in MODELS:
        return from_recipe(MODELS[name])
    known = ", ".join(MODELS)
    if name is None:
        raise UsageError("say which model to build", hint=f"Known: {known}; or --from DIR or GGUF.")
    raise UsageError(
        f"{name} isn't a model that trimtab can get by itself",
        hint=f"Known: {known}. Anything else: --from DIR or GGUF, or `trimtab models fetch`.",
    )


def _variants(text: str, *, with_quantized_kv: bool = False) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in RECIPES]
    if unknown or not names:
        raise UsageError(
            f"--variants: {', '.join(unknown) or 'nothing'} can't be built",
            hint=f"Choose of {', '.join(VARIANTS)}.",
        )
    if with_quantized_kv:
        names += [QUANTIZED_KV[name].name for name in names if name in QUANTIZED_KV]
    return tuple(name for name in RECIPES if name in names)


def _id_from(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name.lower()).strip("-._")


def _checked_id(model_id: str) -> str:
    good = model_id[:1].isalnum() and all(c.isalnum() or c in "._-" for c in model_id)
    if not good or not model_id.isascii() or len(model_id) > 128:
        raise UsageError(
            f"{model_id!r} can't be a model's id",
            hint="Letters, digits, dots, dashes and underscores, beginning with a letter or digit.",
        )
    return model_id


def _finish(work: Callable[[], Any], as_json: bool) -> None:
    """Do the work, and show the model that came of it; exit code 1 if a variant was refused."""
    from trimtab.cli.models_tables import manifest_json, print_model

    try:
        result = work()
    except TrimtabError as error:
        if as_json:
            click.echo(json.dumps({"error": {"code": error.code, "message": error.message}}))
        raise
    refused = [{"variant": entry.name, "reason": entry.reason} for entry in result.refused]
    if as_json:
        value = {"folder": str(result.folder), "built": list(result.built), "refused": refused}
        click.echo(json.dumps({**value, "model": manifest_json(result.manifest)}))
    else:
        console = _console()
        print_model(result.manifest, console)
        there = "" if result.built or refused else " Nothing was to be done: it was all there."
        console.print(f"In {result.folder}.{there}", highlight=False, soft_wrap=True)
        for entry in refused:
            console.print(f"[red]Not published:[/red] {entry['reason']}", highlight=False)
    if refused:
        raise click.exceptions.Exit(EXIT_FAILED)
