"""`trimtab policy test`: scenarios of policies, in simulated time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import click

from trimtab.cli.settings import json_option, loaded, print_json, styled
from trimtab.errors import PolicyError
from trimtab.policy.shelf import SCENARIO_SUFFIXES, scenario_files
from trimtab.simulate.scenario import Outcome, Scenario, load_scenarios, run_scenario
from trimtab.simulate.scenario_draw import draw_decisions, draw_miss

EXIT_FAILED: Final = 1


@click.command("test", short_help="Run scenario tests in simulated time.")
@click.argument("paths", nargs=-1, metavar="[FILE|FOLDER|NAME]...")
@click.option("--only", metavar="TEXT", help="Only scenarios whose name holds this text.")
@click.option("-v", "--verbose", is_flag=True, help="Show the decisions of every scenario.")
@json_option
@click.pass_context
def test_command(
    ctx: click.Context, paths: tuple[str, ...], only: str | None, verbose: bool, as_json: bool
) -> None:
    """Run the scenario tests that lie beside policies, in simulated time.

    Scenarios are files called NAME.test.yaml: a device, a timeline, and what is expected. They run
    through the planner that the daemon runs. A failure shows the timeline around it. Without
    arguments, all scenarios of the policy folder are run. Ends with 1 if one fails.
    """
    folder = loaded(ctx).config.policies
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    for file in _files(paths or (str(folder),), folder):
        chosen = [one for one in load_scenarios(file, folder) if not only or only in one.name]
        for scenario in chosen:
            outcome = run_scenario(scenario)
            outcomes.append(outcome)
            if not as_json:
                _print_outcome(outcome, verbose)
    if not outcomes:
        raise PolicyError("there is no such scenario", hint="scenarios are called NAME.test.yaml")
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if as_json:
        print_json({"scenarios": [_json(outcome) for outcome in outcomes], "failed": len(failed)})
    else:
        _print_summary(outcomes, time.perf_counter() - began)
    if failed:
        ctx.exit(EXIT_FAILED)


def _files(paths: tuple[str, ...], folder: Path) -> list[Path]:
    """The scenario files that are meant by folders, files, and names of policies."""
    found: list[Path] = []
    for path in paths:
        if Path(path).is_dir():
            found += scenario_files(Path(path))
        elif path.endswith((".yaml", ".yml")):
            found.append(_beside(Path(path)))
        else:
            found.append(_beside(folder / f"{path}.yaml"))
    return found


def _beside(path: Path) -> Path:
    """The scenario file of a policy file; a scenario file itself stays."""
    if path.name.endswith(SCENARIO_SUFFIXES):
        return path
    return path.with_name(path.name.removesuffix(path.suffix) + SCENARIO_SUFFIXES[0])


def _print_outcome(outcome: Outcome, verbose: bool) -> None:
    scenario = outcome.scenario
    mark = styled("✓", fg="green") if outcome.passed else styled("✗", fg="red", bold=True)
    click.echo(f"{mark} {scenario.policy.name}: {scenario.name}")
    if verbose:
        click.echo(draw_decisions(outcome.trace))
    for miss in outcome.misses:
        click.echo(f"  {scenario.file}, {draw_miss(outcome.trace, miss)}\n")


def _print_summary(outcomes: list[Outcome], took_s: float) -> None:
    failed = sum(not outcome.passed for outcome in outcomes)
    minutes = sum(outcome.scenario.for_s for outcome in outcomes) / 60
    text = f"{len(outcomes) - failed} passed, {failed} failed"
    shown = styled(text, fg="red" if failed else "green", bold=True)
    click.echo(f"{shown} ({minutes:.0f} simulated minutes in {took_s:.1f} s)")


def _json(outcome: Outcome) -> dict[str, Any]:
    scenario: Scenario = outcome.scenario
    return {
        "policy": scenario.policy.name,
        "file": scenario.file,
        "line": scenario.line,
        "name": scenario.name,
        "passed": outcome.passed,
        "decisions": len(outcome.trace.decisions),
        "misses": [
            {
                "line": miss.line,
                "at_s": miss.at_s,
                "expected": miss.expected,
                "found": miss.found,
                "timeline": draw_miss(outcome.trace, miss),
            }
            for miss in outcome.misses
        ],
    }
