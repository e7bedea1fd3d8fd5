"""`trimtab replay`: a recording through the core again."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trimtab.cli.settings import json_option, print_json

if TYPE_CHECKING:
    from trimtab.domain.decisions import Decision
    from trimtab.policy.compiled import Policy
    from trimtab.telemetry.recording import Rerun


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Decide by this policy file instead of what was in force.",
)
@json_option
def replay(file: Path, policy_file: Path | None, as_json: bool) -> None:
    """Run the recording FILE through the controller again, and compare the decisions.

    With the same policies the decisions are the same; exit code 1 if they aren't. With --policy it
    tells what another policy would have decided on the same signals.
    """
    from trimtab.telemetry.recording import read_recording, rerun

    recording = read_recording(file)
    again = rerun(recording, None if policy_file is None else _policy(policy_file))
    if as_json:
        print_json(_plain(again, recording.cut))
    else:
        _tell(again, recording.cut)
    if again.differences and policy_file is None:
        sys.exit(1)


def _policy(path: Path) -> Policy:
    from trimtab.errors import PolicyError
    from trimtab.policy.load import load_policy
    from trimtab.policy.problems import describe

    result = load_policy(path, path.parent, device=None)
    if result.policy is None:
        raise PolicyError(describe(result.problems))
    return result.policy


def _plain(again: Rerun, cut: bool) -> dict[str, object]:
    return {
        "events": again.events,
        "decisions": len(again.decisions),
        "identical": not again.differences,
        "cut": cut,
        "differences": [asdict(one) for one in again.differences],
    }


def _tell(again: Rerun, cut: bool) -> None:
    if cut:
        click.echo("the end of the recording is missing; what is there was run")
    verdict = "all as recorded" if not again.differences else f"{len(again.differences)} differ"
    click.echo(f"{again.events} events, {len(again.decisions)} decisions: {verdict}")
    for one in again.differences[:20]:
        click.echo(f"  {one.at_s:.1f} s: recorded {_short(one.recorded)}, now {_short(one.again)}")


def _short(decision: Decision | None) -> str:
    if decision is None:
        return "nothing"
    return f"{decision.direction} {decision.target.describe()} ({decision.trigger.text})"
