"""The next turn of a conversation goes on with the token ids that it has, whoever made them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rig import Answer, Rig, running
from test_shifts import WORDS

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec
from trimtab.policy.compiled import KvPolicy, Share
from trimtab.serving.said import MOST_KEYS, MOST_MESSAGES, keys
from trimtab.serving.stream import Stream
from trimtab.workers.protocol import Sampling


def question(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answered(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def turn(
    rig: Rig, messages: list[dict[str, Any]], seed: int = 0, tokens: int = 100, **changes: Any
) -> tuple[Stream, Answer]:
    sampling = Sampling(temperature=0.7, seed=seed, logit_bias=WORDS.logit_bias)
    stream = await rig.ask(
        text=None, messages=messages, max_tokens=tokens, sampling=sampling, **changes
    )
    assert isinstance(stream, Stream)
    return stream, await rig.read(stream)


def tokenized_otherwise(stream: Stream, canonical: list[int]) -> bool:
    """Whether the tokenizer would have written what it holds in another way."""
    held = stream.tokens[:-1]
    return canonical[: len(held)] != held


async def canonical(rig: Rig, messages: list[dict[str, Any]]) -> list[int]:
    worker = rig.daemon.streams.active
    assert worker is not None
    return await worker.render(messages=messages)


async def test_what_a_model_put_together_otherwise_is_not_computed_again(tiny: ModelSpec) -> None:
    odd = 0
    async with running(tiny) as rig:
        for seed in range(8):
            messages = [question(f"{seed}: tell me of the river.")]
            stream, answer = await turn(rig, messages, seed)
            messages += [answered(answer.text), question("And then?")]
            odd += tokenized_otherwise(stream, await canonical(rig, messages))
            following, told = await turn(rig, messages, seed)
            messages += [answered(told.text), question("Why?")]
            _, last = await turn(rig, messages, seed, tokens=3)

            assert told.usage.cached_tokens == len(stream.tokens) - 1
            assert last.usage.cached_tokens == len(following.tokens) - 1
    assert odd >= 4


async def test_another_question_in_the_place_of_the_last_one_keeps_what_stands_before_it(
    tiny: ModelSpec,
) -> None:
    async with running(tiny) as rig:
        messages = [question("Tell me of the river.")]
        stream, answer = await turn(rig, messages, seed=3)
        messages.append(answered(answer.text))
        await turn(rig, [*messages, question("And then?")])
        _, told = await turn(rig, [*messages, question("Who was there?")])

        assert told.usage.cached_tokens >= len(stream.tokens) - 1


@pytest.mark.parametrize("share", Share)
async def test_nobody_goes_on_with_what_another_user_was_told(
    tiny: ModelSpec, share: Share
) -> None:
    shared = policy(kv=replace(KvPolicy(None, 0, 0, Share.USER), share=share))
    async with running(tiny, shared) as rig:
        for seed in range(20):
            messages = [question(f"{seed}: tell me of the river.")]
            stream, answer = await turn(rig, messages, seed, user=1000)
            messages += [answered(answer.text), question("And then?")]
            if tokenized_otherwise(stream, await canonical(rig, messages)):
                break
        known = rig.daemon.pool.known(keys(messages), 1001, everyone=share is Share.ALL)
        following, _ = await turn(rig, messages, user=1001)

        same = following.prompt[: len(stream.tokens) - 1] == stream.tokens[:-1]
        assert bool(known) == same == (share is Share.ALL)


def test_what_clients_may_leave_out_makes_no_difference() -> None:
    plain = [question("Hi"), answered("Hello")]
    full = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": None},
        {"role": "assistant", "content": "Hello", "tool_calls": [], "refusal": None},
    ]

    assert keys(plain) == keys(full) == keys([question("Hi")], "Hello")


def test_of_a_very_long_conversation_only_the_latest_answers_have_keys() -> None:
    messages = [question("Hi"), answered("Hello")] * (MOST_MESSAGES // 2)

    assert len(keys(messages)) == MOST_KEYS
    assert keys(messages)[-1] == keys(messages[:-1], "Hello")[-1]
    assert keys([*messages, question("And?")]) == ()


def test_each_answer_has_a_key_that_depends_on_all_before_it() -> None:
    messages = [question("Hi"), answered("Hello"), question("And?"), answered("Well")]
    other = [question("Ho"), *messages[1:]]

    assert len(keys(messages)) == 2
    assert keys(messages[:2]) == keys(messages)[:1]
    assert set(keys(messages)).isdisjoint(keys(other))
