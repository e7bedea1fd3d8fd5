"""`trimtab profile`: measure this device, show what was measured, compare variants' quality."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console

from trimtab.catalog.load import load_catalog
from trimtab.cli.profile_tables import ProfileProgress, print_profile
from trimtab.cli.settings import json_option, loaded
from trimtab.config.engine_threads import default_threads
from trimtab.config.schema import Config
from trimtab.domain.models import ModelSpec
from trimtab.domain.profile import Profile
from trimtab.errors import NoModelError, UsageError
from trimtab.profile.here import engine_changes, foreign, this_device, variant_changes, versions
from trimtab.profile.runner import Reporter
from trimtab.profile.schedule import cost_s
from trimtab.profile.start import Surroundings, be_modest, extent_of, look, measure
from trimtab.profile.store import load_profile, profile_path, save_profile
from trimtab.runtime.clock import SystemClock

NICE: Final = 10
INTERRUPTED: Final = 130


@click.command()
@click.option("--model", "model_id", metavar="ID", help="Which model. Default: the one to serve.")
@click.option("--quick", is_flag=True, help="The most telling figures, in under a minute.")
@click.option("--fresh", is_flag=True, help="Measure again what is known already.")
@click.option("--again", is_flag=True, help="Measure again what was measured beside other work.")
@click.option("--show", is_flag=True, help="Show what was measured; measure nothing.")
@click.option("--quality", is_flag=True, help="Compare the variants' quality too.")
@click.option(
    "--text",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Compare their quality over this text. Implies --quality.",
)
@click.option(
    "--prompts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Compare their quality over these prompts (JSON lines: task, prompt, expected). "
    "Implies --quality.",
)
@click.option(
    "--nice",
    type=click.IntRange(0, 19),
    default=NICE,
    show_default=True,
    help="Priority: 19 is the lowest.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw what was measured, memory against speed, into this PNG.",
)
@json_option
@click.pass_context
def profile(
    ctx: click.Context,
    model_id: str | None,
    quick: bool,
    fresh: bool,
    again: bool,
    show: bool,
    quality: bool,
    text: Path | None,
    prompts: Path | None,
    nice: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure what each variant of the model really does on this device.

    Memory bandwidth, load times, memory, speeds over context and threads, drafting, hand-over and
    offload. Results are kept in the state directory after every step: an interrupted run goes on
    where it stopped. The planner uses them from the daemon's next start on.

    Times don't include the time in which other programs had the core; samples that were disturbed
    all the same are marked.
    """
    config = loaded(ctx).config
    model = chosen_model(config, model_id)
    console = Console(stderr=as_json)
    compares = quality or text is not None or prompts is not None
    if show and (compares or fresh or again or quick):
        raise UsageError("--show measures nothing", hint="Leave it out to measure.")
    if show:
        found = _show(config, model)
    else:
        be_modest(nice)
        reporter = ProfileProgress(console)
        with reporter:
            found = _measure(config, model, quick, reporter, fresh=fresh, again=again)
        if compares:
            found = _compare(config, model, found, text, prompts, console)
    if plot is not None:
        from trimtab.cli.profile_plot import draw

        draw(found, model, plot)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        print_profile(found, model, console)


def chosen_model(config: Config, model_id: str | None) -> ModelSpec:
    """The model that a command is about.

    Raises:
        NoModelError: There is none, or several and none is chosen.
    """
    catalog = load_catalog(config.models)
    wanted = model_id or config.model
    if wanted is None and len(catalog.models) > 1:
        names = ", ".join(sorted(catalog.models))
        raise NoModelError(f"there are several models: {names}", hint="Say which with --model ID.")
    return catalog.model(wanted or next(iter(catalog.models), ""))


def _measure(
    config: Config,
    model: ModelSpec,
    quick: bool,
    reporter: Reporter,
    *,
    fresh: bool,
    again: bool,
) -> Profile:
    clock = SystemClock()
    extent = extent_of(quick)
    surroundings = Surroundings(config, clock)
    try:
        cores = this_device(config.sensors.proc_root, surroundings.board).cores
        usual = config.engine.threads or default_threads(cores)
        kept = look(
            config,
            model,
            extent,
            clock,
            board=surroundings.board,
            usual_threads=usual,
            fresh=fresh,
            disturbed=again,
        )
        for reason in kept.reasons:
            reporter.say(f"measured again, since {reason}")
        if not kept.left:
            reporter.say(_all_known(kept.profile))
            return kept.profile
        done = len(kept.profile.measurements)
        if done:
            reporter.say(f"{done} measurements are there already")
        reporter.say(f"about {_minutes(cost_s(kept.left))} on a quiet machine")
        return asyncio.run(
            measure(config, model, kept, extent, surroundings, clock, reporter, disturbed=again)
        )
    except KeyboardInterrupt:
        path = profile_path(config.state, model.model_id)
        click.echo(f"\ninterrupted; what was measured is in {path}.", err=True)
        click.echo("  The same command goes on where it stopped.", err=True)
        sys.exit(INTERRUPTED)
    finally:
        surroundings.close()


def _all_known(profile: Profile) -> str:
    """That nothing is left to measure, and what could be measured better."""
    doubtful = sum(one.disturbed for one in profile.measurements)
    if not doubtful:
        return "everything was measured already; --fresh measures it again"
    return (
        f"everything was measured already, {doubtful} of {len(profile.measurements)} beside other "
        "work; --again measures those again"
    )


def _show(config: Config, model: ModelSpec) -> Profile:
    """What is kept, with a word about what isn't true any more."""
    found = load_profile(config.state, model.model_id)
    if found is None:
        raise UsageError(
            f"{model.model_id} was never measured on this device",
            hint="`trimtab profile --quick` takes less than a minute.",
        )
    surroundings = Surroundings(config, SystemClock())
    try:
        device = this_device(config.sensors.proc_root, surroundings.board)
    finally:
        surroundings.close()
    reason = foreign(found, device)
    reasons = (
        (reason,)
        if reason
        else (*engine_changes(found, versions()), *variant_changes(found, model).values())
    )
    for text in reasons:
        click.echo(f"not true any more: {text}", err=True)
    if reasons:
        click.echo("  `trimtab profile` measures what has changed.", err=True)
    return found


def _compare(
    config: Config,
    model: ModelSpec,
    found: Profile,
    text: Path | None,
    prompts: Path | None,
    console: Console,
) -> Profile:
    """Measure quality and keep it with the rest."""
    from trimtab.profile.quality import compare
    from trimtab.profile.tasks import read_tasks

    tasks = read_tasks(text, prompts)
    result = compare(model, tasks, config.cache, lambda note: console.print(f"  {note}"))
    source = str(prompts or text or "the text that ships with trimtab")
    found = replace(found, quality=result, quality_source=source)
    save_profile(config.state, found)
    return found


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
