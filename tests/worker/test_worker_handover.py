"""Streams that go from one worker process to another with their KV cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any

import pytest
from worker_peer import DEADLINE_S, Answer, WorkerProcess

from trimtab.domain.kv import KvShape
from trimtab.errors import WorkerError
from trimtab.worker.channel import ChannelClosedError
from trimtab.worker.kv_cache import new_segment
from trimtab.workers.protocol import (
    Detach,
    Detached,
    Failed,
    Finished,
    FromWorker,
    Ping,
    Pong,
    Progress,
    Sampling,
    Start,
    Tokens,
)

NewWorker = Callable[[], WorkerProcess]
TINY_KV = KvShape(layers=2, kv_heads=2, position_bytes=64)
CONTEXT = 2048
PROMPT = [(7 * n) % 500 + 4 for n in range(400)]


@pytest.fixture
def segment() -> Iterator[int]:
    """A segment that the test owns, as the controller would."""
    descriptor = new_segment(TINY_KV.segment_bytes(CONTEXT))
    yield descriptor
    os.close(descriptor)


def request(**fields: Any) -> Start:
    whole: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 300, "ignore_eos": True, "stream": 1}
    return Start(**(whole | {"context": CONTEXT} | fields))


def until_killed(worker: WorkerProcess, after: Callable[[FromWorker], bool]) -> list[FromWorker]:
    """What arrives of a stream whose worker is killed at a moment; nothing more counts."""
    said = worker.until(after)
    worker.process.kill()
    worker.process.wait(DEADLINE_S)
    try:
        while True:
            said.append(worker.next())
    except (ChannelClosedError, WorkerError):
        return said


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.0, top_p=0.95, seed=4)], ids=["greedy", "drawn"]
)
def test_a_stream_survives_the_death_of_its_worker_without_prefilling_again(
    worker: WorkerProcess, new_worker: NewWorker, segment: int, sampling: Sampling
) -> None:
    whole = worker.run(request(sampling=sampling))
    first = new_worker()
    first.load(decoder="kv")
    first.send(request(sampling=sampling, segment=True), [segment])
    said = until_killed(first, lambda m: isinstance(m, Tokens) and m.first == 20)
    heard = [token for m in said if isinstance(m, Tokens) for token in m.tokens]
    second = new_worker()
    second.load(decoder="kv")
    valid = len(PROMPT) + len(heard) - 1
    second.send(request(sampling=sampling, generated=heard, segment=True, valid=valid), [segment])
    rest = Answer(second.end_of(1)[1])
    progress = [message.done for message in rest.said if isinstance(message, Progress)]

    assert heard + rest.tokens == whole.tokens
    assert progress == []
    assert isinstance(rest.last, Finished)
    assert rest.last.cached_tokens == len(PROMPT)


def test_a_prefill_goes_on_where_the_dead_worker_was(
    worker: WorkerProcess, new_worker: NewWorker, segment: int
) -> None:
    whole = worker.run(request())
    first = new_worker()
    first.load(decoder="kv")
    first.send(request(segment=True), [segment])
    said = until_killed(first, lambda m: isinstance(m, Progress))
    done = max(message.done for message in said if isinstance(message, Progress))
    second = new_worker()
    second.load(decoder="kv")
    second.send(request(segment=True, valid=done), [segment])
    answer = Answer(second.end_of(1)[1])
    assert isinstance(answer.last, Finished)

    assert answer.tokens == whole.tokens
    assert answer.last.cached_tokens == min(done, len(PROMPT) - 1)  # the last is computed anyway


def test_a_stream_that_steps_down_says_every_token_once(
    new_worker: NewWorker, segment: int
) -> None:
    fp32, int8 = new_worker(), new_worker()
    fp32.load(decoder="kv")
    int8.load("int8", decoder="kv")
    fp32.send(request(segment=True), [segment])
    fp32.until(lambda m: isinstance(m, Tokens) and m.first == 10)
    fp32.send(Detach(stream=1))
    fp32.until(lambda m: isinstance(m, Detached))
    heard = [token for m in fp32.heard if isinstance(m, Tokens) for token in m.tokens]
    int8.send(request(generated=heard, segment=True, valid=len(PROMPT) + len(heard) - 1), [segment])
    rest = Answer(int8.end_of(1)[1])
    indices = [piece.first for piece in rest.pieces]

    assert [m.first for m in fp32.heard if isinstance(m, Tokens)] == list(range(len(heard)))
    assert indices == list(range(len(heard), 300))
    assert rest.reason == "length"


def test_a_worker_that_cannot_take_kv_over_prefills_again(
    worker: WorkerProcess, new_worker: NewWorker, segment: int
) -> None:
    generator = new_worker()
    generator.load(decoder="generator")
    generator.send(request(segment=True, valid=len(PROMPT) - 1), [segment])
    answer = Answer(generator.end_of(1)[1])
    assert isinstance(answer.last, Finished)

    assert answer.tokens == worker.run(request()).tokens
    assert answer.last.cached_tokens == 0


def test_a_segment_of_another_shape_fails_its_stream_alone(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load(decoder="kv")
    wrong = os.memfd_create("wrong")
    os.ftruncate(wrong, 12_345)
    worker.send(request(stream=1, max_tokens=50))
    worker.send(request(stream=2, segment=True), [wrong])
    os.close(wrong)
    said = worker.end_of(1, 2)

    assert isinstance(said[1][-1], Finished)
    assert isinstance(said[2][-1], Failed)
    assert "another model" in said[2][-1].message


def test_kv_counts_as_memory_of_the_worker_until_the_stream_ends(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load(decoder="kv")

    def resident() -> int:
        worker.send(Ping(id=1))
        pong = worker.until(lambda message: isinstance(message, Pong))[-1]
        assert isinstance(pong, Pong)
        return pong.resident_bytes

    worker.run(request(stream=9, max_tokens=4))
    sleep(0.2)
    before = resident()
    for stream in range(8):
        worker.send(request(stream=stream, prompt=PROMPT * 4, max_tokens=440))
    worker.until(lambda m: isinstance(m, Tokens) and m.stream == 7)
    during = resident()
    worker.end_of(*range(8))
    sleep(0.2)
    after = resident()
    expected = 8 * TINY_KV.committed_bytes(1600, CONTEXT, os.sysconf("SC_PAGE_SIZE"))

    assert 0.9 * expected < during - before < 1.6 * expected
    assert after - before < 0.3 * expected


def test_streams_that_bring_all_their_kv_go_on_together(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load(decoder="kv")
    segments = [new_segment(TINY_KV.segment_bytes(CONTEXT)) for _ in range(3)]
    begun = [request(stream=n, prompt=PROMPT[: 90 + n], segment=True) for n in range(3)]
    for start, segment in zip(begun, segments, strict=True):
        worker.send(start, [segment])
    worker.until(lambda m: isinstance(m, Tokens) and m.stream == 2 and m.first == 5)
    worker.process.kill()
    worker.drain()
    heard: dict[int, list[int]] = {n: [] for n in range(3)}
    for message in worker.heard:
        if isinstance(message, Tokens):
            heard[message.stream] += message.tokens
    second = new_worker()
    second.load(decoder="kv", held=True)
    for n, segment in enumerate(segments):
        valid = 90 + n + len(heard[n]) - 1
        again = {"stream": n, "prompt": PROMPT[: 90 + n], "generated": heard[n]}
        second.send(request(**again, segment=True, valid=valid), [segment])
        os.close(segment)
    said = second.until(lambda m: isinstance(m, Tokens) and m.stream == 2)

    assert not [message for message in said if isinstance(message, Progress)]
    assert {message.stream for message in said if isinstance(message, Tokens)} == {0, 1, 2}
    assert len(said) <= 6  # no stream waits until others have had many tokens
