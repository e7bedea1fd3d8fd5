"""The requests of ``trimtab bench live``: a slice of a published trace, and what became of each.

Arrivals and lengths are the trace's. Gaps are stretched so that the load is a share of what the
most precise variant can do on this machine, one request at a time; token counts are scaled so that
a small model on a small machine serves enough of them in the time. Requests are sent when they are
due, whatever has become of those before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle, islice
from time import perf_counter
from typing import Any, Final

import httpx
import numpy as np

from trimtab.bench.child_daemon import ChildDaemon
from trimtab.bench.handover import TEXT
from trimtab.simulate import traces
from trimtab.simulate.scenario_set import objectives
from trimtab.simulate.traces import Trace

TRACE: Final = "azure_llm_2023_conv.csv"
WINDOW: Final = 3
WINDOW_REQUESTS: Final = 1000
TOKEN_SCALE: Final = 0.05
MOST_PROMPT_TOKENS: Final = 160
MOST_ANSWER_TOKENS: Final = 48
ANSWER_DEADLINE_S: Final = 60.0
MOST_REQUESTS: Final = 400


@dataclass(frozen=True, slots=True)
class Speed:
    """What the most precise variant does here, with one request at a time.

    Attributes:
        prefill_tps: Prompt tokens a second.
        decode_tps: Tokens of an answer a second.
        tokens_per_word: What the tokenizer makes of a word of `prompt_of`.
    """

    prefill_tps: float
    decode_tps: float
    tokens_per_word: float


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must reach: its first token, and so much for each one after it."""

    ttft_s: float
    tpot_s: float

    def met(self, sent: Sent) -> bool:
        """Whether an answer was in time, first token and last."""
        if not sent.complete or sent.first_s is None:
            return False
        end_s = self.ttft_s + self.tpot_s * sent.tokens
        return sent.first_s <= self.ttft_s and sent.last_s <= end_s


@dataclass(slots=True)
class Sent:
    """What became of a request; times are since it was due.

    Attributes:
        first_s: Its first token; None if there was none.
        last_s: Its last one.
        prompt_tokens: Of its prompt.
        tokens: Of its answer.
        variants: Those that served it, in order.
        complete: It came to its end.
        refused: The code of the error that it got; empty if none.
    """

    first_s: float | None = None
    last_s: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    variants: list[str] = field(default_factory=list)
    complete: bool = False
    refused: str = ""


def workload(speed: Speed, length_s: float, rho: float, most: int = MOST_REQUESTS) -> Trace:
    """The slice whose work on the most precise variant is ``rho`` of the time.

    Args:
        speed: Of that variant.
        length_s: From the first arrival to the last.
        rho: Share of the time.
        most: No more requests than this, so that a fast machine doesn't measure its sockets.
    """
    block = traces.trace(TRACE).block(WINDOW, WINDOW_REQUESTS).scaled(TOKEN_SCALE)
    prompt = np.minimum(block.prompt, MOST_PROMPT_TOKENS)
    output = np.minimum(block.output, MOST_ANSWER_TOKENS)
    work_s = np.cumsum(prompt / speed.prefill_tps + output / speed.decode_tps)
    count = min(most, max(2, int(np.searchsorted(work_s, rho * length_s))))
    arrival_s = block.arrival_s[:count] - block.arrival_s[0]
    stretch = length_s / max(float(arrival_s[-1]), 1e-9)
    return Trace(arrival_s * stretch, prompt[:count], output[:count])


def slo_for(load: Trace, speed: Speed) -> Slo:
    """The scenario set's objective for the load's mean request, as a policy can state it."""
    said = objectives()
    prompt, output = float(load.prompt.mean()), float(load.output.mean())
    read_s = prompt / speed.prefill_tps
    ttft_s = said.ttft_base_s + said.ttft_slope * read_s
    end_s = said.end_base_s + said.end_slope * (read_s + output / speed.decode_tps)
    return Slo(ttft_s, (end_s - ttft_s) / output)


@lru_cache(maxsize=1)
def words() -> tuple[str, ...]:
    """The words of a text."""
    return tuple(TEXT.read_text(encoding="utf-8").split())


def prompt_of(number: int, count: float) -> str:
    """A text of so many words that no other number's begins like."""
    text = words()
    start = number * 37 % len(text)
    return f"{number}: " + " ".join(islice(cycle(text), start, start + max(1, round(count))))


async def send_all(daemon: ChildDaemon, load: Trace, tokens_per_word: float) -> list[Sent]:
    """Send each request when it is due; returns when all have come to an end."""
    begun_s = perf_counter()
    async with daemon.client(ANSWER_DEADLINE_S) as client, asyncio.TaskGroup() as group:
        tasks = []
        for number in range(len(load)):
            due_s = begun_s + float(load.arrival_s[number])
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
            text = prompt_of(number, load.prompt[number] / tokens_per_word)
            body = completion(daemon.setup.model, text, int(load.output[number]))
            tasks.append(group.create_task(send(client, body, due_s)))
    return [task.result() for task in tasks]


def completion(model: str, text: str, tokens: int) -> Mapping[str, Any]:
    """The body of a request for exactly so many tokens."""
    return {
        "model": model,
        "prompt": text,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "trimtab": {"ignore_eos": True},
    }


async def send(client: httpx.AsyncClient, body: Mapping[str, Any], due_s: float) -> Sent:
    """One request, followed to its end; a refusal or a broken stream is told, not raised."""
    sent = Sent()
    try:
        async with (
            asyncio.timeout(ANSWER_DEADLINE_S),
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            if response.is_error:
                sent.refused = _code(await response.aread())
                return sent
            async for line in response.aiter_lines():
                _take(sent, line, perf_counter() - due_s)
    except TimeoutError:
        sent.refused = "no_end"
    except httpx.HTTPError as error:
        sent.refused = type(error).__name__
    return sent


def _take(sent: Sent, line: str, at_s: float) -> None:
    if line == "data: [DONE]":
        sent.complete = True
        return
    if not line.startswith("data: "):
        return
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    if "error" in event:
        sent.refused = str(event["error"].get("code"))
        return
    if "trimtab" in event:
        sent.variants = list(event["trimtab"]["variants"])
    if event.get("usage"):
        sent.prompt_tokens = int(event["usage"]["prompt_tokens"])
        sent.tokens = int(event["usage"]["completion_tokens"])
    if any(choice.get("text") for choice in event.get("choices", [])):
        if sent.first_s is None:
            sent.first_s = at_s
        sent.last_s = at_s


def _code(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
