"""The schedule, carried out on streams: who starts, who pauses, who is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stand_ins import FakeClock, FakeWorker, Observer

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec
from trimtab.domain.scheduling import Schedule, Shed
from trimtab.errors import ServingError
from trimtab.policy.compiled import Policy
from trimtab.serving.carrier import Carrier
from trimtab.serving.gateway import Gateway
from trimtab.serving.pool import GRANT_TOKENS, Pool
from trimtab.serving.requests import GenerationRequest, StreamHandle
from trimtab.serving.stream import StreamState
from trimtab.serving.streams import Streams
from trimtab.workers.protocol import Cancel, Detached, Finished, Grow, Pause, Resume, Start, Tokens


class Scene:
    """Streams and fake workers; the test is the core."""

    def __init__(self, model: ModelSpec, pool_bytes: int | None = None, conversations: int = 2):
        admission = replace(policy().admission, conversations=conversations)
        kv = replace(policy().kv, pool_bytes=pool_bytes)
        self.policy: Policy = policy(admission=admission, kv=kv)
        self.model = model
        clock = FakeClock()
        self.pool = Pool()
        carrier = Carrier(self.pool, clock)
        self.streams = Streams(clock, Observer(), carrier, lambda *_: None)
        self.gateway = Gateway(self.streams, carrier, clock, lambda: None)
        carrier.serve(model)
        self.streams.configure(self.policy)
        self.gateway.configure(model=model, policy=self.policy)
        self.gateway.admit(2048)

    def serving(self, position: int = 0, decoder: str = "kv") -> Any:
        worker: Any = FakeWorker(self.model.variants[position], decoder)
        self.streams.attach(worker)
        return worker

    async def ask(self, count: int, max_tokens: int = 100) -> list[StreamHandle]:
        request = GenerationRequest("tiny", text="x", max_tokens=max_tokens, user=1)
        return [await self.gateway.submit(request) for _ in range(count)]

    def follow(self, *order: int, together: int | None = None, shed: tuple[Shed, ...] = ()) -> None:
        self.streams.follow(Schedule(order, shed, together=together))


def started(worker: Any) -> list[int]:
    return [start.stream for start in worker.of(Start)]


def steered(worker: Any) -> list[Any]:
    return [one for one in worker.sent if isinstance(one, Pause | Resume)]


async def test_waiting_requests_start_in_the_order_of_the_schedule(tiny: ModelSpec) -> None:
    scene = Scene(tiny, conversations=1)
    worker = scene.serving()
    one, two, three = await scene.ask(3)
    scene.follow(one.id, three.id, two.id)
    scene.streams.said(worker, Finished(one.id, "stop"))

    assert started(worker) == [one.id, three.id]


async def test_those_who_may_not_share_pause_and_go_on_later(tiny: ModelSpec) -> None:
    scene = Scene(tiny)
    worker = scene.serving()
    one, two = await scene.ask(2)
    scene.follow(two.id, one.id, together=1)
    scene.follow(two.id, one.id, together=1)
    paused = scene.streams.paused()
    scene.follow(one.id, two.id, together=2)

    assert steered(worker) == [Pause(one.id), Resume(one.id)]
    assert paused == 1


async def test_who_waits_behind_starts_only_when_it_may_share(tiny: ModelSpec) -> None:
    scene = Scene(tiny, conversations=1)
    worker = scene.serving()
    one, two = await scene.ask(2)
    scene.streams.configure(replace(scene.policy, admission=policy().admission))
    begun = started(worker)
    scene.follow(one.id, two.id, together=1)

    assert begun == [one.id, two.id]
    assert steered(worker) == [Pause(two.id)]


async def test_a_newcomer_begins_in_the_place_of_one_who_pauses_if_kv_has_a_budget(
    tiny: ModelSpec,
) -> None:
    scene = Scene(tiny, pool_bytes=64 << 20, conversations=1)
    worker = scene.serving()
    one, two = await scene.ask(2)
    scene.follow(two.id, one.id)

    assert started(worker) == [one.id, two.id]
    assert steered(worker) == [Pause(one.id)]


@pytest.mark.parametrize(
    ("pool_bytes", "decoder"),
    [(None, "kv"), (64 << 20, "generator"), (GRANT_TOKENS * 512, "kv")],
    ids=["no budget", "the worker keeps the KV", "the budget is used up"],
)
async def test_otherwise_it_waits_until_one_ends(
    tiny: ModelSpec, pool_bytes: int | None, decoder: str
) -> None:
    scene = Scene(tiny, pool_bytes=pool_bytes, conversations=1)
    worker = scene.serving(decoder=decoder)
    one, two = await scene.ask(2)
    scene.follow(two.id, one.id)
    before = started(worker), steered(worker), scene.streams.count(StreamState.WAITING)
    scene.streams.said(worker, Finished(one.id, "stop"))

    assert before == ([one.id], [], 1)
    assert started(worker) == [one.id, two.id]


async def test_one_that_waits_for_room_leaves_its_place_to_the_next(tiny: ModelSpec) -> None:
    scene = Scene(tiny, pool_bytes=5 * GRANT_TOKENS // 2 * 512)
    worker = scene.serving()
    one, two = await scene.ask(2, max_tokens=1000)
    scene.follow(one.id, two.id, together=1)
    scene.streams.said(worker, Tokens(one.id, 0, [9] * GRANT_TOKENS, "a"))
    scene.streams.said(worker, Grow(one.id, 2 * GRANT_TOKENS))
    scene.follow(one.id, two.id, together=1)

    assert steered(worker) == [Pause(two.id), Resume(two.id)]


async def test_a_paused_stream_crosses_to_another_worker_and_stays_paused(
    tiny: ModelSpec,
) -> None:
    scene = Scene(tiny)
    old = scene.serving()
    one, two = await scene.ask(2)
    scene.follow(two.id, one.id, together=1)
    new = scene.serving(1)
    scene.streams.release(old)
    for stream in (one, two):
        scene.streams.said(old, Detached(stream.id, 0))

    assert sorted(started(new)) == [one.id, two.id]
    assert steered(new) == [Pause(one.id)]


async def test_a_schedule_of_requests_that_are_gone_holds_nobody_back(tiny: ModelSpec) -> None:
    scene = Scene(tiny)
    worker = scene.serving()
    (one,) = await scene.ask(1)
    scene.follow(one.id, together=1)
    scene.streams.said(worker, Finished(one.id, "stop"))
    two, three = await scene.ask(2)

    assert started(worker) == [one.id, two.id, three.id]
    assert steered(worker) == []


async def test_a_refused_request_is_told_why_and_when_to_come_back(tiny: ModelSpec) -> None:
    scene = Scene(tiny, conversations=1)
    scene.serving()
    one, two = await scene.ask(2)
    scene.follow(one.id, shed=(Shed(two.id, 7.0, "it is late"),))
    with pytest.raises(ServingError) as told:
        await two.next(1)

    assert (told.value.status, told.value.code) == (429, "shed")
    assert told.value.retry_after_s == 7.0
    assert "it is late" in told.value.message
    assert scene.streams.shed == 1


async def test_a_refused_request_that_a_worker_has_is_taken_from_it(tiny: ModelSpec) -> None:
    scene = Scene(tiny)
    worker = scene.serving()
    one, two = await scene.ask(2)
    scene.follow(one.id, shed=(Shed(two.id, 7.0, "it is late"),))

    assert worker.of(Cancel) == [Cancel(two.id)]
    assert scene.streams.count(StreamState.RUNNING) == 1


async def test_an_answer_that_has_begun_is_not_refused(tiny: ModelSpec) -> None:
    scene = Scene(tiny)
    worker = scene.serving()
    one, two = await scene.ask(2)
    scene.streams.said(worker, Tokens(two.id, 0, [9], "a"))
    scene.follow(one.id, shed=(Shed(two.id, 7.0, "it is late"),))

    assert scene.streams.shed == 0
    assert worker.of(Cancel) == []
