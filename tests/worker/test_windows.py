"""Conversations that outgrow their context, in a real worker on the real engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_peer import TINY, Answer, WorkerProcess

from trimtab.catalog.load import load_catalog
from trimtab.catalog.rotation import Rotation, refusal
from trimtab.domain.kv import KvShape
from trimtab.domain.models import RopeSpec
from trimtab.domain.view import View, fits, left_after_shift
from trimtab.worker.decoder import Place
from trimtab.worker.kv_cache import KvCache, new_segment
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.variant import read_variant
from trimtab.workers.protocol import (
    Cancel,
    Detach,
    Detached,
    Failed,
    Finished,
    FromWorker,
    Full,
    Move,
    Moved,
    Pace,
    Progress,
    Start,
    Tokens,
)

NewWorker = Callable[[], WorkerProcess]
ROPE = RopeSpec(10000.0, 16)
KV = KvShape(layers=2, kv_heads=2, position_bytes=64)
CONTEXT = 128
FRESH = View(4)
PROMPT = [(7 * n) % 500 + 4 for n in range(60)]


def decoder() -> KvDecoder:
    return KvDecoder(read_variant(TINY / "fp32"), 1, 2048, "model.indices.onnx", ROPE)


def filled(engine: KvDecoder, tokens: list[int]) -> KvCache:
    cache = engine.open(Place(2048))
    engine.prefill(cache, tokens, last=True)
    return cache


def request(**fields: Any) -> Start:
    whole: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 300, "ignore_eos": True, "stream": 1}
    return Start(**(whole | {"context": CONTEXT, "keep": 4} | fields))


def follow(
    worker: WorkerProcess, answer: Callable[[Full], None], stop_at: int = 10**9
) -> list[FromWorker]:
    """What is said of stream 1 to its end; each time its window is full, somebody answers."""
    said: list[FromWorker] = []
    while not said or not isinstance(said[-1], Finished | Failed):
        said.append(worker.next())
        if isinstance(said[-1], Full):
            answer(said[-1])
        if isinstance(said[-1], Tokens) and said[-1].first >= stop_at:
            break
    return said


def open_files(worker: WorkerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{worker.process.pid}/fd").iterdir())


class Controller:
    """Answers a worker whose window is full as the controller does, with a segment or without."""

    def __init__(
        self, worker: WorkerProcess, segment: Callable[[], int] | None, view: View = FRESH
    ) -> None:
        self.worker = worker
        self.segment = segment
        self.view = view
        self.orders: list[Move] = []

    def __call__(self, full: Full) -> None:
        self.view = self.view.narrowed(full.cached, CONTEXT)
        given = [self.segment()] if self.segment is not None else []
        self.orders.append(Move(1, self.view.dropped, segment=bool(given), granted=CONTEXT))
        self.worker.send(self.orders[-1], given)


# ------------------------------------------------------------ turning keys


@given(
    dim=st.sampled_from([4, 8, 16]),
    interleaved=st.booleans(),
    positions=st.integers(1, 4000),
    seed=st.integers(0, 1000),
)
def test_a_key_that_is_turned_back_is_the_key_that_stood_there(
    dim: int, interleaved: bool, positions: int, seed: int
) -> None:
    rope = RopeSpec(10000.0, dim, interleaved)
    key = np.random.default_rng(seed).normal(size=(2, 3, 16)).astype(np.float32)
    there = Rotation(rope, -positions).turn(key)
    back = Rotation(rope, positions).turn(there)
    lengths = np.linalg.norm(there, axis=-1)

    assert np.allclose(back, key, atol=1e-5)
    assert np.allclose(lengths, np.linalg.norm(key, axis=-1), rtol=1e-5)
    assert np.array_equal(there[..., dim:], key[..., dim:])


def test_turned_keys_are_those_that_the_engine_computes_there() -> None:
    engine = decoder()
    tokens = PROMPT * 3
    source = filled(engine, tokens)
    move = engine.move(source, Place(2048, new_segment(KV.segment_bytes(2048))), 4, 70)
    while not move.advance():
        pass
    again = filled(engine, View(4, 70).of(tokens))
    end = len(tokens) - 70
    # The first layer's keys and values follow from token and position alone.
    keys, values = (move.target.plane(n)[:, :end] for n in (0, 1))
    expected_keys, expected_values = (again.plane(n)[:, :end] for n in (0, 1))

    assert move.target.length == end
    assert np.allclose(keys, expected_keys, atol=2e-5)
    assert np.allclose(values, expected_values, atol=2e-5)
    assert not np.allclose(keys[:, 4:], source.plane(0)[:, 74 : len(tokens)], atol=1e-2)


def test_a_move_without_loss_is_a_copy_and_leaves_the_old_cache_as_it_was() -> None:
    engine = decoder()
    source = filled(engine, PROMPT)
    before = [source.plane(n).copy() for n in range(KV.planes)]
    move = engine.move(source, Place(2048, new_segment(KV.segment_bytes(2048))), 4, 0)
    first = move.advance()
    length_on_the_way = move.target.length
    move.advance()

    assert (first, length_on_the_way, move.target.length) == (False, 0, len(PROMPT))
    for number, plane in enumerate(before):
        assert np.array_equal(source.plane(number), plane)
        assert np.array_equal(move.target.plane(number)[:, : len(PROMPT)], plane[:, : len(PROMPT)])


@pytest.mark.parametrize(
    ("rope", "kind", "words"),
    [(ROPE, "float32", ""), (ROPE, "int8", "quantized"), (None, "float32", "no single base")],
)
def test_keys_that_cant_be_turned_exactly_are_refused_with_the_reason(
    rope: RopeSpec | None, kind: str, words: str
) -> None:
    reason = refusal(rope, np.dtype(kind))

    assert words in reason
    assert bool(reason) == bool(words)


def test_the_manifest_says_how_keys_are_turned() -> None:
    (model,) = load_catalog([TINY]).models.values()

    assert model.rope == ROPE


# ------------------------------------------------------------ views


@given(
    keep=st.integers(1, 300),
    context=st.integers(2, 2048),
    tokens=st.integers(1, 5000),
    shifts=st.integers(1, 4),
)
def test_a_view_keeps_the_beginning_and_the_end(
    keep: int, context: int, tokens: int, shifts: int
) -> None:
    if not fits(keep, context):
        return
    view, conversation = View(keep), list(range(tokens))
    for _ in range(shifts):
        if view.cached(tokens) >= context:
            view = view.narrowed(context - 1, context)
    seen = view.of(conversation)

    assert len(seen) == view.cached(tokens)
    assert seen[:keep] == conversation[:keep]
    assert seen[-1] == conversation[-1]
    assert left_after_shift(view, context) <= context


# ------------------------------------------------------------ streams


@pytest.mark.parametrize("with_segment", [True, False], ids=["turned", "read again"])
def test_a_stream_goes_on_for_three_times_its_context(
    new_worker: NewWorker, segments: Callable[[], int], with_segment: bool
) -> None:
    worker = new_worker()
    ready = worker.load(decoder="kv", rope=ROPE)
    controller = Controller(worker, segments if with_segment else None)
    worker.send(request(segment=True, granted=CONTEXT), [segments()])
    answer = Answer(follow(worker, controller))
    moved = [message for message in answer.said if isinstance(message, Moved)]
    prefills = [message.done for message in answer.said if isinstance(message, Progress)]

    assert ready.rereads == ""
    assert answer.reason == "length"
    assert len(answer.tokens) == 300
    assert [piece.first for piece in answer.pieces] == list(range(300))
    assert len(controller.orders) >= 4
    assert len(moved) == (len(controller.orders) if with_segment else 0)
    assert all(message.valid == left_after_shift(View(4), CONTEXT) - 1 for message in moved)
    assert bool(prefills[1:]) is not with_segment


def test_the_generator_reads_again_what_stays(new_worker: NewWorker) -> None:
    worker = new_worker()
    ready = worker.load(decoder="generator", rope=ROPE)
    controller = Controller(worker, None)
    worker.send(request())
    answer = Answer(follow(worker, controller))

    assert "can't be written" in ready.rereads
    assert answer.reason == "length"
    assert len(answer.tokens) == 300
    assert len(controller.orders) >= 4


def test_reading_again_gives_what_the_kept_text_gives_from_nothing(
    new_worker: NewWorker, segments: Callable[[], int]
) -> None:
    worker = new_worker()
    worker.load(decoder="kv", rope=ROPE)
    controller = Controller(worker, None)
    worker.send(request(max_tokens=100, segment=True, granted=CONTEXT), [segments()])
    whole = Answer(follow(worker, controller))
    before = CONTEXT - len(PROMPT)
    kept = controller.view.of(PROMPT + whole.tokens[:before])
    alone = worker.run(request(prompt=kept, max_tokens=100 - before, keep=0, context=2048))

    assert len(controller.orders) == 1
    assert alone.tokens == whole.tokens[before:]


def test_a_stream_that_is_killed_in_the_middle_of_a_shift_goes_on_from_the_old_segment(
    new_worker: NewWorker, segments: Callable[[], int]
) -> None:
    first, second = new_worker(), new_worker()
    for worker in (first, second):
        worker.load(decoder="kv", rope=ROPE)
    old, new = segments(), segments()
    first.send(request(segment=True, granted=CONTEXT), [old])
    said = first.until(lambda message: isinstance(message, Full))
    heard = [token for m in said if isinstance(m, Tokens) for token in m.tokens]
    first.send(Move(1, 62, segment=True, granted=CONTEXT), [new])
    first.process.kill()
    first.process.wait()
    controller = Controller(second, segments)
    valid = len(PROMPT) + len(heard) - 1
    again = request(generated=heard, segment=True, valid=valid, granted=CONTEXT)
    second.send(again, [old])
    rest = Answer(follow(second, controller))
    whole_worker = new_worker()
    whole_worker.load(decoder="kv", rope=ROPE)
    whole_worker.send(request(segment=True, granted=CONTEXT), [segments()])
    whole = Answer(follow(whole_worker, Controller(whole_worker, segments)))

    assert valid == CONTEXT - 1
    assert heard + rest.tokens == whole.tokens
    assert [m for m in rest.said if isinstance(m, Progress)] == []  # nothing was read again


def test_a_shifted_stream_goes_on_elsewhere_from_its_segment_or_from_its_tokens(
    new_worker: NewWorker, segments: Callable[[], int]
) -> None:
    worker = new_worker()
    worker.load(decoder="kv", rope=ROPE)
    made: list[int] = []

    def make() -> int:
        made.append(segments())
        return made[-1]

    controller = Controller(worker, make)
    worker.send(Pace(ratio=0.1))  # else it is over before it hears that it should stop
    worker.send(request(segment=True, granted=CONTEXT), [segments()])
    said = follow(worker, controller, stop_at=100)
    worker.send(Detach(stream=1))
    while not isinstance(said[-1], Detached):
        said.append(worker.next())
        if isinstance(said[-1], Full):
            controller(said[-1])
    heard = [token for m in said if isinstance(m, Tokens) for token in m.tokens]
    there = [message.dropped for message in said if isinstance(message, Moved)]
    valid = len(PROMPT) + len(heard) - there[-1] - 1
    wanted: dict[str, Any] = {"generated": heard, "max_tokens": len(heard) + 5}
    wanted["dropped"] = there[-1]
    carried = request(**wanted, segment=True, valid=valid, granted=CONTEXT)
    worker.send(carried, [made[len(there) - 1]])
    by_kv = Answer(follow(worker, controller))
    worker.send(request(**wanted))
    by_tokens = Answer(follow(worker, Controller(worker, None, View(4, there[-1]))))
    read_again = [m for m in by_kv.said if isinstance(m, Progress)]
    first_read = next(m for m in by_tokens.said if isinstance(m, Progress))

    assert there[-1] > 0
    assert len(by_kv.tokens) == len(by_tokens.tokens) == 5
    assert read_again == []
    assert first_read.done < first_read.total == valid + 1


def test_a_stream_that_leaves_in_the_middle_of_a_move_leaves_nothing_behind(
    new_worker: NewWorker, segments: Callable[[], int]
) -> None:
    worker = new_worker()
    worker.load(decoder="kv", rope=ROPE)
    before = open_files(worker)
    worker.send(request(segment=True, granted=CONTEXT), [segments()])
    worker.until(lambda message: isinstance(message, Full))
    worker.send(Move(1, 62, segment=True, granted=CONTEXT), [segments()])
    worker.send(Cancel(stream=1))
    worker.until(lambda message: isinstance(message, Finished))
    worker.send(Move(1, 62, segment=True, granted=CONTEXT), [segments()])
    worker.until_silent()

    assert open_files(worker) == before


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"keep": 100}, "half of the context"),
        ({"keep": 0, "dropped": 5}, "dropped: 5"),
        ({"dropped": 1000}, "dropped: 1000"),
    ],
)
def test_a_view_that_cant_be_is_refused(
    worker: WorkerProcess, fields: dict[str, int], words: str
) -> None:
    answer = worker.run(request(**fields))

    assert isinstance(answer.last, Failed)
    assert words in answer.last.message
