"""A draft comes and goes in a worker that serves, and no stream stands still."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import sleep

import pytest
from worker_peer import DEADLINE_S, TINY, Answer, WorkerProcess

from trimtab.errors import EngineError
from trimtab.worker import drafts as drafts_module
from trimtab.worker.decoder import LoadedDraft
from trimtab.worker.drafts import Drafts
from trimtab.worker.kv_decoder import KvDecoder
from trimtab.worker.variant import read_variant
from trimtab.workers.protocol import (
    DraftSet,
    DraftWith,
    Finished,
    FromWorker,
    Ping,
    Pong,
    Sampling,
    Speculate,
    Start,
    Tokens,
)

NewWorker = Callable[[], WorkerProcess]
PROMPT = [(7 * n) % 500 + 4 for n in range(60)]
INT4 = str(TINY / "int4")
GRAPH = "model.indices.onnx"
ANY = Sampling(temperature=3.0, seed=1)  # no n-gram helps


def request(stream: int = 1, tokens: int = 1500, sampling: Sampling = ANY) -> Start:
    return Start(
        stream=stream, prompt=PROMPT, max_tokens=tokens, ignore_eos=True, sampling=sampling
    )


def is_set(message: FromWorker) -> bool:
    return isinstance(message, DraftSet)


def the_answer(said: list[FromWorker]) -> DraftSet:
    (answer,) = [message for message in said if isinstance(message, DraftSet)]
    return answer


def count(said: list[FromWorker]) -> int:
    return sum(len(message.tokens) for message in said if isinstance(message, Tokens))


@pytest.fixture
def waiting_int4(tmp_path: Path) -> Path:
    """int4, which doesn't load until `release` is called."""
    folder = tmp_path / "int4"
    shutil.copytree(TINY / "int4", folder)
    (folder / "genai_config.json").unlink()
    os.mkfifo(folder / "genai_config.json")
    return folder


def begin(worker: WorkerProcess, folder: Path) -> None:
    """Order a draft, and see that its load has begun."""
    worker.send(DraftWith(1, str(folder), GRAPH))
    for number in (1, 2):  # the second one is answered in a later tick
        worker.send(Ping(number))
        worker.until(lambda message: isinstance(message, Pong))


def release(folder: Path, name: str = "genai_config.json") -> None:
    """Let what waits for the file have it."""
    (folder / name).write_bytes((TINY / "int4" / name).read_bytes())


def test_a_draft_comes_and_goes_while_a_stream_decodes_and_changes_no_token(
    new_worker: NewWorker,
) -> None:
    worker = new_worker()
    worker.load(decoder="kv")
    plain = worker.run(request())
    worker.send(request(2))
    said = worker.until(lambda message: isinstance(message, Tokens))
    worker.send(DraftWith(7, INT4, GRAPH))
    said += worker.until(is_set)
    came = the_answer(said)
    worker.send(Speculate(mode="draft"))
    said += worker.until(lambda message: isinstance(message, Tokens) and message.first >= 900)
    worker.send(DraftWith(8))
    more = worker.until(is_set)
    went = the_answer(more)
    whole = Answer([*said, *more, *worker.end_of(2)[2]])

    assert (came.id, came.speculation, came.reason) == (7, ("off", "ngram", "draft"), "")
    assert (went.id, went.speculation, went.reason) == (8, ("off", "ngram"), "")
    assert whole.tokens == plain.tokens
    assert isinstance(whole.last, Finished)
    assert whole.last.drafted > 0
    assert worker.stop() == 0


def test_streams_go_on_while_a_draft_loads(new_worker: NewWorker, waiting_int4: Path) -> None:
    worker = new_worker()
    worker.load(decoder="kv")
    worker.send(DraftWith(1, str(waiting_int4), GRAPH))
    answer = worker.run(request())
    release(waiting_int4)
    came = the_answer(worker.until(is_set))

    assert len(answer.tokens) == 1500
    assert came.reason == ""


