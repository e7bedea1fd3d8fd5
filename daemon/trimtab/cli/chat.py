"""`trimtab chat`: a little chat that shows at which operating point it is answered."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from trimtab.api.client import Client, connect_inference
from trimtab.cli.settings import loaded, styled
from trimtab.errors import NoModelError, TrimtabError
from trimtab.telemetry.words import seconds

HELP = """\
  /reset         forget what was said
  /system TEXT   say how to answer, and begin anew
  /help          this
  /quit          leave (Ctrl-D too); Ctrl-C ends an answer"""


@dataclass
class Settings:
    """What goes along with each request."""

    model: str
    max_tokens: int | None
    temperature: float


@dataclass
class Talk:
    """What has been said."""

    system: str
    messages: list[dict[str, str]] = field(default_factory=list)

    def whole(self) -> list[dict[str, str]]:
        """All messages for the next request."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return first + self.messages


@click.command()
@click.argument("prompt", nargs=-1)
@click.option("--system", default="", help="How to answer, as the system message.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer.")
@click.option(
    "--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="0: greedy."
)
@click.pass_context
def chat(
    ctx: click.Context,
    prompt: tuple[str, ...],
    system: str,
    max_tokens: int | None,
    temperature: float,
) -> None:
    """Chat with the model. With a PROMPT, or input from a pipe, it answers once and ends.

    Under each answer stands the operating point that served it, and how fast it was.
    """
    talk = Talk(system)
    with connect_inference(loaded(ctx)) as client:
        settings = Settings(_model(client), max_tokens, temperature)
        if prompt or not sys.stdin.isatty():
            text = " ".join(prompt) or sys.stdin.read()
            _answer(client, settings, talk, text, status=sys.stderr.isatty())
        else:
            _converse(client, settings, talk)


def _model(client: Client) -> str:
    listed = client.get("/v1/models")["data"]
    if not listed:
        raise NoModelError(
            "the daemon has no model", hint="`trimtab models build smollm2-135m` makes one."
        )
    return str(listed[0]["id"])


def _converse(client: Client, settings: Settings, talk: Talk) -> None:
    import readline  # noqa: F401  # input() gets editing and history from it

    click.echo(styled(f"{settings.model}; /help shows commands", dim=True))
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
        if text.startswith("/"):
            if not _command(talk, text):
                return
        elif text:
            _turn(client, settings, talk, text)


def _turn(client: Client, settings: Settings, talk: Talk, text: str) -> None:
    try:
        _answer(client, settings, talk, text, status=True)
    except KeyboardInterrupt:
        click.echo(styled("  [stopped]", dim=True))
    except TrimtabError as error:
        click.echo(f"trimtab: {error.message}", err=True)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)


def _command(talk: Talk, text: str) -> bool:
    """Carry out a command of the chat; False to leave."""
    name, _, rest = text.partition(" ")
    match name:
        case "/quit" | "/exit" | "/bye":
            return False
        case "/reset" | "/clear":
            talk.messages.clear()
            click.echo(styled("  forgotten", dim=True))
        case "/system":
            talk.system = rest.strip()
            talk.messages.clear()
        case "/help" | "/?":
            click.echo(HELP)
        case _:
            click.echo(f"  {name} means nothing; /help shows commands")
    return True


def _answer(client: Client, settings: Settings, talk: Talk, text: str, *, status: bool) -> None:
    """Ask, print the answer as it comes, and remember it; what was said before a fault stays."""
    talk.messages.append({"role": "user", "content": text})
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": talk.whole(),
        "temperature": settings.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if settings.max_tokens:
        body["max_tokens"] = settings.max_tokens
    said: list[str] = []
    end: dict[str, Any] = {}
    started_s = time.perf_counter()
    first_s: float | None = None
    try:
        for piece in _pieces(client.events("POST", "/v1/chat/completions", body), end):
            first_s = first_s or time.perf_counter()
            said.append(piece)
            click.echo(piece, nl=False)
    finally:
        click.echo()
        if said:
            talk.messages.append({"role": "assistant", "content": "".join(said)})
        else:
            talk.messages.pop()
    if status and first_s:
        click.echo(
            styled(status_line(end, started_s, first_s, time.perf_counter()), dim=True), err=True
        )


def _pieces(events: Iterator[dict[str, Any]], end: dict[str, Any]) -> Iterator[str]:
    """The text of each event; what the last ones tell goes into ``end``."""
    for event in events:
        end.update({key: event[key] for key in ("trimtab", "usage") if event.get(key)})
        for choice in event["choices"]:
            if choice["finish_reason"]:
                end["reason"] = choice["finish_reason"]
            if choice["delta"].get("content"):
                yield choice["delta"]["content"]


def status_line(end: dict[str, Any], started_s: float, first_s: float, last_s: float) -> str:
    """The operating point and the speed, on one line."""
    told = end.get("trimtab") or {}
    usage = end.get("usage") or {}
    variants = told.get("variants") or [told.get("variant", "?")]
    parts = [" → ".join(variants), f"{told.get('context', '?')} tokens of context"]
    tokens = usage.get("completion_tokens", 0)
    if tokens > 1 and last_s > first_s:
        parts.append(f"{(tokens - 1) / (last_s - first_s):.1f} tokens/s")
    parts.append(f"first after {seconds(first_s - started_s)}")
    if end.get("reason") == "length":
        parts.append("cut off at the limit")
    if told.get("resumed"):
        parts.append("resumed after a worker was lost")
    return f"  [{', '.join(parts)}]"
