"""`trimtab record`: what the daemon sees and decides, to a file that can be run again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trimtab.cli.settings import json_option, loaded, print_json
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtab.config.load import Loaded
    from trimtab.domain.clock import Clock
    from trimtab.policy.compiled import Policy


class _Seconds(click.ParamType[float]):
    """A duration such as 10m."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Its seconds."""
        from trimtab.domain.readings import Unit
        from trimtab.policy.units import QuantityError, parse_quantity

        try:
            return float(parse_quantity(value, Unit.SECONDS))
        except QuantityError as error:
            self.fail(error.message, param, ctx)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--for", "for_s", type=_Seconds(), metavar="TIME", help="End after this time: 10m.")
@click.option("--direct", is_flag=True, help="Record the sensors here, even if a daemon runs.")
@json_option
@click.pass_context
def record(
    ctx: click.Context, file: Path, for_s: float | None, direct: bool, as_json: bool
) -> None:
    """Record signals, events and decisions to FILE, until --for has passed or Ctrl-C.

    Holds what the core takes in and decides, and no text of anybody's. `trimtab replay FILE` runs
    it again. Without a daemon, the signals of this machine alone are recorded.
    """
    from trimtab.runtime.clock import SystemClock
    from trimtab.telemetry.recording import RecordingWriter

    settings, clock = loaded(ctx), SystemClock()
    counts = {"event": 0, "decision": 0}
    began_s, broken = clock.monotonic_s(), ""
    lines = _open(settings, clock, direct=direct)
    with RecordingWriter(file) as writer:
        try:
            for line in lines:
                writer.write(line)
                if line["kind"] in counts:
                    counts[line["kind"]] += 1
                seconds = clock.monotonic_s() - began_s
                _progress(seconds, counts)
                if for_s is not None and seconds >= for_s:
                    break
        except KeyboardInterrupt:
            pass
        except TrimtabError as error:  # the daemon went away; what it told is kept
            if not writer.lines:
                raise
            broken = error.message
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    _report(file, counts, clock.monotonic_s() - began_s, as_json=as_json)
    if broken:
        click.echo(f"trimtab: the recording ends early: {broken}", err=True)
        ctx.exit(1)


def _progress(seconds: float, counts: dict[str, int]) -> None:
    if sys.stderr.isatty():
        told = f"{seconds:.0f} s, {counts['event']} events, {counts['decision']} decisions"
        click.echo(f"\r\x1b[Krecording: {told}; Ctrl-C ends", nl=False, err=True)


def _report(file: Path, counts: dict[str, int], seconds: float, *, as_json: bool) -> None:
    size_bytes = file.stat().st_size
    if as_json:
        print_json(
            {
                "file": str(file),
                "seconds": round(seconds, 3),
                "events": counts["event"],
                "decisions": counts["decision"],
                "bytes": size_bytes,
            }
        )
        return
    click.echo(
        f"{file}: {counts['event']} events and {counts['decision']} decisions "
        f"in {seconds:.0f} s, {size_bytes / 1024:.0f} KiB"
    )


def _open(settings: Loaded, clock: Clock, *, direct: bool) -> Iterator[dict[str, Any]]:
    """The lines of the daemon's recording, or of one that is made here."""
    from trimtab.api.client import PREFIX, connect
    from trimtab.errors import NotRunningError

    if not direct:
        try:
            client = connect(settings, orders=True)
        except NotRunningError:
            click.echo("trimtab isn't running; the signals of this machine are recorded", err=True)
        else:
            return client.events("GET", f"{PREFIX}/recording")
    return _sensor_lines(settings, clock)


def _sensor_lines(settings: Loaded, clock: Clock) -> Iterator[dict[str, Any]]:
    """A recording of this machine's signals: the core starts empty and sees only ticks."""
    from trimtab import __version__
    from trimtab.domain.events import Tick
    from trimtab.planner import State
    from trimtab.sensors import SensorSuite
    from trimtab.sensors.configured import sensor_config
    from trimtab.telemetry.recording import event_line, start_line

    suite = SensorSuite(sensor_config(settings.config))
    try:
        yield start_line(State(), _policy(settings), __version__, clock.wall_s())
        suite.snapshot(clock.monotonic_s(), clock.wall_s())
        suite.settle(2.0)
        while True:
            now = clock.monotonic_s()
            yield event_line(Tick(now, suite.snapshot(now, clock.wall_s())))
            time.sleep(settings.config.tick_s)
    finally:
        suite.close()


def _policy(settings: Loaded) -> Policy:
    """The policy that the configuration names.

    Raises:
        PolicyError: It is bad.
    """
    from trimtab.errors import PolicyError
    from trimtab.policy.load import load_policy

    result = load_policy(settings.config.policy, settings.config.policies, device=None)
    if result.policy is None:
        raise PolicyError("; ".join(problem.message for problem in result.problems))
    return result.policy
