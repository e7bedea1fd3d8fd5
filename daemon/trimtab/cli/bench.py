"""`trimtab bench`: figures, measured here and now."""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType
from typing import Any

import click

from trimtab.bench.machine import machine, versions
from trimtab.bench.registry import BENCHMARKS, Benchmark
from trimtab.errors import UsageError


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on the last line.")
@click.option("--quick", is_flag=True, help="A short run that shows it works; no figure counts.")
def bench(name: str | None, as_json: bool, quick: bool) -> None:
    """Run the benchmark NAME, or list them all without one.

    Whatever is compared runs in turn in one run, so that ratios hold on a busy machine too. Every
    result tells the machine, the versions and how much was run.
    """
    if name is None:
        _list(as_json)
        return
    benchmark = BENCHMARKS.get(name)
    if benchmark is None:
        raise UsageError(
            f"there is no benchmark {name}", hint=f"There is: {', '.join(BENCHMARKS)}."
        )
    if not as_json:
        click.echo(f"bench {name}: {benchmark.measures}{' (quick)' if quick else ''}")
    signal.signal(signal.SIGTERM, _end)
    facts = {"machine": machine(), "versions": versions()}
    result = benchmark.load()(quick)
    if as_json:
        click.echo(json.dumps({"bench": name, "quick": quick, **result, **facts}))
    else:
        _table(benchmark, result)
        click.echo(_conditions(facts["machine"], result))


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends it like Ctrl-C: daemons and folders are cleared away first."""
    sys.exit(128 + number)


def _list(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({name: one.measures for name, one in BENCHMARKS.items()}))
        return
    width = max(map(len, BENCHMARKS))
    for name, one in BENCHMARKS.items():
        click.echo(f"{name:<{width}}  {one.measures}")


def _table(benchmark: Benchmark, result: dict[str, Any]) -> None:
    """What is to be reached and what was, a line a field."""
    width = max(len(target.field) for target in benchmark.targets)
    for target in benchmark.targets:
        value = result.get(target.field)
        verdict = {True: "reached", False: "not reached", None: ""}[target.reached(result)]
        if not target.describe():
            verdict = ""
        told = (
            f"  {target.field:<{width}}  {_amount(value):>10}  {target.describe():<10}  {verdict}"
        )
        click.echo(told.rstrip())


def _amount(value: Any) -> str:
    if value is None:
        return "not measured"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _conditions(facts: dict[str, Any], result: dict[str, Any]) -> str:
    told = f"  on {facts['cpu']}, {facts['cores']} cores, load {facts['load_1m']} before"
    runs = result.get("runs")
    if isinstance(runs, dict):
        told += "; " + ", ".join(f"{name} {value}" for name, value in runs.items())
    elif runs is not None:
        told += f"; runs {runs}"
    return told
