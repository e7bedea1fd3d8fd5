"""`trimtab policy trial`: waits for a trial in the running daemon, and tells what came of it."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from trimtab.api.client import PREFIX, Client, connect
from trimtab.config.load import Loaded
from trimtab.domain.readings import Unit
from trimtab.errors import UsageError
from trimtab.policy.units import format_duration, format_quantity

POLL_S: Final = 1.0
_PATH: Final = f"{PREFIX}/trial"
_MOST_SPANS: Final = 20


def run_trial(
    loaded: Loaded, text: str | None, duration: str, *, detach: bool, stop: bool
) -> dict[str, Any]:
    """Start, stop or look at a trial, and wait for its end.

    Args:
        loaded: The configuration, for the socket.
        text: The candidate; None looks at the last trial.
        duration: How long.
        detach: Don't wait.
        stop: End what is running.

    Returns:
        The report.

    Raises:
        UsageError: There has been no trial.
        TrimtabError: The daemon refused.
    """
    with connect(loaded, orders=stop or text is not None) as client:
        if stop:
            return _report(client.call("DELETE", _PATH))
        if text is None:
            return _report(client.get(_PATH))
        report = _report(client.call("PUT", _PATH, {"text": text, "for": duration}))
        return report if detach else _wait(client, report)


def report_text(report: dict[str, Any]) -> str:
    """The report in sentences and a small table."""
    compared = report["compared_s"]
    apart = report["apart_s"]
    state = "is being tried" if report["running"] else "was tried"
    lines = [f"{report['policy']} {state} in shadow for {_time(compared)}."]
    if compared <= 0:
        return f"{lines[0]} Nothing has been compared yet."
    if apart <= 0:
        lines.append("It would have been at the same operating point all the time.")
    else:
        share = apart / compared
        lines.append(f"It would have been elsewhere for {_time(apart)} ({share:.0%}).")
    lines += ["", *_table(report["in_force"], report["candidate"])]
    if report["spans"]:
        lines += ["", "Where they would have been apart:"]
        lines += [_span(span) for span in report["spans"][:_MOST_SPANS]]
        more = len(report["spans"]) - _MOST_SPANS
        if more > 0:
            lines.append(f"  and {more} more times")
    return "\n".join(lines)


def _wait(client: Client, report: dict[str, Any]) -> dict[str, Any]:
    """Look again until the trial is over; Ctrl-C ends it."""
    try:
        while report["running"]:
            time.sleep(POLL_S)
            report = _report(client.get(_PATH))
            if sys.stderr.isatty():
                click.echo(f"\r{_time(report['compared_s'])} compared ", nl=False, err=True)
    except KeyboardInterrupt:
        report = _report(client.call("DELETE", _PATH))
    if sys.stderr.isatty():
        click.echo("", err=True)
    return report


def _report(answer: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] | None = answer.get("trial")
    if report is None:
        raise UsageError("no policy has been tried", hint="`trimtab policy trial FILE --for 10m`")
    return report


def _table(real: dict[str, Any], candidate: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "in force", "candidate")]
    for label, key, shown in (
        ("mean quality", "quality_ratio", lambda value: f"{value:.3f}"),
        ("predicted tokens/s", "decode_tps", lambda value: f"{value:.1f}"),
        ("least memory available", "least_available_bytes", _size),
        ("time under its headroom", "below_headroom_s", _time),
        ("time parked", "parked_s", _time),
        ("changes of the variant", "switches", str),
        ("decisions", "decisions", str),
    ):
        values = ["-" if side[key] is None else shown(side[key]) for side in (real, candidate)]
        rows.append((label, *values))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}" for row in rows
    ]


def _span(span: dict[str, Any]) -> str:
    when = f"{_time(span['from_s'])} to {_time(span['to_s'])}"
    why = f" ({span['why']})" if span["why"] else ""
    return f"  {when}: {span['candidate']} instead of {span['in_force']}{why}"


def _size(value: float) -> str:
    return format_quantity(value, Unit.BYTES)


def _time(value: float) -> str:
    return format_duration(round(value))
