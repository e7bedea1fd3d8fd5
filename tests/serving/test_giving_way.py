"""Conversations that wait for room without their KV, and go on where they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from rig import Rig, beside_worker, running
from test_continuity import TALK
from test_running_kv import ask

from policies_for_tests import policy
from trimtab.domain.actions import Park
from trimtab.domain.decisions import Direction
from trimtab.domain.events import OutcomeKind
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Reading
from trimtab.planner.assess import facts, situation
from trimtab.planner.predict import predict
from trimtab.policy.compiled import KvPolicy, Policy, Share
from trimtab.serving.claims import shape_of
from trimtab.serving.requests import Ended
from trimtab.serving.stream import Stream, StreamState

TEXTS = (TALK, "The river is high after the rain, and the bridge", "Three boats lie at the quay")


def slow(pool_bytes: int | None = None) -> Policy:
    """One variant, at a pace at which something can happen meanwhile."""
    rules = policy()
    knobs = replace(rules.knobs, variants=("fp32",), pace_min_ratio=0.1, pace_max_ratio=0.1)
    admission = replace(rules.admission, conversations=3)
    kv = KvPolicy(pool_bytes, 0, 0, Share.USER)
    return replace(rules, knobs=knobs, admission=admission, kv=kv)


def pool_for(model: ModelSpec, tokens: int) -> int:
    return shape_of(model, model.variants[0]).token_bytes * tokens


async def unbroken(rig: Rig, tokens: int) -> list[list[int]]:
    """What each text's answer is when it has all the room in the world."""
    answers = [await rig.read(await ask(rig, text=text, max_tokens=tokens)) for text in TEXTS]
    rig.daemon.pool.release_all()
    return [answer.tokens for answer in answers]


async def begun(rig: Rig, tokens: int, after: int = 5) -> list[Stream]:
    """Conversations that have so many tokens each, or some more."""
    streams = [await ask(rig, text=text, max_tokens=tokens) for text in TEXTS]
    for stream in streams:
        await rig.until(lambda stream=stream: len(stream.generated) >= after)
    return streams


async def read(rig: Rig, streams: list[Stream]) -> list[list[int]]:
    answers = [await rig.read(stream) for stream in streams]
    assert all(isinstance(answer.end, Ended) for answer in answers)
    return [answer.tokens for answer in answers]


@contextmanager
def memory(
    rig: Rig, available_bytes: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(
            rig.sensors,
            "memory_available",
            lambda at_s: Reading("memory.available", float(available_bytes()), at_s),
        )
        yield


async def test_answers_that_outgrow_the_pool_together_are_all_whole(tiny: ModelSpec) -> None:
    async with running(tiny, slow()) as rig:
        expected = await unbroken(rig, 500)
        rig.daemon.put_in_force(slow(pool_for(tiny, 700)))
        streams = await begun(rig, 500)
        answers = await read(rig, streams)
        gave_way = [stream.gave_way for stream in streams]

        assert answers == expected
        assert gave_way[0] == 0
        assert 1 <= sum(gave_way) <= 4
        assert rig.daemon.streams.gave_way == sum(gave_way)


async def test_a_smaller_pool_ends_nobody_who_runs(tiny: ModelSpec) -> None:
    async with running(tiny, slow()) as rig:
        expected = await unbroken(rig, 400)
        streams = await begun(rig, 400)
        rig.daemon.put_in_force(slow(pool_for(tiny, 200)))
        answers = await read(rig, streams)

        assert answers == expected
        assert [stream.gave_way > 0 for stream in streams] == [False, True, True]
        assert rig.daemon.gateway.effective_context() < 200


async def test_memory_that_is_short_has_the_youngest_wait_and_the_eldest_go_on(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, slow()) as rig:
        expected = await unbroken(rig, 300)
        streams = await begun(rig, 300)
        enough = pool_for(tiny, 448)  # for the eldest
        with memory(rig, lambda: beside_worker(rig, enough), monkeypatch):
            await rig.until(lambda: streams[2].state is StreamState.HELD)
            left = rig.daemon.pool.ledger().leased
            eldest = await rig.read(streams[0])
        answers = await read(rig, streams[1:])
        made = [one for one in rig.records.made if one.direction is Direction.GIVE_WAY]
        await rig.until(lambda: any(one.id == made[0].id for one in rig.records.outcomes))
        (outcome,) = [one.outcome for one in rig.records.outcomes if one.id == made[0].id]

        assert [eldest.tokens, *answers] == expected
        assert left <= enough
        assert streams[0].gave_way == 0
        assert not any(one.direction is Direction.PARK for one in rig.records.made)
        assert outcome is not None
        assert outcome.kind is OutcomeKind.DONE
        assert streams[0].disclosure.resumed == 0


async def test_what_is_held_while_parked_gives_its_kv_for_the_worker_that_goes_on_with_it(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, slow()) as rig:
        expected = await unbroken(rig, 200)
        streams = await begun(rig, 200)
        daemon = rig.daemon
        with memory(rig, lambda: 0, monkeypatch):
            await rig.until(lambda: daemon.dispatcher.point.parked and not daemon.streams.active)
            await rig.until(lambda: daemon.pool.ledger().leased == 0)
            states = [stream.state for stream in streams]
        answers = await read(rig, streams)

        assert states == [StreamState.HELD] * 3
        assert answers == expected


async def test_a_worker_is_loaded_once_what_is_held_has_made_room_for_it(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, slow()) as rig:
        expected = await unbroken(rig, 300)
        streams = await begun(rig, 300, after=150)
        daemon = rig.daemon
        state, enough = daemon.controller.state, pool_for(tiny, 448)  # for the eldest
        parked = replace(situation(state), held_bytes=0)
        weights = predict(state.point, tiny, parked, facts(state)).memory_bytes
        daemon.dispatcher.execute([Park(10**6, "test")])
        await rig.until(lambda: daemon.streams.active is None)
        assert daemon.pool.ledger().leased > enough
        with memory(rig, lambda: beside_worker(rig, enough, weights), monkeypatch):
            await rig.until(lambda: daemon.streams.active is not None)
            eldest = await rig.read(streams[0])
        answers = await read(rig, streams[1:])
        made = [one.direction for one in rig.records.made]

        assert [eldest.tokens, *answers] == expected
        assert Direction.GIVE_WAY in made
