"""A streamed completion with the time of each event, for benchmarks of what a client sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import httpx

from trimtab.bench.child_daemon import BASE_URL
from trimtab.errors import WorkerError

_MOVED: Final = ": variant "


@dataclass(slots=True)
class TimedAnswer:
    """What came, and when.

    Attributes:
        text: The whole answer.
        arrivals_s: When each piece of text came, by `perf_counter`.
        moved_at: Numbers of the pieces that were the first of another variant.
        tokens: How many tokens, by the daemon's own count; 0 until the end.
        begun_s: When the request was sent.
        complete: True once the terminal event has come.
    """

    text: str = ""
    arrivals_s: list[float] = field(default_factory=list)
    moved_at: list[int] = field(default_factory=list)
    tokens: int = 0
    begun_s: float = 0.0
    complete: bool = False

    @property
    def ttft_s(self) -> float:
        """From sending the request to the first text."""
        return self.arrivals_s[0] - self.begun_s

    def longest_gap_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> float:
        """The longest time between two pieces, the later of which came in that span."""
        gaps = [
            later - earlier
            for earlier, later in pairwise(self.arrivals_s)
            if since_s <= later <= until_s
        ]
        return max(gaps, default=0.0)

    def pause_s(self) -> float:
        """The time between two pieces at the only change of the variant.

        The last piece of the old variant may be told of too late; then the pause is the next one.

        Raises:
            WorkerError: There was none, or more than one.
        """
        if len(self.moved_at) != 1:
            raise WorkerError(f"the variant changed {len(self.moved_at)} times in a stream")
        at = self.moved_at[0]
        around = self.arrivals_s[max(0, at - 1) : at + 2]
        return max(later - earlier for earlier, later in pairwise(around))


async def follow(
    socket: Path,
    model: str,
    prompt: str,
    tokens: int,
    on_piece: Callable[[TimedAnswer], None] | None = None,
) -> TimedAnswer:
    """Have a prompt completed greedily, past any end-of-sequence token.

    Raises:
        WorkerError: The daemon refuses, or the stream breaks.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "trimtab": {"ignore_eos": True},
    }
    answer = TimedAnswer()
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=300) as client:
        answer.begun_s = perf_counter()
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.is_error:
                refusal = (await response.aread()).decode(errors="replace")
                raise WorkerError(f"the daemon refused: {refusal}")
            async for line in response.aiter_lines():
                _take(answer, line, on_piece)
    if not answer.complete:
        raise WorkerError(f"a stream broke after {len(answer.arrivals_s)} pieces")
    return answer


def _take(answer: TimedAnswer, line: str, on_piece: Callable[[TimedAnswer], None] | None) -> None:
    if line.startswith(_MOVED):
        answer.moved_at.append(len(answer.arrivals_s))
    if not line.startswith("data: "):
        return
    if line == "data: [DONE]":
        answer.complete = True
        return
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise WorkerError(f"a stream ended with an error: {event['error']}")
    if event.get("usage"):
        answer.tokens = int(event["usage"]["completion_tokens"])
    text = "".join(choice.get("text", "") for choice in event.get("choices", []))
    if text:
        answer.text += text
        answer.arrivals_s.append(perf_counter())
        if on_piece is not None:
            on_piece(answer)


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for something to come true.

    Raises:
        TimeoutError: It doesn't in time.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # what it waits for is another process
            await asyncio.sleep(0.002)
