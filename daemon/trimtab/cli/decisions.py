"""`trimtab decisions` and `trimtab why`: what was decided, and the reasons."""

from __future__ import annotations

from typing import Any

import click

from trimtab.api.client import PREFIX, Client, connect
from trimtab.cli.settings import json_option, loaded, print_json, styled, wrapped
from trimtab.telemetry.explain import decision_of, explain, headline
from trimtab.telemetry.words import clock_time

NOTHING_YET = "No decision has been made yet: the operating point is what the policy started with."


@click.command()
@click.argument("number", type=click.IntRange(1), required=False)
@json_option
@click.pass_context
def why(ctx: click.Context, number: int | None, as_json: bool) -> None:
    """Explain the last decision, or the one with this NUMBER, in sentences.

    What was seen, what was chosen, what lost and why, and what came of it. Without a NUMBER also
    what is kept for heat only since it is predicted to get too hot again without it.
    """
    with connect(loaded(ctx)) as client:
        record = _one(client, number)
        kept = "" if number or as_json else client.get(f"{PREFIX}/status").get("heat_kept", "")
    if as_json:
        print_json(record)
    elif record is None:
        click.echo(NOTHING_YET)
    else:
        click.echo(wrapped(explain(record), indent=9))
        for line in _excluded(record):
            click.echo(line)
    if kept:
        click.echo(wrapped(f"Now {kept}.", indent=4))


@click.command()
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with new ones as they are made.")
@json_option
@click.pass_context
def decisions(ctx: click.Context, limit: int, follow: bool, as_json: bool) -> None:
    """List the newest decisions, one a line; with --json one object a line."""
    with connect(loaded(ctx)) as client:
        records = client.get(f"{PREFIX}/decisions", limit=limit)["decisions"]
        for record in records:
            _print(record, as_json)
        if not records and not follow and not as_json:
            click.echo(NOTHING_YET)
        if follow:
            for record in client.events("GET", f"{PREFIX}/decisions/stream"):
                _print(record, as_json)


def _one(client: Client, number: int | None) -> Any:
    if number is not None:
        return client.get(f"{PREFIX}/decisions/{number}")
    newest = client.get(f"{PREFIX}/decisions", limit=1)["decisions"]
    return newest[-1] if newest else None


def _print(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    decision = decision_of(record)
    outcome = ""
    if decision.outcome and decision.outcome.kind == "failed":
        outcome = styled(f" [failed: {decision.outcome.reason}]", fg="red")
    elif decision.outcome and decision.outcome.kind == "superseded":
        outcome = styled(" [superseded]", dim=True)
    line = wrapped(
        f"#{decision.id:<4} {clock_time(record['wall_s'])} {headline(decision)}", indent=15
    )
    click.echo(f"{line}{outcome}")


def _excluded(record: dict[str, Any]) -> list[str]:
    decision = decision_of(record)
    if not decision.excluded:
        return []
    lines = [styled("Left out:", dim=True)]
    return lines + [
        wrapped(f"  {one.point.describe()}: {one.reason}", indent=4) for one in decision.excluded
    ]
