"""`trimtab simulate`: the controller through a made-up day or a published trace, in seconds."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trimtab.cli.settings import json_option, print_json
from trimtab.domain.decisions import Direction
from trimtab.errors import UsageError

if TYPE_CHECKING:
    from trimtab.simulate.report import Line
    from trimtab.simulate.run import Result
    from trimtab.simulate.scenario_set import Scenario

WORKLOADS: Final = ("chat0.3", "chat0.6", "chat0.9", "mmid", "mlarge")
TRACES: Final = ("chat", "code", "long")


@click.command()
@click.argument("scenario", required=False)
@click.option(
    "--ladder",
    type=click.Choice(["smollm2", "llm8b"]),
    default="smollm2",
    show_default=True,
    help="Whose variants, on a gateway day.",
)
@click.option(
    "--workload",
    type=click.Choice(WORKLOADS),
    default="chat0.6",
    show_default=True,
    help="Who asks, on a gateway day: chat at a load, or a client recorded at the edge.",
)
@click.option("--seed", type=int, default=11, show_default=True, help="Of a gateway day.")
@click.option("--load", type=float, help="Of a trace: work on the best variant ÷ time.")
@click.option("--window", type=int, help="Of a trace: which block of 1000 requests.")
@click.option("--disturbed", is_flag=True, help="A trace with throttling and stolen memory.")
@click.option(
    "--heat",
    "rise_celsius",
    type=click.FloatRange(0, 200),
    metavar="CELSIUS",
    help="The device gets so much warmer than 25 °C at full load, and throttles at 95 °C. "
    "The controller keeps 80 °C.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it: run.png.")
@click.option("--alone", is_flag=True, help="The controller only, nothing to compare it with.")
@json_option
def simulate(
    scenario: str | None,
    ladder: str,
    workload: str,
    seed: int,
    load: float | None,
    window: int | None,
    disturbed: bool,
    rise_celsius: float | None,
    plot: Path | None,
    alone: bool,
    as_json: bool,
) -> None:
    """Run SCENARIO, a gateway day or a trace, through the real controller; or list them all.

    A request scores the quality of the variants that served it if it met its objectives, else
    nothing. Each fixed choice gets the same scheduler, so that what is gained by switching shows.
    """
    from trimtab.simulate.heat import Board
    from trimtab.simulate.report import controller, lines
    from trimtab.simulate.scenario_set import day_names

    if scenario is None:
        _list(day_names(), as_json)
        return
    if scenario in day_names():
        chosen = _day(scenario, ladder, workload, seed)
    elif scenario in TRACES:
        chosen = _trace(scenario, load, window, disturbed)
    else:
        names = ", ".join((*day_names(), *TRACES))
        raise UsageError(f"there is no scenario {scenario}", hint=f"There is: {names}.")
    board = None if rise_celsius is None else Board(rise_celsius=rise_celsius)
    result = controller(chosen, board)
    told = lines(chosen, result, board) if not alone else lines_of_one(result)
    if plot is not None:
        from trimtab.simulate.plot import draw

        draw(chosen, result, plot)
    if as_json:
        print_json(_plain(chosen, result, told))
    else:
        _table(chosen, result, told)


def lines_of_one(result: Result) -> list[Line]:
    """The controller alone."""
    from trimtab.simulate.report import Line

    return [Line("trimtab", result.score, result.met_ratio, result.switches)]


def _list(days: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json({"days": list(days), "traces": list(TRACES)})
        return
    click.echo(f"gateway days: {', '.join(days)}")
    click.echo(f"traces:       {', '.join(TRACES)}")


def _day(name: str, ladder_name: str, workload: str, seed: int) -> Scenario:
    from trimtab.simulate.scenario_set import Half, day_scenario, ladder

    position = WORKLOADS.index(workload)
    return day_scenario(name, ladder(ladder_name), Half.REPORT, position, seed)


def _trace(kind: str, load: float | None, window: int | None, disturbed: bool) -> Scenario:
    from trimtab.simulate.scenario_set import Half, trace_scenarios

    disturbance = "th_mem" if disturbed else "none"
    everything = [
        one
        for half in Half
        for one in trace_scenarios(half, kind)
        if f"-{disturbance}-switch0.5" in one.name
    ]
    fitting = [
        one
        for one in everything
        if (load is None or f"-rho{load:g}" in one.name.replace("rho1.0", "rho1"))
        and (window is None or one.name.startswith(f"{kind}-{window}-"))
    ]
    if not fitting:
        names = sorted({one.name.split(f"-{disturbance}")[0] for one in everything})
        raise UsageError(
            f"{kind} has no such window and load", hint=f"There is: {', '.join(names)}."
        )
    return fitting[0]


def _plain(scenario: Scenario, result: Result, told: list[Line]) -> dict[str, object]:
    from dataclasses import asdict

    heat = {} if not isfinite(result.hottest_celsius) else _heat(result)
    return {
        "scenario": scenario.name,
        "requests": len(scenario.trace),
        "hours": scenario.length_s / 3600,
        "shed": result.shed,
        "switching_s": result.switching_s,
        "points": [{"at_s": at_s, "variant": variant} for at_s, variant in result.points],
        "results": [asdict(line) for line in told],
        **heat,
    }


def _heat(result: Result) -> dict[str, object]:
    return {
        "hottest_celsius": result.hottest_celsius,
        "over_limit_s": result.over_limit_s,
        "throttled_s": result.throttled_s,
        "moves": [{"at_s": at_s, "point": point.describe()} for at_s, point in result.moves],
    }


def _table(scenario: Scenario, result: Result, told: list[Line]) -> None:
    hours = scenario.length_s / 3600
    click.echo(
        f"{scenario.name}: {len(scenario.trace)} requests in {hours:.1f} h, "
        f"{result.shed} refused, {result.switching_s:.1f} s of switching"
    )
    heated = isfinite(result.hottest_celsius)
    if heated:
        click.echo(
            f"hottest {result.hottest_celsius:.0f} °C, {result.over_limit_s:.0f} s over the limit, "
            f"{result.throttled_s:.0f} s throttled"
        )
    width = max(len(line.name) for line in told)
    click.echo(f"{'':<{width}}  score  in time  switches")
    for line in told:
        met = "" if line.met_ratio is None else f"{line.met_ratio:.1%}"
        switches = "" if line.switches is None else str(line.switches)
        row = f"{line.name:<{width}}  {line.score:.3f}  {met:>7}  {switches:>8}  {line.note}"
        click.echo(row.rstrip())
    moves = [one for one in result.decisions if one.direction is not Direction.SHED]
    for record in moves[:12]:
        at = f"{int(record.at_s // 3600):02d}:{int(record.at_s % 3600 // 60):02d}"
        target = record.target.describe() if heated else record.target.variant
        click.echo(f"  {at}  {record.direction} {target}: {record.trigger.text}")
    if len(moves) > 12:
        click.echo(f"  … and {len(moves) - 12} more")
