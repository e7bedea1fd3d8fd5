"""`trimtab pin`, `unpin`, `pause` and `resume`: what a person tells the running daemon."""

from __future__ import annotations

import click

from trimtab.api.client import PREFIX, connect
from trimtab.cli.settings import json_option, loaded, print_json
from trimtab.telemetry.words import seconds


@click.command()
@click.argument("knobs", metavar="KNOB=VALUE...", nargs=-1, required=True)
@click.option("--for", "duration", metavar="TIME", help="Until then, such as 10m. Default: unpin.")
@json_option
@click.pass_context
def pin(ctx: click.Context, knobs: tuple[str, ...], duration: str | None, as_json: bool) -> None:
    """Fix knobs of the operating point: `trimtab pin variant=int8 context=2048 --for 10m`.

    Knobs: variant, context, threads, pace (0.1 to 1). Memory safety comes before a pin, a pin
    before everything else: where no context of a pinned variant fits, the model is parked.

    A variant that is left out for now since it failed can't be pinned; the message says why, and
    for how long. One that turns out not to load takes nothing away: what served before serves on,
    or comes back, and the pinned one is tried again after a minute, then after longer and longer
    (`trimtab status` says when), until it is unpinned; what was pinned with it waits with it.
    """
    values = dict(_pair(knob) for knob in knobs)
    body = {"knobs": values} | ({"for": duration} if duration else {})
    with connect(loaded(ctx), orders=True) as client:
        told = client.call("PUT", f"{PREFIX}/pin", body)
    if as_json:
        print_json(told)
        return
    pinned = ", ".join(f"{knob}={value}" for knob, value in told["pinned"].items())
    until = "until `trimtab unpin`" if told["for_s"] is None else f"for {seconds(told['for_s'])}"
    click.echo(f"Pinned {pinned} {until}.")


@click.command()
@click.pass_context
def unpin(ctx: click.Context) -> None:
    """Take the pin off: the planner moves all knobs again."""
    with connect(loaded(ctx), orders=True) as client:
        client.call("DELETE", f"{PREFIX}/pin")
    click.echo("Nothing is pinned.")


@click.command()
@click.pass_context
def pause(ctx: click.Context) -> None:
    """Stop all steps but those for memory safety, until `trimtab resume`."""
    with connect(loaded(ctx), orders=True) as client:
        client.call("POST", f"{PREFIX}/pause")
    click.echo("Steps are stopped, but for memory safety.")


@click.command()
@click.pass_context
def resume(ctx: click.Context) -> None:
    """Start steps again."""
    with connect(loaded(ctx), orders=True) as client:
        client.call("POST", f"{PREFIX}/resume")
    click.echo("Steps go on.")


def _pair(text: str) -> tuple[str, str | int | float]:
    knob, equals, value = text.partition("=")
    if not equals or not value:
        raise click.BadParameter(f"{text!r} is no KNOB=VALUE", param_hint="KNOB=VALUE")
    return knob, _number(value)


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text.endswith("%"):
        number = _number(text[:-1])
        return number / 100 if isinstance(number, (int, float)) else text
    return text
