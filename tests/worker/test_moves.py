"""Streams that are told to go on in another segment, and can't: they go on in the one they have."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_peer import TINY, Answer, WorkerProcess

from trimtab.domain.models import RopeSpec
from trimtab.domain.view import View
from trimtab.errors import EngineError
from trimtab.worker.decoder import Place
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.variant import read_variant
from trimtab.worker.windows import Windows
from trimtab.workers.protocol import (
    Finished,
    FromWorker,
    Full,
    Grant,
    Grow,
    Move,
    Moved,
    Pace,
    Progress,
    Start,
    Stayed,
    Tokens,
)

NewWorker = Callable[[], WorkerProcess]
NewSegment = Callable[[], int]
ROPE = RopeSpec(10000.0, 16)
PROMPT = [(7 * n) % 500 + 4 for n in range(60)]
CONTEXT = 128


@pytest.fixture
def damaged() -> Iterator[int]:
    """A file that is no segment."""
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.flush()
        yield file.fileno()


def request(**fields: Any) -> Start:
    whole: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 120, "ignore_eos": True, "stream": 1}
    return Start(**(whole | {"context": 2048, "segment": True, "granted": 2048} | fields))


def ready(new_worker: NewWorker) -> WorkerProcess:
    worker = new_worker()
    worker.load(decoder="kv", rope=ROPE)
    return worker


def tokens_of(said: list[FromWorker]) -> list[int]:
    return [token for message in said if isinstance(message, Tokens) for token in message.tokens]


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def is_a(kind: type) -> Callable[[FromWorker], bool]:
    return lambda message: isinstance(message, kind)


def test_a_stream_that_cant_be_moved_goes_on_where_it_is(
    new_worker: NewWorker, segments: NewSegment, damaged: int
) -> None:
    worker = ready(new_worker)
    worker.send(request(), [segments()])
    expected = Answer(worker.end_of(1)[1]).tokens
    worker.send(Pace(ratio=0.1))  # else it is over before it hears of the move
    worker.send(request(), [segments()])
    said = worker.until(is_a(Tokens))
    worker.send(Move(1, 0, segment=True, granted=2048), [damaged])
    said += worker.until(is_a(Stayed))
    worker.send(Move(1, 0, segment=True, granted=2048), [segments()])
    said += worker.until(is_a(Moved))
    worker.send(Pace(ratio=1.0))
    said += worker.until(is_a(Finished))
    stayed = next(message for message in said if isinstance(message, Stayed))

    assert (stayed.stream, stayed.dropped) == (1, 0)
    assert "another model" in stayed.reason
    assert tokens_of(said) == expected


def test_a_stream_isnt_moved_to_where_it_has_no_room(
    new_worker: NewWorker, segments: NewSegment
) -> None:
    worker = ready(new_worker)
    worker.send(request(), [segments()])
    expected = Answer(worker.end_of(1)[1]).tokens
    worker.send(Pace(ratio=0.1))
    worker.send(request(), [segments()])
    said = worker.until(is_a(Tokens))
    worker.send(Move(1, 0, segment=True, granted=len(PROMPT) - 1), [segments()])
    said += worker.until(is_a(Stayed))
    worker.send(Pace(ratio=1.0))
    said += worker.until(is_a(Finished))
    stayed = next(message for message in said if isinstance(message, Stayed))

    assert f"room for {len(PROMPT) - 1} tokens" in stayed.reason
    assert tokens_of(said) == expected


def test_a_stream_that_has_read_less_than_it_keeps_is_moved_too(
    new_worker: NewWorker, segments: NewSegment
) -> None:
    long = [(7 * n) % 500 + 4 for n in range(600)]
    worker = ready(new_worker)
    worker.send(request(prompt=long, keep=500), [segments()])
    expected = Answer(worker.end_of(1)[1]).tokens
    worker.send(Pace(ratio=0.1))
    worker.send(request(prompt=long, keep=500), [segments()])
    said = worker.until(is_a(Progress))
    worker.send(Move(1, 0, segment=True, granted=2048), [segments()])
    said += worker.until(lambda message: isinstance(message, Moved | Stayed))
    read, told = [one.done for one in said if isinstance(one, Progress)], said[-1]
    worker.send(Pace(ratio=1.0))
    said += worker.until(is_a(Finished))

    assert max(read) < 500
    assert isinstance(told, Moved)
    assert tokens_of(said) == expected


def test_a_lone_stream_that_arrives_with_no_room_left_asks_for_more(
    new_worker: NewWorker, segments: NewSegment
) -> None:
    worker = ready(new_worker)
    worker.send(request(), [segments()])
    expected = Answer(worker.end_of(1)[1]).tokens
    worker.send(request(granted=100), [segments()])
    said = worker.until_silent()
    worker.send(Move(1, 0, segment=True, granted=100), [segments()])
    moved, asks = worker.next(), worker.next()
    worker.send(Grant(stream=1, tokens=2048))
    said += worker.until(is_a(Finished))

    assert isinstance(moved, Moved)
    assert moved.valid == 100
    assert isinstance(asks, Grow)
    assert tokens_of(said) == expected


def test_a_window_that_cant_be_shifted_is_read_again(
    new_worker: NewWorker, segments: NewSegment, damaged: int
) -> None:
    worker = ready(new_worker)
    answers = []
    for turned in (False, True):
        worker.send(request(context=CONTEXT, keep=4), [segments()])
        said = worker.until(is_a(Full))
        if turned:
            worker.send(Move(1, 62, segment=True, granted=CONTEXT), [damaged])
            said += worker.until(is_a(Stayed))
        worker.send(Move(1, 62))
        said += worker.until(is_a(Finished))
        answers.append(said)

    assert tokens_of(answers[1]) == tokens_of(answers[0])
    assert sum(isinstance(message, Full) for message in answers[1]) == 1
    assert any(isinstance(message, Progress) and message.total < CONTEXT for message in answers[1])


class Failing:
    """A move that fails on its way."""

    def __init__(self, target: Any, error: Exception) -> None:
        self.target = target
        self.error = error

    def advance(self) -> bool:
        raise self.error


class Engine(KvDecoder):
    """The real one, but for moves that fail."""

    error: Exception

    def move(self, cache: Any, place: Place, keep: int, dropped: int) -> Any:
        return Failing(self.open(place), self.error)


class Moving:
    """As much of a stream as is moved."""

    def __init__(self, number: int, cache: Any) -> None:
        self.id = number
        self.cache = cache
        self.journey: Any = None
        self.view = View(4)
        self.capacity = 2048
        self.paused = self.full = self.asked_to_move = False


@pytest.mark.parametrize("error", [MemoryError(), EngineError("no"), ValueError("what?")])
def test_what_fails_on_the_way_leaves_the_worker_and_the_old_segment_as_they_were(
    segments: NewSegment, error: Exception
) -> None:
    said: list[FromWorker] = []
    over: list[Any] = []
    engine = Engine(read_variant(TINY / "fp32"), 1, 2048, "model.indices.onnx", ROPE)
    engine.error = error
    windows = Windows(engine, said.append, lambda *end: over.append(end))
    cache = engine.open(Place(2048))
    engine.prefill(cache, PROMPT, last=True)
    stream: Any = Moving(1, cache)
    segment = segments()
    before = open_files()
    windows.order(stream, Move(1, 0, segment=True, granted=2048), os.dup(segment))
    windows.run([stream])

    assert [type(message) for message in said] == [Stayed]
    assert over == []
    assert stream.cache is cache
    assert cache.length == len(PROMPT)
    assert stream.journey is None
    assert open_files() == before
