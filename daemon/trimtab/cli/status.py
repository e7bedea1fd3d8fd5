"""`trimtab status`: what runs, on one screen."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from trimtab.api.client import PREFIX, connect
from trimtab.cli.settings import json_option, loaded, print_json, styled, wrapped
from trimtab.domain.decisions import Prediction
from trimtab.telemetry.explain import decision_of, headline
from trimtab.telemetry.words import clock_time, counted, point_words, seconds, size, speed_words

EXIT_NO_TOKENS: Final = 4

_COLOURS: Final[dict[str, str]] = {
    "ready": "green",
    "loading": "yellow",
    "parked": "yellow",
    "draining": "yellow",
    "no_model": "red",
    "degraded": "red",
}


@click.command()
@json_option
@click.option("--check", is_flag=True, help="Exit with 4 if tokens can't flow now.")
@click.pass_context
def status(ctx: click.Context, as_json: bool, check: bool) -> None:
    """Show what runs: operating point, policy, streams, workers, and the last decision."""
    with connect(loaded(ctx)) as client:
        now = client.get(f"{PREFIX}/status")
    if as_json:
        print_json(now)
    else:
        for line in status_lines(now):
            click.echo(line)
    if check and not now["tokens_can_flow"]:
        ctx.exit(EXIT_NO_TOKENS)


def status_lines(now: dict[str, Any]) -> list[str]:
    """The screen, line by line."""
    state = styled(now["state"].replace("_", " "), fg=_COLOURS.get(now["state"]), bold=True)
    head = f"trimtab {now['version']} is {state}"
    if now["model"]:
        head += f", serving {now['model']}"
    head += f", up {seconds(now['uptime_s'])}"
    lines = [head]
    if now["reason"]:
        lines.append(wrapped(f"  {now['reason']}", indent=2))
    lines += [_row(name, text) for name, text in _rows(now) if text]
    return lines


def _rows(now: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("point", _point(now)),
        ("context", _context(now)),
        ("expected", _expected(now.get("expected"))),
        ("policy", _policy(now["policy"])),
        ("stale", _stale(now["policy"])),
        ("streams", _streams(now)),
        *[("worker", _worker(worker)) for worker in now["workers"]],
        ("window", _window(now)),
        ("heat", now.get("heat_kept", "")),
        ("pinned", _pinned(now)),
        ("paused", "steps are stopped; `trimtab resume` starts them" if now["paused"] else ""),
        ("counts", _counts(now)),
        ("last", _last(now["last_decision"]) if now["last_decision"] else ""),
    ]


def _row(name: str, text: str) -> str:
    return wrapped(f"  {name:<8} {text}", indent=11).replace(name, styled(name, dim=True), 1)


def _last(record: dict[str, Any]) -> str:
    return f"{clock_time(record['wall_s'])} {headline(decision_of(record))}"


def _point(now: dict[str, Any]) -> str:
    told = point_words(now["point"])
    if now["target"] != now["point"]:
        told += f", moving to {point_words(now['target'])}"
    return told


def _context(now: dict[str, Any]) -> str:
    """Only where the KV pool has no room for the point's context."""
    effective, wanted = now["effective_context"], now["point"]["context"]
    if not effective or effective >= wanted:
        return ""
    return f"{effective} tokens for now: the policy's kv.pool has no room for more"


def _expected(predicted: dict[str, Any] | None) -> str:
    return "" if predicted is None else speed_words(msgspec.convert(predicted, Prediction))


def _policy(policy: dict[str, Any]) -> str:
    return f"{policy['name']} ({policy['revision']})"


def _stale(policy: dict[str, Any]) -> str:
    if not policy["stale"]:
        return ""
    return f"the policy's file is bad, so the last good one holds: {policy['error']}"


def _streams(now: dict[str, Any]) -> str:
    told = f"{now['running']} running"
    if now["waiting_turn"]:
        told += f" ({now['waiting_turn']} of them paused until it is their turn)"
    told += f", {now['queued']} queued"
    if now["held"]:
        told += f", {now['held']} held"
    return f"{told}, {now['tokens_per_s']:.1f} tokens/s"


def _worker(worker: dict[str, Any]) -> str:
    parts = [f"{worker['variant']} {worker['state']}"]
    if worker["pid"]:
        parts.append(f"pid {worker['pid']}")
    if worker["resident_bytes"]:
        parts.append(size(worker["resident_bytes"]))
    if worker["decoder"]:
        why = f" ({worker['decoder_reason']})" if worker["decoder_reason"] else ""
        parts.append(f"decoder {worker['decoder']}{why}")
    if worker["load_s"] is not None:
        parts.append(f"loaded in {seconds(worker['load_s'])}")
    if worker["draft_lost"]:
        parts.append(f"without its draft ({worker['draft_lost']})")
    return ", ".join(parts)


def _window(now: dict[str, Any]) -> str:
    """Only where conversations go on past their context: that isn't what one expects."""
    window = now["window"]
    if not window["shift"]:
        return ""
    kept = "the system prompt" if window["keep"] is None else f"{window['keep']} tokens"
    told = f"past the context the oldest is forgotten, but for {kept}; "
    told += f"{window['shifts_total']} shifts, {window['dropped_tokens_total']} tokens so far"
    reasons = sorted({worker["rereads"] for worker in now["workers"]} - {""})
    return f"{told}; what stays is read again, since {reasons[0]}" if reasons else told


def _pinned(now: dict[str, Any]) -> str:
    if not now["pinned"]:
        return ""
    knobs = ", ".join(f"{knob}={value}" for knob, value in now["pinned"].items())
    left = now["pin_expires_in_s"]
    told = f"{knobs}, " + ("until it is unpinned" if left is None else f"for {seconds(left)} more")
    return f"{told}; {now['pin_waits']}" if now.get("pin_waits") else told


def _counts(now: dict[str, Any]) -> str:
    told = f"{counted(now['requests_total'], 'request')}, {counted(now['tokens_total'], 'token')}"
    told += f", {counted(now['switches_total'], 'switch', 'switches')}"
    if now["shed_total"]:
        told += f", {now['shed_total']} refused by the schedule"
    if now["gave_way_total"]:
        told += f", {now['gave_way_total']} waited for room"
    if now["restarts_total"]:
        told += f", {now['restarts_total']} worker restarts"
    return told
