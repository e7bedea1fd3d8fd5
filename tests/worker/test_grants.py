"""Room in the cache: a stream asks before it grows, and waits for the answer."""

from __future__ import annotations

from typing import Any

from worker_peer import WorkerProcess

from trimtab.workers.protocol import (
    Cancel,
    Finished,
    Grant,
    Grow,
    Progress,
    Start,
    Tokens,
)

PROMPT = [(7 * n) % 500 + 4 for n in range(200)]


def start(**fields: Any) -> Start:
    whole: dict[str, Any] = {"stream": 1, "prompt": PROMPT, "max_tokens": 200, "ignore_eos": True}
    return Start(**(whole | fields))


def test_a_stream_asks_ahead_and_goes_on_without_a_pause(worker: WorkerProcess) -> None:
    plain = worker.run(start())
    worker.send(start(granted=260))
    said = worker.until(lambda message: isinstance(message, Grow))
    asked = said[-1]
    assert isinstance(asked, Grow)
    worker.send(Grant(stream=1, tokens=asked.tokens))
    said += worker.end_of(1)[1]
    tokens = [token for m in said if isinstance(m, Tokens) for token in m.tokens]

    assert asked.tokens == 400
    assert tokens == plain.tokens
    assert sum(isinstance(message, Grow) for message in said) == 1


def test_without_an_answer_it_stops_at_what_it_was_granted(worker: WorkerProcess) -> None:
    worker.send(start(granted=230))
    said = worker.until(lambda message: isinstance(message, Grow))
    said += worker.until_silent()
    produced = sum(isinstance(message, Tokens) for message in said)
    worker.send(Grant(stream=1, tokens=240))
    worker.until(lambda message: isinstance(message, Tokens))
    worker.send(Cancel(stream=1))
    last = worker.end_of(1)[1][-1]

    assert produced == 31  # 230 tokens in the cache, and the newest one that isn't
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"


def test_a_prefill_waits_for_room_too(worker: WorkerProcess) -> None:
    worker.send(start(granted=100))
    said = worker.until(lambda message: isinstance(message, Progress) and message.done == 100)
    assert worker.until_silent() == []
    asks = [message.tokens for message in said if isinstance(message, Grow)]
    worker.send(Grant(stream=1, tokens=400))
    end = worker.end_of(1)[1]

    assert asks == [400]
    assert sum(isinstance(message, Tokens) for message in end) == 200


def test_a_grant_never_takes_room_away(worker: WorkerProcess) -> None:
    worker.send(start(granted=400))
    worker.send(Grant(stream=1, tokens=10))
    said = worker.end_of(1)[1]

    assert sum(isinstance(message, Tokens) for message in said) == 200
    assert not any(isinstance(message, Grow) for message in said)
