"""`trimtab policy`: check, test, show and compare policies, and change the one in force."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from trimtab.cli.settings import json_option, loaded, print_json, styled
from trimtab.config.load import Loaded
from trimtab.domain.models import ModelSpec

if TYPE_CHECKING:
    from trimtab.policy.effective import EffectiveValue

EXIT_FAILED: Final = 1

_model_option = click.option(
    "--model", "model_id", metavar="ID", help="Check against the variants of this model."
)


class _Group(click.Group):
    """Takes `test` from its own module, which the other commands needn't import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, by name."""
        return sorted([*super().list_commands(ctx), "test"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One command; None if there is no such name."""
        if cmd_name == "test":
            from trimtab.cli.policy_test import test_command

            return test_command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Group)
def policy() -> None:
    """Check, test, show and compare policies, and change the one in force.

    A policy is named by its file or, if it lies in the policy folder or comes with trimtab, by its
    name. `docs/policies.md` explains the language.
    """


@policy.command(short_help="Check policies: every error at once.")
@click.argument("paths", nargs=-1, metavar="[FILE|FOLDER|NAME]...")
@_model_option
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@json_option
@click.pass_context
def check(
    ctx: click.Context, paths: tuple[str, ...], model_id: str | None, strict: bool, as_json: bool
) -> None:
    """Check policies: every error at once, with file, line and what to write instead.

    Without arguments, all policies of the policy folder are checked. Ends with 1 if there is an
    error.
    """
    from trimtab.policy.load import LoadResult

    model = _model(ctx, model_id)
    folder = loaded(ctx).config.policies
    results: dict[str, LoadResult] = {}
    for path in paths or (str(folder),):
        results.update(_check_one(path, folder, model))
    bad = [name for name, result in results.items() if result.policy is None]
    doubtful = [name for name, result in results.items() if result.warnings]
    if as_json:
        print_json({"policies": [_result_json(name, one) for name, one in results.items()]})
    else:
        _print_results(results)
    if bad or (strict and doubtful):
        ctx.exit(EXIT_FAILED)


@policy.command(short_help="Show a policy with the origin of every value.")
@click.argument("name", required=False)
@json_option
@click.pass_context
def show(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Show a policy as it counts: every value, and the file and line that it comes from.

    Without NAME, the one that is in force in the running daemon, and a note if its file or the
    configuration says otherwise; if no daemon runs, the policy that the configuration names. What
    is printed is a policy itself.
    """
    from trimtab.cli.policy_show import from_files, in_force
    from trimtab.policy.effective import show_policy

    settings = loaded(ctx)
    shown = from_files(name, settings) if name else in_force(settings)
    if as_json:
        print_json(shown)
        return
    for note in shown.notes:
        click.echo(styled(f"# {note}", dim=True))
    click.echo(show_policy(shown.effective()), nl=False)


@policy.command(short_help="Compare two policies by what counts.")
@click.argument("before")
@click.argument("after")
@json_option
@click.pass_context
def diff(ctx: click.Context, before: str, after: str, as_json: bool) -> None:
    """Compare two policies by what counts: defaults and extended policies included.

    Ends with 1 if they differ.
    """
    from trimtab.policy.effective import differences

    settings = loaded(ctx)
    changes = differences(_effective(before, settings), _effective(after, settings))
    if as_json:
        print_json([asdict(change) for change in changes])
    elif not changes:
        click.echo(f"{before} and {after} come to the same.")
    for change in () if as_json else changes:
        click.echo(change.path)
        if change.before:
            click.echo(styled(f"  - {change.before}", fg="red"))
        if change.after:
            click.echo(styled(f"  + {change.after}", fg="green"))
    if changes:
        ctx.exit(EXIT_FAILED)


@policy.command(short_help="Print the JSON Schema, for editors.")
@click.option("--reference", "as_reference", is_flag=True, help="Markdown for people instead.")
@click.option("--scenarios", is_flag=True, help="Of scenario tests; always Markdown.")
def schema(as_reference: bool, scenarios: bool) -> None:
    """Print the JSON Schema of policies, for editors.

    Put this line first in a policy, and editors with a YAML language server complete and check it:

    # yaml-language-server: $schema=policy.schema.json
    """
    from trimtab.policy.reference import json_schema_text, reference, tables

    if scenarios:
        from trimtab.simulate.scenario_schema import ScenarioFile

        click.echo("\n".join(tables("A file of scenarios", ScenarioFile)))
        return
    click.echo(reference() if as_reference else json_schema_text(), nl=False)


@policy.command(short_help="Put another policy in force.")
@click.argument("name")
@json_option
@click.pass_context
def use(ctx: click.Context, name: str, as_json: bool) -> None:
    """Put another policy in force in the running daemon, by its name.

    Streams go on, and a loaded variant that the new policy allows stays loaded. The choice survives
    a restart, until the configuration names another policy.
    """
    from trimtab.api.client import PREFIX, connect

    with connect(loaded(ctx), orders=True) as client:
        view = client.call("PUT", f"{PREFIX}/policy", {"policy": name})
    _print_view(view, as_json)


@policy.command(short_help="Have the policy read again now.")
@json_option
@click.pass_context
def reload(ctx: click.Context, as_json: bool) -> None:
    """Have the running daemon read its policy again. It also notices changes by itself."""
    from trimtab.api.client import PREFIX, connect

    with connect(loaded(ctx), orders=True) as client:
        view = client.call("POST", f"{PREFIX}/reload")
    _print_view(view, as_json)


@policy.command(short_help="Try a policy in shadow.")
@click.argument("name", metavar="[FILE|NAME]", required=False)
@click.option("--for", "duration", default="10m", show_default=True, help="How long.")
@click.option("--detach", is_flag=True, help="Start it and come back at once.")
@click.option("--stop", is_flag=True, help="End the trial that is running, and report.")
@json_option
@click.pass_context
def trial(
    ctx: click.Context, name: str | None, duration: str, detach: bool, stop: bool, as_json: bool
) -> None:
    """Try a policy in shadow: it sees what the running daemon sees, and acts on nothing.

    Reports where it would have decided otherwise, and what it predicts that this would have
    changed. Without FILE, the report of the last trial is shown. Ctrl-C ends the trial and reports.
    """
    from trimtab.cli.policy_trial import run_trial

    text = None
    if name is not None:
        from trimtab.policy.effective import show_policy

        text = show_policy(_effective(name, loaded(ctx)))
    report = run_trial(loaded(ctx), text, duration, detach=detach, stop=stop)
    if as_json:
        print_json(report)
        return
    from trimtab.cli.policy_trial import report_text

    click.echo(report_text(report))


@policy.command("list", short_help="List policies: your own, and the shipped ones.")
@json_option
@click.pass_context
def list_policies(ctx: click.Context, as_json: bool) -> None:
    """List the policies of the policy folder and those that come with trimtab."""
    from trimtab.policy.load import load_folder
    from trimtab.policy.shelf import shipped_folder

    config = loaded(ctx).config
    rows: list[dict[str, Any]] = []
    for folder in dict.fromkeys((config.policies, shipped_folder())):
        if not folder.is_dir():
            continue
        for path, result in load_folder(folder).items():
            found = result.policy
            rows.append(
                {
                    "name": found.name if found else path.stem,
                    "file": str(path),
                    "description": found.description if found else "has errors",
                    "in_configuration": bool(found and found.name == config.policy),
                    "sound": found is not None,
                }
            )
    if as_json:
        print_json({"policies": rows})
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        mark = "*" if row["in_configuration"] else " "
        name = styled(f"{row['name']:<{width}}", bold=True, fg=None if row["sound"] else "red")
        click.echo(f"{mark} {name}  {row['description']}")


def _model(ctx: click.Context, model_id: str | None) -> ModelSpec | None:
    if model_id is None:
        return None
    from trimtab.catalog.load import load_catalog

    return load_catalog(loaded(ctx).config.models).model(model_id)


def _check_one(path: str, folder: Path, model: ModelSpec | None) -> dict[str, Any]:
    """The results of one argument: a folder, a file or a name."""
    from trimtab.policy.compile import device_variants
    from trimtab.policy.load import load_folder, load_policy

    device = device_variants(model)
    if Path(path).is_dir():
        results = load_folder(Path(path), device)
        return {str(file): result for file, result in results.items()}
    return {path: load_policy(path, folder, device)}


def _effective(name: str, settings: Loaded) -> tuple[EffectiveValue, ...]:
    from trimtab.cli.policy_show import from_files

    return from_files(name, settings).effective()


def _print_results(results: dict[str, Any]) -> None:
    from trimtab.telemetry.words import counted

    for name, result in results.items():
        for problem in result.problems:
            colour = "red" if problem.severity == "error" else "yellow"
            place, found, rest = problem.text().partition(f" {problem.severity}: ")
            click.echo(place + styled(found, fg=colour) + rest)
        if result.policy is not None:
            click.echo(f"{name}: {styled('ok', fg='green')} (revision {result.policy.revision})")
    errors = sum(len(result.errors) for result in results.values())
    warnings = sum(len(result.warnings) for result in results.values())
    click.echo(
        f"{counted(len(results), 'policy', 'policies')}, {counted(errors, 'error')}, "
        f"{counted(warnings, 'warning')}"
    )


def _print_view(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    click.echo(f"In force: {view['name']}, revision {view['revision']}.")


def _result_json(name: str, result: Any) -> dict[str, Any]:
    found = result.policy
    return {
        "policy": name,
        "name": found.name if found else None,
        "revision": found.revision if found else None,
        "problems": list(_problems_json(result.problems)),
    }


def _problems_json(problems: Iterable[Any]) -> Iterable[dict[str, Any]]:
    return (asdict(problem) for problem in problems)
