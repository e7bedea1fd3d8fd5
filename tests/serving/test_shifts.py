"""Conversations that go on past their context: daemon, workers and engine are real."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import pytest
from rig import Rig, no_free_descriptor, running

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec
from trimtab.domain.view import View, left_after_shift
from trimtab.errors import RequestError
from trimtab.policy.compiled import Carry, Handover, KvPolicy, Policy, Share, Window
from trimtab.serving.claims import Lease
from trimtab.serving.requests import FinishReason
from trimtab.serving.room import Room
from trimtab.serving.stream import Stream
from trimtab.workers.protocol import Full, Move, Sampling
from trimtab.workers.worker import Worker

CONTEXT = 256
KEEP = 8
TALK = "Ask me about the weather, the river, and what “你好” means in Grüße aus Köln."


def shifting(keep: int | None = KEEP, **changes: Any) -> Policy:
    """A policy whose context is full soon, and lets conversations go on past it."""
    knobs = replace(
        policy().knobs, context_min=CONTEXT, context_max=CONTEXT, window=Window(True, keep)
    )
    return policy(knobs=knobs, handover=Handover(Carry.KV, Carry.KV, 60.0), **changes)


SLOWLY = replace(
    shifting(), knobs=replace(shifting().knobs, pace_min_ratio=0.1, pace_max_ratio=0.1)
)


WORDS = Sampling(logit_bias=dict.fromkeys(range(4), -100.0))  # nothing that is no text


async def ask(rig: Rig, **changes: Any) -> Stream:
    stream = await rig.ask(**({"text": TALK, "max_tokens": 3 * CONTEXT} | changes))
    assert isinstance(stream, Stream)
    return stream


def expected_shifts(stream: Stream) -> int:
    """How often the window of a stream that has ended was full."""
    return stream.view.dropped // (CONTEXT - left_after_shift(stream.view, CONTEXT))


class DeadlyRoom(Room):
    """Kills the worker once, as soon as it has been told to move its nth time."""

    def __init__(self, rig: Rig, times: int) -> None:
        super().__init__(rig.daemon.pool)
        self.rig = rig
        self.times = times

    def shift(self, stream: Stream, worker: Worker, full: Full) -> None:
        super().shift(stream, worker, full)
        self.times -= stream.moving is not None
        if self.times == 0:
            self.rig.kill_worker()


class FullRoom(Room):
    """Has no second segment for anybody."""

    def _second(self, stream: Stream, view: View) -> Lease | None:
        return None


class DamagedRoom(Room):
    """Orders moves into files that are no segments."""

    def order(self, stream: Stream, worker: Worker, target: Lease, view: View) -> None:
        stream.moving = target
        with tempfile.TemporaryFile() as file:
            order = Move(stream.id, view.dropped, segment=True, granted=target.granted)
            worker.send(order, [file.fileno()])


async def test_a_shift_that_fails_has_what_stays_read_again(tiny: ModelSpec) -> None:
    answers, streams = [], []
    async with running(tiny, shifting()) as rig:
        for room in (FullRoom(rig.daemon.pool), DamagedRoom(rig.daemon.pool)):
            rig.daemon.pool.release_all()
            rig.daemon.streams.room = room
            streams.append(await ask(rig))
            answers.append(await rig.read(streams[-1]))
        ledger = rig.daemon.pool.ledger()

        assert "another model" in streams[1].not_moved
        assert answers[1].tokens == answers[0].tokens
        assert streams[1].disclosure.shifts == streams[0].disclosure.shifts >= 5
        assert rig.daemon.supervisor.losses == 0
        assert ledger.leased == 0


async def test_a_shift_without_a_free_descriptor_has_what_stays_read_again(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, shifting()) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=5)
        with no_free_descriptor(monkeypatch):
            await rig.until(lambda: stream.shifts > 0)
            moving, why = stream.moving, stream.not_moved
        await rig.read(stream, answer)

        assert moving is None
        assert "Too many open files" in why
        assert len(answer.tokens) == 3 * CONTEXT
        assert stream.disclosure.shifts == expected_shifts(stream)
        assert rig.daemon.supervisor.losses == 0
        assert rig.daemon.pool.ledger().leased == 0


@pytest.mark.parametrize("decoder", ["kv", "generator"])
async def test_a_stream_goes_on_for_three_times_its_context(tiny: ModelSpec, decoder: str) -> None:
    async with running(tiny, shifting(), decoder) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream)
        told = stream.disclosure

        assert answer.end is not None
        assert answer.end.reason is FinishReason.LENGTH
        assert len(answer.tokens) == 3 * CONTEXT
        assert told.context == CONTEXT
        assert told.shifts >= 5
        assert len(stream.tokens) - told.dropped_tokens <= CONTEXT
        assert rig.daemon.streams.room.shifts == told.shifts


async def test_a_stream_ends_at_its_context_where_the_policy_refuses(tiny: ModelSpec) -> None:
    refusing = shifting()
    refusing = replace(refusing, knobs=replace(refusing.knobs, window=Window(False, None)))
    async with running(tiny, refusing) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream)

        assert len(stream.prompt) + len(answer.tokens) == CONTEXT
        assert stream.disclosure.shifts == stream.disclosure.dropped_tokens == 0


async def test_an_answer_without_a_limit_gets_no_more_than_another_context(
    tiny: ModelSpec,
) -> None:
    async with running(tiny, shifting()) as rig:
        answer = await rig.read(await ask(rig, max_tokens=None))

        assert len(answer.tokens) == CONTEXT


@pytest.mark.parametrize("after", [1, 2])
async def test_a_worker_that_is_killed_during_a_shift_loses_nothing(
    tiny: ModelSpec, after: int
) -> None:
    async with running(tiny, shifting()) as rig:
        expected = await rig.read(await ask(rig))
        rig.daemon.pool.release_all()
        rig.daemon.streams.room = DeadlyRoom(rig, after)
        stream = await ask(rig)
        answer = await rig.read(stream)
        ledger = rig.daemon.pool.ledger()

        assert stream.disclosure.resumed == 1
        assert stream.disclosure.shifts == expected_shifts(stream)
        assert answer.tokens == expected.tokens
        assert answer.text == expected.text
        assert ledger.leased == 0


async def test_a_shifted_stream_is_handed_over_and_shifted_again(tiny: ModelSpec) -> None:
    async with running(tiny, SLOWLY) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=CONTEXT)
        shifts = stream.shifts
        rig.pin("int4")
        await rig.read(stream, answer)

        assert shifts >= 1
        assert stream.shifts > shifts
        assert stream.disclosure.variants == ("fp32", "int4")
        assert len(answer.tokens) == 3 * CONTEXT


async def test_a_shifted_stream_that_is_replayed_elsewhere_reads_only_what_it_still_sees(
    tiny: ModelSpec,
) -> None:
    replaying = replace(SLOWLY, handover=Handover(Carry.REPLAY, Carry.REPLAY, 60.0))
    async with running(tiny, replaying) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=CONTEXT)
        rig.pin("int8")
        await rig.serves("int8")
        await rig.until(lambda: stream.lease is not None and stream.lease.valid > KEEP)
        seen = stream.positions
        await rig.read(stream, answer)

        assert seen <= CONTEXT
        assert len(answer.tokens) == 3 * CONTEXT


async def test_where_there_is_no_room_for_a_second_segment_the_kept_tokens_are_read_again(
    tiny: ModelSpec,
) -> None:
    kv_bytes = CONTEXT * tiny.variants[0].kv_bytes_per_token
    async with running(tiny, shifting(kv=KvPolicy(kv_bytes, 0, 0, Share.USER))) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream)

        assert len(answer.tokens) == 3 * CONTEXT
        assert stream.disclosure.shifts >= 5


async def test_the_next_turn_goes_on_from_what_was_left_of_the_conversation(
    tiny: ModelSpec,
) -> None:
    async with running(tiny, shifting()) as rig:
        stream = await ask(rig, text="The river", sampling=WORDS)
        answer = await rig.read(stream)
        longer = "The river" + answer.text + " And then?"
        following = await ask(rig, text=longer, max_tokens=40)
        told = await rig.read(following)

        assert len(told.tokens) == 40
        assert told.usage.prompt_tokens > 3 * CONTEXT
        assert told.usage.cached_tokens > left_after_shift(stream.view, CONTEXT) // 2
        assert following.disclosure.dropped_tokens >= stream.disclosure.dropped_tokens


async def test_a_prompt_that_fits_never_begins_with_a_shifted_conversation(
    tiny: ModelSpec,
) -> None:
    async with running(tiny, shifting(keep=64)) as rig:
        unshifted = await rig.read(await ask(rig, max_tokens=20))
        rig.daemon.pool.release_all()
        first = await ask(rig)
        await rig.read(first)
        again = await ask(rig, max_tokens=20)
        answer = await rig.read(again)

        assert first.disclosure.dropped_tokens > 0
        assert answer.tokens == unshifted.tokens
        assert answer.usage.cached_tokens <= 64
        assert again.disclosure.dropped_tokens == 0


async def test_a_conversation_that_goes_over_the_context_with_its_next_message_is_carried_over(
    tiny: ModelSpec,
) -> None:
    async with running(tiny, shifting()) as rig:
        first = await ask(rig, max_tokens=100)
        answer = await rig.read(first)
        longer = TALK + answer.text + TALK * 2
        second = await ask(rig, text=longer, max_tokens=30)
        told = await rig.read(second)

        assert len(second.prompt) > CONTEXT
        assert told.usage.cached_tokens >= 100
        assert second.disclosure.shifts == 1


async def test_a_prompt_that_is_far_too_long_keeps_its_beginning_and_its_end(
    tiny: ModelSpec,
) -> None:
    async with running(tiny, shifting()) as rig:
        stream = await ask(rig, text=TALK * 20, max_tokens=10)
        dropped = stream.view.dropped
        answer = await rig.read(stream)

        assert len(stream.prompt) - dropped == left_after_shift(stream.view, CONTEXT)
        assert len(answer.tokens) == 10


async def test_the_system_prompt_stays_whole(tiny: ModelSpec) -> None:
    system = "You answer about the river and the weather."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}]
    async with running(tiny, shifting(keep=None)) as rig:
        stream = await ask(rig, text=None, messages=messages)
        worker = rig.daemon.streams.active
        assert worker is not None
        alone = await worker.render(text=system)
        answer = await rig.read(stream)

        assert len(answer.tokens) == 3 * CONTEXT
        assert len(alone) < stream.view.keep < len(stream.prompt)


async def test_a_beginning_that_takes_half_of_the_context_leaves_nothing_to_shift(
    tiny: ModelSpec,
) -> None:
    async with running(tiny, shifting(keep=CONTEXT // 2)) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream)
        with pytest.raises(RequestError) as told:
            await ask(rig, text=TALK * 20)

        assert len(stream.prompt) + len(answer.tokens) == CONTEXT
        assert told.value.code == "context_length_exceeded"
