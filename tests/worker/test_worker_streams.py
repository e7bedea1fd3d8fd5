"""Streams through a real worker process with the tiny model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import monotonic
from typing import Any

import msgspec
import onnxruntime_genai as og
import pytest
from worker_peer import TINY, Answer, WorkerProcess

from trimtab.workers.protocol import (
    Cancel,
    Detach,
    Detached,
    Failed,
    Finished,
    Pace,
    Pause,
    Ping,
    Pong,
    Progress,
    Ready,
    Render,
    Rendered,
    RenderFailed,
    Resume,
    Sampling,
    Start,
    Tokens,
)

STORY = "At noon the sea was calm"


def start(worker: WorkerProcess, **fields: Any) -> Start:
    whole: dict[str, Any] = {"stream": 1, "prompt": worker.prompt(STORY), "max_tokens": 60}
    return Start(**(whole | fields))


def test_an_answer_counts_its_tokens_and_ends_once(worker: WorkerProcess) -> None:
    answer = worker.run(start(worker, ignore_eos=True))

    assert [piece.first for piece in answer.pieces] == list(range(60))
    assert answer.reason == "length"
    assert isinstance(answer.said[0], Progress)
    assert len(answer.text) > 60


def test_greedy_answers_are_repeatable(worker: WorkerProcess) -> None:
    assert worker.run(start(worker)).tokens == worker.run(start(worker, stream=2)).tokens


def test_sampled_answers_follow_their_seed(worker: WorkerProcess) -> None:
    def sampled(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.0, top_p=0.95, seed=seed)
        return worker.run(start(worker, sampling=sampling)).tokens

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_an_answer_ends_with_the_end_of_turn(worker: WorkerProcess) -> None:
    worker.send(Render(id=1, messages=[{"role": "user", "content": "Say hello."}]))
    rendered = worker.next()
    assert isinstance(rendered, Rendered)
    answer = worker.run(Start(stream=3, prompt=rendered.tokens, max_tokens=200))

    assert answer.reason == "stop"
    assert answer.tokens[-1] == 2
    assert "<|im_end|>" not in answer.text


@pytest.mark.parametrize("cut", [1, 2, 7, 30, 59])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.0, top_p=0.95, seed=11),
        Sampling(temperature=0.9, top_k=20, repetition_penalty=1.2, frequency_penalty=0.3, seed=3),
    ],
    ids=["greedy", "sampled", "penalties"],
)
def test_a_stream_goes_on_as_if_it_had_never_been_cut(
    worker: WorkerProcess, sampling: Sampling, cut: int
) -> None:
    fields: dict[str, Any] = {"sampling": sampling, "ignore_eos": True}
    whole = worker.run(start(worker, **fields))
    rest = worker.run(start(worker, generated=whole.tokens[:cut], **fields))
    before = "".join(piece.text for piece in whole.pieces[:cut])

    assert whole.tokens[:cut] + rest.tokens == whole.tokens
    assert [piece.first for piece in rest.pieces] == list(range(cut, 60))
    assert before + rest.text == whole.text


def test_a_character_is_whole_across_every_seam(worker: WorkerProcess) -> None:
    prompt = worker.prompt("At noon the sea was calm. The captain said: “")
    story = [token for text in ("你好。", "☀ 🌙", "海は静") for token in worker.prompt(text)]
    forced = Start(stream=1, prompt=prompt, generated=story, max_tokens=len(story) + 1)
    expected = "你好。☀ 🌙海は静"
    seen = ""
    for cut in range(len(story)):
        # Whatever the model would say, the token that comes next is forced by its bias.
        bias = {story[cut]: 1000.0}
        asked = msgspec.structs.replace(
            forced,
            generated=story[:cut],
            max_tokens=cut + 1,
            sampling=Sampling(logit_bias=bias),
            ignore_eos=True,
        )
        answer = worker.run(asked)
        assert answer.tokens == [story[cut]]
        seen += answer.pieces[0].text

    assert seen == expected


def test_a_stop_string_is_found_across_a_seam_and_never_shown(worker: WorkerProcess) -> None:
    whole = worker.run(start(worker, ignore_eos=True))
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 9]
    wanted = whole.text[: whole.text.index(stop)]
    unbroken = worker.run(start(worker, ignore_eos=True, stop=[stop]))
    assert (unbroken.text, unbroken.reason) == (wanted, "stop")
    for cut in range(1, len(unbroken.tokens)):
        before = "".join(piece.text for piece in unbroken.pieces[:cut])
        rest = worker.run(
            start(worker, ignore_eos=True, stop=[stop], generated=unbroken.tokens[:cut])
        )

        assert (before + rest.text, rest.reason) == (wanted, "stop")


def test_a_stream_whose_end_was_lost_ends_at_once(worker: WorkerProcess) -> None:
    whole = worker.run(start(worker, max_tokens=10, ignore_eos=True))
    again = worker.run(start(worker, max_tokens=10, ignore_eos=True, generated=whole.tokens))

    assert [type(message) for message in again.said] == [Finished]
    assert again.reason == "length"


def test_held_back_text_comes_with_the_end(worker: WorkerProcess) -> None:
    whole = worker.run(start(worker, max_tokens=12, ignore_eos=True))
    stop = whole.text[-1] + "\x00never"
    held = worker.run(start(worker, max_tokens=12, ignore_eos=True, stop=[stop]))

    assert isinstance(held.last, Finished)
    assert held.last.text == whole.text[-1]
    assert held.text == whole.text


def test_the_context_ends_an_answer(worker: WorkerProcess) -> None:
    prompt = worker.prompt(STORY)
    answer = worker.run(
        Start(stream=1, prompt=prompt, max_tokens=500, context=len(prompt) + 5, ignore_eos=True)
    )

    assert (len(answer.tokens), answer.reason) == (5, "length")


def test_logprobs_are_of_the_chosen_token_and_the_best(worker: WorkerProcess) -> None:
    answer = worker.run(start(worker, max_tokens=5, sampling=Sampling(top_logprobs=3)))
    for piece in answer.pieces:
        (logprob,) = piece.logprobs

        assert logprob.top[0][0] == piece.tokens[0]
        assert logprob.logprob == logprob.top[0][2]
        assert logprob.logprob <= 0
        assert [value for _, _, value in logprob.top] == sorted(
            (value for _, _, value in logprob.top), reverse=True
        )


def test_several_streams_run_together_and_none_disturbs_another(worker: WorkerProcess) -> None:
    alone = [
        worker.run(start(worker, stream=9, sampling=Sampling(temperature=1.0, seed=seed)))
        for seed in range(4)
    ]
    starts = [
        start(worker, stream=10 + seed, sampling=Sampling(temperature=1.0, seed=seed))
        for seed in range(4)
    ]
    for request in starts:
        worker.send(request)
    said = worker.end_of(10, 11, 12, 13)
    together = [Answer(said[10 + seed]) for seed in range(4)]

    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert [answer.text for answer in together] == [answer.text for answer in alone]


def test_streams_that_decode_go_on_while_another_prefills(worker: WorkerProcess) -> None:
    prompt = worker.prompt(STORY)
    worker.send(Start(stream=1, prompt=prompt, max_tokens=1900, ignore_eos=True))
    worker.until(lambda message: isinstance(message, Tokens))
    worker.send(Start(stream=2, prompt=prompt * 90, max_tokens=1))
    until_first = worker.until(lambda message: isinstance(message, Tokens) and message.stream == 2)
    worker.send(Cancel(stream=1))
    worker.until(lambda message: isinstance(message, Finished) and message.stream == 1)
    pieces = [m for m in until_first if isinstance(m, Progress) and m.stream == 2]
    between = [m for m in until_first if isinstance(m, Tokens) and m.stream == 1]

    assert len(pieces) >= 10
    assert len(between) >= len(pieces) - 1


def test_a_short_prompt_does_not_wait_for_a_long_one_to_be_read(worker: WorkerProcess) -> None:
    long = worker.prompt(STORY) * 200
    worker.send(start(worker, stream=1, prompt=long[:1900], max_tokens=3, ignore_eos=True))
    first = worker.next()
    for number, length in ((2, 150), (3, 30)):
        worker.send(start(worker, stream=number, prompt=long[:length], max_tokens=1))
    rest = worker.until(lambda message: isinstance(message, Finished) and message.stream == 1)
    said = [first, *rest]
    ended = [one.stream for one in said if isinstance(one, Finished)]
    pieces = [one.stream for one in said if isinstance(one, Progress)]

    assert ended == [3, 2, 1]
    begun = pieces.index(3)
    assert 1 in pieces[begun : begun + 3]  # the long one goes on meanwhile
    assert pieces[pieces.index(2) :].count(1) > 10


@pytest.mark.parametrize("length", [65, 129, 193])
def test_no_token_of_a_prompt_is_computed_alone(worker: WorkerProcess, length: int) -> None:
    prompt = (worker.prompt(STORY) * 60)[:length]
    answer = worker.run(start(worker, prompt=prompt, max_tokens=1))
    done = [0, *(one.done for one in answer.said if isinstance(one, Progress))]

    assert done[-1] == length
    assert all(end - begin > 1 for begin, end in pairwise(done))


def test_a_cancelled_stream_ends_once_in_the_middle_of_its_prefill(worker: WorkerProcess) -> None:
    prompt = worker.prompt(STORY) * 120
    worker.send(Start(stream=1, prompt=prompt, max_tokens=4))
    worker.until(lambda message: isinstance(message, Progress))
    worker.send(Cancel(stream=1))
    said = worker.end_of(1)[1]
    worker.send(Ping(id=5))
    after = worker.next()

    assert isinstance(said[-1], Finished)
    assert said[-1].reason == "cancelled"
    assert isinstance(after, Pong)
    assert not any(isinstance(message, Tokens) for message in said)


def test_each_step_tells_its_engine_time_and_who_shared_it(worker: WorkerProcess) -> None:
    alone = worker.run(start(worker, stream=1, max_tokens=30, ignore_eos=True))
    for number in (2, 3):
        worker.send(start(worker, stream=number, max_tokens=30, ignore_eos=True))
    said = worker.end_of(2, 3)
    shared = Answer(said[3])
    read_s = sum(message.engine_s for message in alone.said if isinstance(message, Progress))

    assert [piece.together for piece in alone.pieces] == [1] * 30
    assert alone.pieces[0].engine_s == 0  # it came with the prompt
    assert all(piece.engine_s > 0 for piece in alone.pieces[1:])
    assert isinstance(alone.last, Finished)
    assert read_s == pytest.approx(alone.last.prefill_s)
    assert sum(piece.engine_s for piece in alone.pieces) == pytest.approx(alone.last.decode_s)
    assert {piece.together for piece in shared.pieces[1:]} <= {1, 2}
    assert 2 in [piece.together for piece in shared.pieces]


def test_a_paused_stream_computes_nothing_until_it_is_resumed(worker: WorkerProcess) -> None:
    whole = worker.run(start(worker, max_tokens=400, ignore_eos=True))
    worker.send(start(worker, max_tokens=400, ignore_eos=True))
    before = worker.until(lambda message: isinstance(message, Tokens))
    worker.send(Pause(stream=1))
    worker.send(Ping(id=1))
    before += worker.until(lambda message: isinstance(message, Pong))
    assert worker.until_silent(0.15) == []
    worker.send(Resume(stream=1))
    answer = Answer([m for m in before if not isinstance(m, Pong)] + worker.end_of(1)[1])

    assert answer.tokens == whole.tokens


def test_a_detached_stream_says_how_far_it_came(worker: WorkerProcess) -> None:
    whole = worker.run(start(worker, max_tokens=1500, ignore_eos=True))
    worker.send(start(worker, max_tokens=1500, ignore_eos=True))
    worker.until(lambda message: isinstance(message, Tokens) and message.first == 4)
    worker.send(Detach(stream=1))
    said = worker.end_of(1)[1]
    last = said[-1]
    assert isinstance(last, Detached)
    produced = 5 + sum(isinstance(message, Tokens) for message in said)
    rest = worker.run(
        start(worker, max_tokens=1500, ignore_eos=True, generated=whole.tokens[: last.produced])
    )

    assert last.produced == produced
    assert whole.tokens[:produced] + rest.tokens == whole.tokens


def test_the_engine_keeps_to_its_pace(worker: WorkerProcess) -> None:
    def busy_share() -> float:
        worker.send(start(worker, max_tokens=1200, ignore_eos=True))
        worker.send(Ping(id=1))
        first = worker.until(lambda message: isinstance(message, Pong))[-1]
        begun = monotonic()
        worker.until(lambda message: isinstance(message, Tokens) and message.first > 60)
        worker.send(Ping(id=2))
        second = worker.until(lambda message: isinstance(message, Pong))[-1]
        worker.send(Cancel(stream=1))
        worker.end_of(1)
        assert isinstance(first, Pong)
        assert isinstance(second, Pong)
        return (second.busy_s - first.busy_s) / (monotonic() - begun)

    worker.send(Pace(ratio=0.1))
    try:
        assert busy_share() < 0.2
    finally:
        worker.send(Pace(ratio=1.0))


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"prompt": []}, "invalid_request", "prompt: it has no tokens"),
        ({"prompt": [5, 512]}, "invalid_request", "prompt: token ids are 0 to 511"),
        ({"prompt": [-1]}, "invalid_request", "prompt: token ids"),
        ({"prompt": [2**62]}, "invalid_request", "prompt: token ids"),
        ({"generated": [600]}, "invalid_request", "generated: token ids"),
        ({"prompt": [5] * 2048}, "context_length_exceeded", "the prompt has 2048 tokens"),
        ({"prompt": [5] * 20, "context": 20}, "context_length_exceeded", "the context holds 20"),
        ({"context": 2049}, "invalid_request", "context: 2049"),
        ({"context": 0}, "invalid_request", "context: 0"),
        ({"max_tokens": 0}, "invalid_request", "max_tokens: 0"),
        ({"valid": -1}, "invalid_request", "valid"),
        ({"stop": [""]}, "invalid_request", "stop"),
        ({"sampling": Sampling(temperature=-0.1)}, "invalid_request", "temperature: -0.1"),
        ({"sampling": Sampling(temperature=float("nan"))}, "invalid_request", "temperature: nan"),
        ({"sampling": Sampling(top_p=1.5)}, "invalid_request", "top_p"),
        ({"sampling": Sampling(top_k=-1)}, "invalid_request", "top_k"),
        ({"sampling": Sampling(repetition_penalty=0)}, "invalid_request", "repetition_penalty"),
        ({"sampling": Sampling(presence_penalty=1e9)}, "invalid_request", "presence_penalty"),
        ({"sampling": Sampling(frequency_penalty=-1e9)}, "invalid_request", "frequency_penalty"),
        ({"sampling": Sampling(top_logprobs=65)}, "invalid_request", "top_logprobs"),
        ({"sampling": Sampling(logit_bias={512: 1.0})}, "invalid_request", "logit_bias: token ids"),
        (
            {"sampling": Sampling(logit_bias={1: float("inf")})},
            "invalid_request",
            "logit_bias: the values",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_field_out_of_range_fails_its_stream_alone(
    worker: WorkerProcess, fields: dict[str, Any], code: str, says: str
) -> None:
    worker.send(start(worker, stream=1, max_tokens=40, ignore_eos=True))
    worker.send(Start(**({"stream": 2, "prompt": [5, 6]} | fields)))
    said = worker.end_of(1, 2)
    (refused,) = said[2]

    assert isinstance(refused, Failed)
    assert refused.code == code
    assert says in refused.message
    assert isinstance(said[1][-1], Finished)


def test_a_number_that_is_taken_ends_with_one_failure(worker: WorkerProcess) -> None:
    worker.send(start(worker, max_tokens=1500, ignore_eos=True))
    worker.until(lambda message: isinstance(message, Tokens))
    worker.send(start(worker))
    said = worker.end_of(1)[1]
    worker.send(Ping(id=1))

    assert isinstance(said[-1], Failed)
    assert "started twice" in said[-1].message
    assert isinstance(worker.next(), Pong)


def test_messages_for_unknown_streams_are_ignored(worker: WorkerProcess) -> None:
    for message in (Cancel(77), Detach(77), Pause(77), Resume(77)):
        worker.send(message)
    worker.send(Ping(id=1))

    assert isinstance(worker.next(), Pong)


def test_a_prompt_that_ends_with_the_padding_token_is_computed_to_its_end(
    worker: WorkerProcess,
) -> None:
    # The engine's own logits would be those of the token before.
    prompt = worker.prompt(STORY)
    at_once = worker.run(Start(stream=1, prompt=[*prompt, 0], max_tokens=20, ignore_eos=True))
    stepwise = worker.run(
        Start(stream=1, prompt=prompt, max_tokens=1, sampling=Sampling(logit_bias={0: 1000}))
    )
    rest = worker.run(
        Start(stream=1, prompt=prompt, generated=stepwise.tokens, max_tokens=21, ignore_eos=True)
    )

    assert stepwise.tokens == [0]
    assert rest.tokens == at_once.tokens


@pytest.mark.parametrize(
    ("request_fields", "code", "says"),
    [
        ({"text": ""}, "prompt_empty", "the prompt is empty"),
        ({"text": "a\0b"}, "token_unknown", "NUL"),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "token_unknown", "NUL"),
        ({"messages": []}, "prompt_empty", "there are none"),
        ({"messages": [{"content": "hi"}]}, "template_refused", "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "template_refused",
            "messages[0].content: only text",
        ),
    ],
)
def test_a_prompt_that_cannot_be_rendered_is_the_requests_fault(
    worker: WorkerProcess, request_fields: dict[str, Any], code: str, says: str
) -> None:
    worker.send(Render(id=4, **request_fields))
    refused = worker.next()
    worker.send(Render(id=6, text="still here"))

    assert isinstance(refused, RenderFailed)
    assert (refused.id, refused.code) == (4, code)
    assert says in refused.message
    assert isinstance(worker.next(), Rendered)


def test_content_in_parts_is_rendered_as_one_text(worker: WorkerProcess) -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    worker.send(Render(id=1, messages=[{"role": "user", "content": parts}]))
    worker.send(Render(id=1, messages=[{"role": "user", "content": "Say hello."}]))

    assert worker.next() == worker.next()


def test_malformed_messages_are_answered_or_ignored(worker: WorkerProcess) -> None:
    raw = msgspec.msgpack.encode
    for body in (
        raw({"type": "start", "stream": 8, "prompt": "text"}),
        raw({"type": "render", "id": 9, "text": 7}),
        raw({"type": "dance"}),
        raw([1, 2]),
        b"\xc1 garbage",
    ):
        worker.send_raw(body)
    worker.send(Ping(id=1))
    said = worker.until(lambda message: isinstance(message, Pong))

    assert [type(message) for message in said] == [Failed, RenderFailed, Pong]
    assert isinstance(said[0], Failed)
    assert "prompt" in said[0].message


@pytest.mark.parametrize("variant", ["int8", "int4"])
def test_every_variant_loads_and_answers(
    new_worker: Callable[[], WorkerProcess], variant: str
) -> None:
    worker = new_worker()
    ready = worker.load(variant, context=512)
    answer = worker.run(start(worker, ignore_eos=True, context=512))

    assert isinstance(ready, Ready)
    assert (ready.context, ready.vocabulary, ready.eos) == (512, 512, [2])
    assert ready.resident_bytes > 10_000_000
    assert len(answer.tokens) == 60
    assert worker.stop() == 0


def test_the_text_is_that_of_the_engines_own_tokenizer(worker: WorkerProcess) -> None:
    answer = worker.run(start(worker, max_tokens=1500, ignore_eos=True))
    tokenizer = og.Tokenizer(str(TINY / "fp32"))
    expected = tokenizer.decode([token for token in answer.tokens if token > 2])
    sound = answer.text.partition("\ufffd")[0]  # the engine stops at bytes that are no character

    assert len(sound) > 1000
    assert expected.startswith(sound)
