"""Streams go on through every change of what serves them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rig import MIB, Rig, running

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec
from trimtab.errors import ServingError
from trimtab.policy.compiled import Carry, Handover, Policy
from trimtab.worker.detokenize import Detokenizer
from trimtab.worker.vocabulary import parse_vocabulary
from trimtab.workers.protocol import Sampling

DECODERS = ("generator", "kv")
# The tiny model ends an answer before another worker has loaded, unless the engine is paced.
SLOW = policy(
    knobs=replace(policy().knobs, pace_min_ratio=0.1, pace_max_ratio=0.1),
    handover=Handover(Carry.KV, Carry.KV, 60.0),
)
REPLAYING = replace(SLOW, handover=Handover(Carry.REPLAY, Carry.REPLAY, 60.0))
TALK = "Ask me about the weather, the river, and what “你好” means in Grüße aus Köln."


def in_one_piece(tokens: list[int], folder: str) -> str:
    """The text of tokens that one detokenizer has seen from the first to the last."""
    path = Path(folder) / "tokenizer.json"
    detokenizer = Detokenizer(parse_vocabulary(path.read_bytes(), str(path)))
    return "".join(detokenizer.feed(token) for token in tokens)


async def unbroken(rig: Rig, text: str = TALK, **changes: object) -> list[int]:
    answer = await rig.read(await rig.ask(text, **changes))
    return answer.tokens


@pytest.mark.parametrize("decoder", DECODERS)
async def test_a_stream_whose_worker_is_killed_goes_on_as_if_nothing_had_happened(
    tiny: ModelSpec, decoder: str
) -> None:
    async with running(tiny, decoder=decoder) as rig:
        expected = await rig.read(await rig.ask(TALK))
        stream = await rig.ask(TALK)
        answer = await rig.read(stream, tokens=40)
        rig.kill_worker()
        await rig.read(stream, answer)

        assert answer.tokens == expected.tokens
        assert answer.text == expected.text
        assert answer.usage.completion_tokens == 200
        assert stream.disclosure.resumed == 1


@pytest.mark.parametrize("decoder", DECODERS)
async def test_a_sampled_stream_draws_after_a_crash_what_it_would_have_drawn(
    tiny: ModelSpec, decoder: str
) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=7)
    async with running(tiny, decoder=decoder) as rig:
        expected = await unbroken(rig, sampling=sampling)
        stream = await rig.ask(TALK, sampling=sampling)
        answer = await rig.read(stream, tokens=30)
        rig.kill_worker()
        await rig.read(stream, answer)

        assert answer.tokens == expected


@pytest.mark.parametrize(
    ("decoder", "rules"), [("generator", SLOW), ("kv", SLOW), ("kv", REPLAYING)]
)
async def test_a_stream_begins_on_one_variant_and_ends_on_another(
    tiny: ModelSpec, decoder: str, rules: Policy
) -> None:
    async with running(tiny, rules, decoder) as rig:
        stream = await rig.ask(TALK, max_tokens=600)
        answer = await rig.read(stream, tokens=20)
        rig.pin("int4")
        await rig.read(stream, answer)

        assert len(answer.tokens) == 600
        assert stream.disclosure.variants == ("fp32", "int4")
        assert stream.disclosure.switches == 1
        assert answer.text == in_one_piece(answer.tokens, tiny.variants[0].folder)


async def test_every_stream_of_several_crosses_whole(tiny: ModelSpec) -> None:
    async with running(tiny, SLOW) as rig:
        streams = [await rig.ask(TALK + str(number), max_tokens=300) for number in range(4)]
        answers = [await rig.read(stream, tokens=5) for stream in streams]
        rig.pin("int8")
        for stream, answer in zip(streams, answers, strict=True):
            await rig.read(stream, answer)

        assert [len(answer.tokens) for answer in answers] == [300] * 4
        assert all(stream.disclosure.switches == 1 for stream in streams)


async def test_a_stream_is_held_while_nothing_fits_and_goes_on_when_memory_is_back(
    tiny: ModelSpec,
) -> None:
    async with running(tiny) as rig:
        expected = await unbroken(rig, max_tokens=1500)
        stream = await rig.ask(TALK, max_tokens=1500)
        answer = await rig.read(stream, tokens=10)
        rig.sensors.available_bytes = 100 * MIB
        await rig.until(lambda: rig.daemon.dispatcher.point.parked)
        held = rig.daemon.demand(rig.daemon.pool.ledger()).held
        rig.sensors.available_bytes = 8192 * MIB
        await rig.read(stream, answer)

        assert held == 1
        assert answer.tokens == expected


async def test_a_stream_that_is_held_too_long_gets_one_terminal_error(tiny: ModelSpec) -> None:
    short = policy(handover=Handover(Carry.KV, Carry.KV, 0.3))
    async with running(tiny, short) as rig:
        stream = await rig.ask(TALK, max_tokens=1500)
        answer = await rig.read(stream, tokens=10)
        rig.sensors.available_bytes = 100 * MIB
        with pytest.raises(ServingError) as told:
            await rig.read(stream, answer)

        assert told.value.code == "held_too_long"


async def test_the_next_turn_of_a_conversation_starts_from_its_cached_prefix(
    tiny: ModelSpec,
) -> None:
    long = TALK * 6
    async with running(tiny) as rig:
        first = await rig.read(await rig.ask(long))
        again = await rig.read(await rig.ask(long))
        other = await rig.read(await rig.ask(long, user=1001))

        assert first.usage.cached_tokens == 0
        assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
        assert again.tokens == first.tokens
        assert other.usage.cached_tokens == 0


@pytest.mark.parametrize("up", [Carry.KV, Carry.REPLAY])
async def test_kv_that_a_hand_over_would_compute_again_does_not_serve_the_next_turn_either(
    tiny: ModelSpec, up: Carry
) -> None:
    rules = policy(handover=Handover(Carry.KV, up, 60.0))
    async with running(tiny, rules) as rig:
        rig.pin("int4")
        await rig.serves("int4")
        await rig.read(await rig.ask(TALK * 6))
        rig.pin("fp32")
        await rig.serves("fp32")
        first = await rig.read(await rig.ask(TALK * 6))
        second = await rig.read(await rig.ask(TALK * 6))

        assert (first.usage.cached_tokens > 0) == (up is Carry.KV)
        assert second.usage.cached_tokens == second.usage.prompt_tokens - 1


async def test_a_shared_system_prompt_is_copied_and_the_first_conversation_keeps_its_own(
    tiny: ModelSpec,
) -> None:
    shared = TALK * 4
    async with running(tiny) as rig:
        expected = await rig.read(await rig.ask(shared + " The wind", user=7))
        await rig.read(await rig.ask(shared + " " + TALK * 3))
        branch = await rig.read(await rig.ask(shared + " The wind"))
        first = await rig.read(await rig.ask(shared + " " + TALK * 3))

        assert branch.tokens == expected.tokens
        assert branch.usage.cached_tokens > 100
        assert first.usage.cached_tokens == first.usage.prompt_tokens - 1


async def test_a_cancelled_stream_frees_its_place_at_once(tiny: ModelSpec) -> None:
    one = policy(admission=replace(policy().admission, conversations=1))
    async with running(tiny, one) as rig:
        first = await rig.ask(max_tokens=2000)
        await rig.read(first, tokens=3)
        second = await rig.ask(max_tokens=10)
        first.cancel()
        answer = await rig.read(second)

        assert len(answer.tokens) == 10


async def test_the_daemon_leaves_no_process_behind(tiny: ModelSpec) -> None:
    async with running(tiny) as rig:
        worker = rig.daemon.streams.active
        assert worker is not None

    assert not worker.alive


async def test_drafting_changes_how_fast_tokens_come_and_never_which(tiny: ModelSpec) -> None:
    drafting = policy(knobs=replace(policy().knobs, speculation=("off", "draft:int4")))
    async with running(tiny) as rig:
        expected = await unbroken(rig)
    async with running(tiny, drafting) as rig:
        mode = rig.daemon.dispatcher.point.speculation
        drafted = await unbroken(rig)

        assert mode == "draft:int4"
        assert drafted == expected
