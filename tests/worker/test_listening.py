"""What comes while the engine runs: some of it ends the run, and nothing of it is lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

import pytest

from trimtab.errors import EngineError
from trimtab.worker.channel import Channel
from trimtab.worker.decoder import InterruptedRunError, Place
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.listening import Listener
from trimtab.worker.speculation import Experience
from trimtab.worker.stream import Language, Stream
from trimtab.worker.tokenizer import Tokenizer
from trimtab.worker.turns import Turns
from trimtab.worker.variant import read_variant
from trimtab.workers.protocol import (
    HEADER,
    Cancel,
    Detach,
    FromWorker,
    Pause,
    Ping,
    Resume,
    Start,
    Stop,
    ToWorker,
    decode_to_worker,
)

TINY = Path(__file__).resolve().parent.parent / "tiny"
SOON_S = 5.0
NOT_NOW_S = 0.1


def kind(message: ToWorker) -> str:
    return type(message).__name__


class Ends:
    """Both ends of a channel, and what the engine was told."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.raw = ours
        self.controller, self.worker = Channel(ours), Channel(theirs)
        self.listener = Listener(self.worker)
        self.told: Queue[bool] = Queue()

    def interrupted(self, wait_s: float) -> bool:
        try:
            return self.told.get(timeout=wait_s)
        except Empty:
            return False

    def heard(self) -> list[ToWorker]:
        self.listener.settle()
        return [decode_to_worker(body) for body, _ in self.worker.receive(0)]


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.controller.close()
    made.worker.close()


@pytest.mark.parametrize(
    "message", [Cancel(stream=7), Detach(stream=7), Pause(stream=7), Stop()], ids=kind
)
def test_what_ends_the_stream_ends_the_run_and_is_handed_out_after_it(
    ends: Ends, message: ToWorker
) -> None:
    with ends.listener.during(7, ends.told.put):
        ends.controller.send(Ping(id=1))
        ends.controller.send(message)
        cut_short = ends.interrupted(SOON_S)

    assert cut_short
    assert ends.heard() == [Ping(id=1), message]
    assert ends.told.get(timeout=SOON_S) is False  # the next run isn't cut short


@pytest.mark.parametrize(
    "message",
    [Cancel(stream=8), Resume(stream=7), Ping(id=1), Start(stream=9, prompt=[5])],
    ids=type,
)
def test_what_is_no_concern_of_the_run_leaves_it_alone(ends: Ends, message: ToWorker) -> None:
    with ends.listener.during(7, ends.told.put):
        ends.controller.send(message)
        cut_short = ends.interrupted(NOT_NOW_S)

    assert not cut_short
    assert ends.heard() == [message]


def test_nonsense_leaves_the_run_alone_and_is_answered_after_it(ends: Ends) -> None:
    with ends.listener.during(7, ends.told.put):
        ends.raw.sendall(HEADER.pack(3, 0) + b"abc")
        cut_short = ends.interrupted(NOT_NOW_S)

    ends.listener.settle()
    assert not cut_short
    assert [bytes(body) for body, _ in ends.worker.receive(0)] == [b"abc"]


def test_a_controller_that_is_gone_ends_the_run(ends: Ends) -> None:
    with ends.listener.during(7, ends.told.put):
        ends.controller.close()

        assert ends.interrupted(SOON_S)


def test_a_signal_ends_the_run(ends: Ends) -> None:
    with ends.listener.during(7, ends.told.put):
        os.write(ends.listener.signalled, b"\x0f")

        assert ends.interrupted(SOON_S)


def test_a_run_that_failed_is_over_too(ends: Ends) -> None:
    with pytest.raises(EngineError), ends.listener.during(7, ends.told.put):
        raise EngineError("it failed")

    with ends.listener.during(7, ends.told.put):
        ends.controller.send(Stop())
        while not ends.told.get(timeout=SOON_S):
            pass  # what was taken back after the first run


def test_an_interrupted_piece_leaves_the_stream_where_it_was() -> None:
    facts = read_variant(TINY / "fp32")
    decoder = KvDecoder(facts, 1, 2048, "model.indices.onnx")
    language = Language(Tokenizer(facts).vocabulary, facts.vocabulary, facts.eos)
    said: list[FromWorker] = []
    over: list[Exception | None] = []
    turns = Turns(decoder, said.append, lambda _, error: over.append(error))
    stream = Stream(
        Start(stream=1, prompt=[(7 * n) % 500 + 4 for n in range(90)]), language, Experience()
    )
    stream.cache = decoder.open(Place(stream.capacity))

    decoder.interrupt(True)
    with pytest.raises(InterruptedRunError):
        decoder.prefill(stream.cache, [5, 6], last=False)
    turns.prefill([stream])
    nothing = (stream.cache.length, list(said), list(over))
    decoder.interrupt(False)
    while not stream.prefilled:
        turns.prefill([stream])

    assert nothing == (0, [], [])
    assert stream.cache.length == 90
    assert over == []
