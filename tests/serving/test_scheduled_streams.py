"""The core's schedule on real workers: pauses, refusals, and what may come in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig import Answer, Rig, running

from policies_for_tests import policy
from trimtab.domain.decisions import Direction
from trimtab.domain.events import PausedSet
from trimtab.domain.models import ModelSpec
from trimtab.errors import ServingError
from trimtab.policy.compiled import Carry, Handover, Policy, Slo
from trimtab.serving.requests import StreamHandle
from trimtab.telemetry.recording import RecordingWriter, event_line, read_recording, rerun

# One at a time, a tenth of the engine's speed, and room to begin a second one meanwhile.
ONE_AT_A_TIME = policy(
    slo=Slo(5.0, 1.0, 60.0),
    knobs=replace(policy().knobs, pace_min_ratio=0.1, pace_max_ratio=0.1),
    handover=Handover(Carry.KV, Carry.KV, 60.0),
    admission=replace(policy().admission, conversations=1),
    kv=replace(policy().kv, pool_bytes=64 << 20),
)
TALK = "Ask me about the weather, the river, and the sea."


async def alone(rig: Rig, text: str, tokens: int) -> list[int]:
    return (await rig.read(await rig.ask(text, max_tokens=tokens))).tokens


async def one_paused(rig: Rig) -> tuple[tuple[StreamHandle, StreamHandle], tuple[Answer, Answer]]:
    """A long answer that has begun and pauses, and a newcomer that has the engine."""
    first = await rig.ask(TALK, max_tokens=250)
    begun = await rig.read(first, tokens=5)
    second = await rig.ask("Tell " + TALK * 8, max_tokens=60)
    await rig.until(lambda: rig.daemon.streams.paused() == 1)
    return (first, second), (begun, Answer())


async def finish(rig: Rig, streams: tuple[StreamHandle, ...], answers: tuple[Answer, ...]) -> None:
    await asyncio.gather(*map(rig.read, streams, answers))


async def test_a_running_answer_pauses_for_a_newcomers_prompt_and_loses_nothing(
    tiny: ModelSpec,
) -> None:
    async with running(tiny, ONE_AT_A_TIME) as rig:
        expected = [await alone(rig, TALK, 250), await alone(rig, "Tell " + TALK * 8, 60)]
        rig.daemon.pool.release_all()
        streams, answers = await one_paused(rig)
        await finish(rig, streams, answers)

        assert [answer.tokens for answer in answers] == expected
        assert rig.daemon.streams.paused() == 0


async def test_paused_and_running_answers_outlive_the_worker(tiny: ModelSpec) -> None:
    async with running(tiny, ONE_AT_A_TIME) as rig:
        streams, answers = await one_paused(rig)
        rig.kill_worker()
        await finish(rig, streams, answers)

        assert [len(answer.tokens) for answer in answers] == [250, 60]


async def test_paused_and_running_answers_cross_to_another_variant(tiny: ModelSpec) -> None:
    async with running(tiny, ONE_AT_A_TIME) as rig:
        streams, answers = await one_paused(rig)
        rig.pin("int4")
        await finish(rig, streams, answers)

        assert [len(answer.tokens) for answer in answers] == [250, 60]
        assert streams[0].disclosure.variants == ("fp32", "int4")


async def test_who_pauses_goes_on_when_the_one_before_it_is_cancelled(tiny: ModelSpec) -> None:
    async with running(tiny, ONE_AT_A_TIME) as rig:
        (first, second), (begun, _) = await one_paused(rig)
        second.cancel()
        await rig.read(first, begun)

        assert len(begun.tokens) == 250


async def test_a_shutdown_ends_paused_streams_too(tiny: ModelSpec) -> None:
    async with running(tiny, ONE_AT_A_TIME) as rig:
        streams, answers = await one_paused(rig)
        await rig.daemon.drain(0.0)
        for stream, answer in zip(streams, answers, strict=True):
            with pytest.raises(ServingError) as told:
                await rig.read(stream, answer)

            assert told.value.code == "shutting_down"


def measured(model: ModelSpec) -> ModelSpec:
    """The model with speeds of a slow device in its manifest."""
    slow = [replace(one, decode_tps=20.0, prefill_tps=100.0) for one in model.variants]
    return replace(model, variants=tuple(slow))


async def test_a_request_that_cannot_be_in_time_is_refused_and_the_record_says_why(
    tiny: ModelSpec,
) -> None:
    hurried: Policy = replace(
        ONE_AT_A_TIME,
        slo=Slo(0.0, 0.001, 60.0),
        admission=replace(ONE_AT_A_TIME.admission, max_wait_s=0.5),
        kv=policy().kv,
    )
    async with running(measured(tiny), ONE_AT_A_TIME) as rig:
        first = await rig.ask(TALK, max_tokens=600)
        begun = await rig.read(first, tokens=3)
        rig.daemon.put_in_force(hurried)
        second = await rig.ask("Tell " + TALK)
        with pytest.raises(ServingError) as told:
            await rig.read(second)
        await rig.read(first, begun)
        record = rig.records.made[-1]

        assert (told.value.status, told.value.code) == (429, "shed")
        assert (told.value.retry_after_s or 0) >= 1
        assert record.direction is Direction.SHED
        assert "can't be in time" in record.trigger.text
        assert len(begun.tokens) == 600


async def up_to(lines: AsyncIterator[dict[str, Any]], last: dict[str, Any]) -> list[dict[str, Any]]:
    found = [await anext(lines)]
    while found[-1] != last:
        found.append(await anext(lines))
    return found


async def test_a_recording_of_live_requests_gives_the_same_decisions_again(
    tiny: ModelSpec, tmp_path: Path
) -> None:
    async with running(tiny, ONE_AT_A_TIME) as rig:
        controller = rig.daemon.controller
        lines = controller.recorder.follow(controller.state, controller.policy, 1.7e9)
        written = [await anext(lines)]
        streams, answers = await one_paused(rig)
        rig.pin("int8")
        await finish(rig, streams, answers)
        await rig.serves("int8")
        end = PausedSet(rig.daemon.clock.monotonic_s(), paused=False, by="the end")
        controller.post(end)
        written += await up_to(lines, event_line(end))
    path = tmp_path / "live.gz"
    with RecordingWriter(path) as writer:
        for line in written:
            writer.write(line)
    again = rerun(read_recording(path))

    assert again.differences == ()
    assert again.decisions
    kinds = {line["event"]["@"] for line in written if line["kind"] == "event"}
    assert {"RequestArrived", "RequestProgress", "RequestEnded"} <= kinds
