"""`trimtab points`: every operating point, what is expected of it, and why it isn't in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from trimtab.api.client import PREFIX, connect
from trimtab.cli.settings import json_option, loaded, print_json, styled
from trimtab.domain.decisions import Grounds
from trimtab.telemetry.words import grounds_words, point_words, size

_HEAD = ("", "point", "memory", "tokens/s", "full", "from", "quality", "")


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Show those that are out too.")
@json_option
@click.pass_context
def points(ctx: click.Context, everything: bool, as_json: bool) -> None:
    """List operating points with what is expected of each, and why it isn't in force."""
    with connect(loaded(ctx)) as client:
        found = client.get(f"{PREFIX}/points")["points"]
    if as_json:
        print_json(found)
        return
    out = [one for one in found if one["reason"]]
    shown = found if everything else [one for one in found if one not in out or one["in_force"]]
    for line in table([_HEAD, *map(_cells, shown)]):
        click.echo(line)
    hidden = len(found) - len(shown)
    if hidden:
        click.echo(
            styled(f"{hidden} more are out now; `--all` shows them with the reason.", dim=True)
        )


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    predicted = one["predicted"]
    decode, full = predicted["decode_tps"], predicted.get("full_tps")
    grounds = msgspec.convert(predicted.get("grounds", {}), Grounds)
    return (
        "▶" if one["in_force"] else "",
        point_words(one["point"]),
        size(predicted["memory_bytes"]),
        "?" if decode is None else f"{decode:.0f}",
        "?" if full is None else f"{full:.0f}",
        "" if decode is None else grounds_words(grounds),
        f"{predicted['quality_ratio']:.3f}",
        one["reason"] or one["passed_over"],
    )


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their widest cell; the last one is free."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
