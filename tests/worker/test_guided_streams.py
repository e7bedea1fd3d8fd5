"""Streams that are held to a form, in real workers: alone, together, drafted, gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from worker_peer import TINY, Answer, WorkerProcess

from trimtab.workers.protocol import (
    Finished,
    Guide,
    Render,
    RenderFailed,
    Sampling,
    Speculate,
    Start,
    Tool,
)

SCHEMA: Any = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 20},
        "things": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 6},
    },
    "required": ["place", "things"],
    "additionalProperties": False,
}
GUIDE = Guide(schema=json.dumps(SCHEMA), field="format")
PROMPT = [(7 * n) % 500 + 4 for n in range(40)]
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3), Sampling(temperature=0.9, top_k=9)]


@pytest.fixture(scope="module")
def drafting() -> Iterator[WorkerProcess]:
    """fp32 with int4 as its draft."""
    process = WorkerProcess()
    try:
        process.load(decoder="kv", draft=str(TINY / "int4"))
        yield process
    finally:
        process.close()


def start(**fields: Any) -> Start:
    whole: dict[str, Any] = {"stream": 1, "prompt": PROMPT, "max_tokens": 300, "guide": GUIDE}
    return Start(**(whole | fields))


def checked(answer: Answer) -> Any:
    found = json.loads(answer.text)
    jsonschema.validate(found, SCHEMA)
    assert answer.reason == "stop"
    return found


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "plain", "top-k"])
def test_an_answer_follows_its_schema_and_ends_with_it(
    worker: WorkerProcess, sampling: Sampling
) -> None:
    answer = worker.run(start(sampling=sampling, ignore_eos=True))

    checked(answer)


def test_a_stream_goes_on_from_any_of_its_tokens_as_if_it_had_never_stopped(
    worker: WorkerProcess,
) -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    whole = worker.run(start(sampling=sampling))
    rest = [
        worker.run(start(sampling=sampling, generated=whole.tokens[:at]))
        for at in range(0, len(whole.tokens), 5)
    ]

    checked(whole)
    assert [whole.tokens[at * 5 :] for at in range(len(rest))] == [one.tokens for one in rest]


def test_streams_of_different_forms_are_decoded_together(worker: WorkerProcess) -> None:
    other = Guide(schema='{"type":"array","items":{"type":"boolean"},"minItems":9,"maxItems":9}')
    starts = [
        start(stream=1, sampling=Sampling(temperature=1.0, seed=1)),
        start(stream=2, sampling=Sampling(temperature=1.0, seed=2), guide=other),
        start(stream=3, sampling=Sampling(temperature=1.0, seed=3), guide=None, max_tokens=60),
    ]
    alone = [worker.run(one) for one in starts]
    for one in starts:
        worker.send(one)
    said = worker.end_of(1, 2, 3)
    together = [Answer(said[stream]) for stream in (1, 2, 3)]

    checked(together[0])
    assert len(json.loads(together[1].text)) == 9
    assert [one.tokens for one in together] == [one.tokens for one in alone]


def test_too_few_tokens_cut_the_answer_off_and_say_so(worker: WorkerProcess) -> None:
    answer = worker.run(start(max_tokens=5))

    assert answer.reason == "length"
    assert answer.text.startswith("{")


def test_a_stop_string_ends_it_early(worker: WorkerProcess) -> None:
    answer = worker.run(start(stop=["things"]))

    assert answer.reason == "stop"
    assert answer.text.startswith("{")
    assert "things" not in answer.text


def test_log_probabilities_are_the_models_own(worker: WorkerProcess) -> None:
    answer = worker.run(start(sampling=Sampling(top_logprobs=3)))
    first = answer.pieces[0].logprobs[0]

    # The model would have begun a sentence, not an object.
    assert first.token.startswith("{")
    assert first.logprob < first.top[0][2]


@pytest.mark.parametrize("mode", ["ngram", "draft"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "plain", "top-k"])
def test_drafts_change_nothing_but_the_speed(
    drafting: WorkerProcess, mode: str, sampling: Sampling
) -> None:
    drafting.send(Speculate(mode="off"))
    plain = drafting.run(start(sampling=sampling))
    drafting.send(Speculate(mode=mode))
    fast = drafting.run(start(sampling=sampling))
    assert isinstance(fast.last, Finished)

    checked(fast)
    assert fast.tokens == plain.tokens
    assert fast.text == plain.text


def test_drafts_are_used_and_right_within_a_form(drafting: WorkerProcess) -> None:
    many = Guide(schema='{"type":"array","items":{"enum":["yes"]},"minItems":40,"maxItems":40}')
    drafting.send(Speculate(mode="ngram"))
    answer = drafting.run(start(guide=many, max_tokens=900))
    assert isinstance(answer.last, Finished)

    assert json.loads(answer.text) == ["yes"] * 40
    assert answer.last.accepted > 20


def test_a_form_that_cant_be_enforced_is_refused_before_the_stream(worker: WorkerProcess) -> None:
    wanted = Guide(schema='{"type":"string","pattern":"(?=a)"}', field="format")
    worker.send(Render(id=7, text="Hello", guide=wanted))
    refused = worker.next()
    worker.send(Render(id=8, text="Hello", guide=GUIDE))
    taken = worker.next()

    assert isinstance(refused, RenderFailed)
    assert (refused.code, refused.field) == ("schema_unsupported", "format")
    assert not isinstance(taken, RenderFailed)


def test_a_call_of_a_tool_comes_as_text(worker: WorkerProcess) -> None:
    tools = (Tool("look", json.dumps(SCHEMA)),)
    guide = Guide(tools=tools, tool_format="hermes", calls_least=1)
    answer = worker.run(start(guide=guide, sampling=Sampling(temperature=1.0, seed=4)))
    begin, end = '<tool_call>\n{"name": "look", "arguments": ', "}\n</tool_call>"

    assert answer.text.startswith(begin)
    assert answer.text.endswith(end)
    jsonschema.validate(json.loads(answer.text[len(begin) : -len(end)]), SCHEMA)


def test_a_worker_without_such_answers_never_loads_the_library() -> None:
    fresh = WorkerProcess()
    try:
        fresh.load(decoder="kv")
        fresh.run(start(guide=None, max_tokens=4))
        before = "llguidance" in mapped(fresh)
        fresh.run(start(max_tokens=4))
        after = "llguidance" in mapped(fresh)
    finally:
        fresh.close()

    assert not before
    assert after


def test_a_worker_that_such_streams_will_come_to_is_ready_for_them() -> None:
    fresh = WorkerProcess()
    try:
        fresh.load(decoder="kv", guided=True)
        ready = "llguidance" in mapped(fresh)
    finally:
        fresh.close()

    assert ready


def mapped(worker: WorkerProcess) -> str:
    with open(f"/proc/{worker.process.pid}/maps") as maps:
        return maps.read()
