"""`trimtab push`: a value of one's own as a signal."""

from __future__ import annotations

import math

import click

from trimtab.api.client import PREFIX, connect
from trimtab.cli.settings import json_option, loaded, print_json
from trimtab.domain.readings import Unit
from trimtab.telemetry.words import amount


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("value", type=float)
@click.option(
    "--unit", type=click.Choice([unit.value for unit in Unit]), required=True, help="Its unit."
)
@click.option(
    "--for", "duration", metavar="TIME", required=True, help="How long it counts, such as 1m."
)
@click.option("--low", type=float, help="Least plausible value.")
@click.option("--high", type=float, help="Greatest plausible value.")
@json_option
@click.pass_context
def push(
    ctx: click.Context,
    name: str,
    value: float,
    unit: str,
    duration: str,
    low: float | None,
    high: float | None,
    as_json: bool,
) -> None:
    """Tell the daemon a value; rules see it as custom.NAME until its time is over.

    Push it again before that: `trimtab push visitors 3 --unit count --for 5m`. A value outside of
    --low and --high is suspect, and no rule decides on it.
    """
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number", param_hint="VALUE")
    body = {"name": name, "value": value, "unit": unit, "for": duration, "low": low, "high": high}
    with connect(loaded(ctx), orders=True) as client:
        told = client.call("POST", f"{PREFIX}/signals", body)
    if as_json:
        print_json(told)
        return
    doubt = f"; suspect: {told['reason']}" if told["quality"] != "good" else ""
    click.echo(f"{told['name']} is {amount(told['value'], unit)} for {duration}{doubt}.")