def test_a_damaged_draft_is_told_and_its_target_serves(
    new_worker: NewWorker, tmp_path: Path
) -> None:
    folder = tmp_path / "int4"
    shutil.copytree(TINY / "int4", folder)
    for path in folder.glob("*.onnx"):
        path.write_bytes(b"\xff" * 1000)
    worker = new_worker()
    worker.load(decoder="kv")
    worker.send(DraftWith(1, str(folder), GRAPH))
    told = the_answer(worker.until(is_set))

    assert "the engine refuses the variant" in told.reason
    assert told.speculation == ("off", "ngram")
    assert len(worker.run(request(tokens=50)).tokens) == 50


def test_a_draft_that_is_not_wanted_any_more_is_thrown_away(
    new_worker: NewWorker, waiting_int4: Path
) -> None:
    worker = new_worker()
    worker.load(decoder="kv")
    begin(worker, waiting_int4)
    worker.send(DraftWith(2))
    worker.send(Ping(1))
    before = worker.until(lambda message: isinstance(message, Pong))
    release(waiting_int4)
    answer = the_answer(worker.until(is_set))

    assert not any(is_set(message) for message in before)
    assert (answer.id, answer.speculation) == (2, ("off", "ngram"))
    assert worker.until_silent() == []


def test_of_two_drafts_the_last_one_drafts(new_worker: NewWorker, waiting_int4: Path) -> None:
    worker = new_worker()
    worker.load(decoder="kv", draft=str(TINY / "int8"), draft_indices_graph=GRAPH)
    begin(worker, waiting_int4)
    worker.send(DraftWith(2, INT4, GRAPH))
    worker.send(Ping(3))
    worker.until(lambda message: isinstance(message, Pong))
    release(waiting_int4)
    answer = the_answer(worker.until(is_set))
    worker.send(Speculate(mode="draft"))
    last = worker.run(request()).last

    assert (answer.id, answer.reason) == (2, "")
    assert isinstance(last, Finished)
    assert last.drafted > 0


def test_a_worker_ends_at_once_while_a_draft_loads(
    new_worker: NewWorker, waiting_int4: Path
) -> None:
    stopped, killed = new_worker(), new_worker()
    for worker in (stopped, killed):
        worker.load(decoder="kv")
        begin(worker, waiting_int4)
    killed.process.terminate()

    assert stopped.stop() == 0
    assert killed.process.wait(DEADLINE_S) == 0


def test_the_generator_says_that_it_takes_no_draft(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load(decoder="generator")
    worker.send(DraftWith(1, INT4, GRAPH))
    told = the_answer(worker.until(is_set))

    assert told.reason == "the Generator's KV cache takes no drafts of another variant"
    assert told.speculation == ("off",)


def test_a_draft_that_computes_no_numbers_is_let_go_when_it_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def numberless(*_: object) -> None:
        raise EngineError("it computes no finite numbers", hint="build it again")

    monkeypatch.setattr(drafts_module, "prove_draft", numberless)
    facts = read_variant(TINY / "fp32")
    decoder = KvDecoder(facts, 1, 2048, GRAPH)
    drafts = Drafts(decoder, facts, 1)
    drafts.order(DraftWith(1, INT4, GRAPH))
    answer = until_answered(drafts)

    assert answer.reason == "it computes no finite numbers; build it again"
    assert decoder.speculation == ("off", "ngram")
    assert not drafts.at_work


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (MemoryError(), "there is not enough memory to load the draft"),
        (RuntimeError("odd"), "RuntimeError: odd"),
    ],
)
def test_whatever_goes_wrong_in_the_load_is_the_drafts_fault_alone(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, reason: str
) -> None:
    def fails(*_: object) -> LoadedDraft:
        raise fault

    facts = read_variant(TINY / "fp32")
    decoder = KvDecoder(facts, 1, 2048, GRAPH)
    monkeypatch.setattr(decoder, "load_draft", fails)
    drafts = Drafts(decoder, facts, 1)
    drafts.order(DraftWith(1, INT4, GRAPH))

    assert until_answered(drafts).reason == f"{INT4}: {reason}"


def until_answered(drafts: Drafts) -> DraftSet:
    while (answer := drafts.advance(lambda: 0)) is None:
        sleep(0.001)
    return answer
