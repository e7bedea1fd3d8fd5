"""The owner of all streams: where each is, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stand_ins import FakeClock, FakeWorker, Observer

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec
from trimtab.domain.scheduling import Schedule
from trimtab.domain.view import SINKS
from trimtab.errors import (
    EngineError,
    RequestError,
    ServingError,
    SilentWorkerError,
    TrimtabError,
    WorkerError,
)
from trimtab.planner.faults import BARREN_ALLOWED
from trimtab.policy.compiled import Admission, Carry, Handover, KvPolicy, Policy, Share, Window
from trimtab.serving.carrier import Carrier
from trimtab.serving.claims import Idle
from trimtab.serving.gateway import RENDER_ATTEMPTS, Gateway
from trimtab.serving.losses import LOSSES_MAX
from trimtab.serving.pool import GRANT_TOKENS, Pool
from trimtab.serving.requests import (
    Delta,
    Ended,
    FinishReason,
    GenerationRequest,
    Priority,
    StreamHandle,
)
from trimtab.serving.stream import Stream, StreamState
from trimtab.serving.streams import STARVED_MAX_S, Streams
from trimtab.signals.latency import EngineTimes
from trimtab.workers.protocol import (
    Cancel,
    Detach,
    Detached,
    Failed,
    Finished,
    Grant,
    Grow,
    Progress,
    Start,
    Tokens,
    encode,
)


class Scene:
    """Streams, a gateway and fake workers."""

    def __init__(self, model: ModelSpec, policy_: Policy) -> None:
        self.model = model
        self.clock = FakeClock()
        self.observer = Observer()
        self.pool = Pool()
        self.carrier = Carrier(self.pool, self.clock)
        self.broken: list[str] = []
        self.waits = 0
        self.streams = Streams(
            self.clock, self.observer, self.carrier, lambda _, reason: self.broken.append(reason)
        )
        self.gateway = Gateway(self.streams, self.carrier, self.clock, self._waits)
        self.carrier.serve(model)
        self.configure(policy_)

    def configure(self, policy_: Policy) -> None:
        self.streams.configure(policy_)
        self.gateway.configure(model=self.model, policy=policy_)
        self.gateway.admit(2048)

    def worker(self, position: int = 0, decoder: str = "generator") -> Any:
        return FakeWorker(self.model.variants[position], decoder)

    def serving(self, position: int = 0, decoder: str = "generator") -> Any:
        worker = self.worker(position, decoder)
        self.streams.attach(worker)
        return worker

    async def ask(self, **changes: Any) -> StreamHandle:
        request = GenerationRequest("tiny", text="x", max_tokens=100, user=1)
        return await self.gateway.submit(replace(request, **changes))

    def _waits(self) -> None:
        self.waits += 1


@pytest.fixture
def scene(tiny: ModelSpec) -> Scene:
    return Scene(tiny, policy())


def with_admission(**changes: Any) -> Policy:
    return policy(admission=replace(policy().admission, **changes))


# ---------------------------------------------------------------- tokens


async def test_tokens_are_joined_while_the_client_does_not_look(scene: Scene) -> None:
    worker = scene.serving()
    stream = await scene.ask()
    for index, text in enumerate("abc"):
        scene.streams.said(worker, Tokens(stream.id, index, [index], text))
    scene.streams.said(worker, Finished(stream.id, "stop", "!"))
    first, last = await stream.next(1), await stream.next(1)

    assert first == Delta("abc!", (0, 1, 2))
    assert isinstance(last, Ended)
    assert last.reason is FinishReason.STOP
    assert last.usage.completion_tokens == 3


async def test_no_news_is_none(scene: Scene) -> None:
    scene.serving()
    stream = await scene.ask()

    assert await stream.next(0.01) is None


async def test_a_request_that_no_worker_can_be_given_is_its_own_misfortune(scene: Scene) -> None:
    worker = scene.serving()
    hopeless = await scene.ask(stop=("no text: \ud800",))
    fine = await scene.ask()
    scene.streams.said(worker, Tokens(fine.id, 0, [5], "a"))
    encode(worker.of(Start)[-1], 0)

    with pytest.raises(TrimtabError, match="can't be given to a worker"):
        await hopeless.next(1)
    assert await fine.next(1) == Delta("a", (5,))


@pytest.mark.parametrize("second", [0, 2])
async def test_a_worker_that_loses_or_doubles_a_token_is_reported(
    scene: Scene, second: int
) -> None:
    worker = scene.serving()
    stream = await scene.ask()
    scene.streams.said(worker, Tokens(stream.id, 0, [5], "a"))
    scene.streams.said(worker, Tokens(stream.id, second, [5], "a"))
    delta = await stream.next(1)

    assert len(scene.broken) == 1
    assert delta == Delta("a", (5,))


async def test_what_another_worker_says_late_is_ignored(scene: Scene) -> None:
    old = scene.serving()
    stream = await scene.ask()
    scene.streams.lost(old)
    new = scene.serving(1)
    scene.streams.said(old, Tokens(stream.id, 0, [5], "old"))
    scene.streams.said(new, Tokens(stream.id, 0, [6], "new"))

    assert await stream.next(1) == Delta("new", (6,))


async def test_an_engine_error_ends_its_stream_and_no_other(scene: Scene) -> None:
    worker = scene.serving()
    one, other = await scene.ask(), await scene.ask()
    scene.streams.said(worker, Failed(one.id, "engine_failed", "NaN"))
    scene.streams.said(worker, Tokens(other.id, 0, [5], "a"))
    with pytest.raises(EngineError, match="NaN"):
        await one.next(1)

    assert await other.next(1) == Delta("a", (5,))


# ---------------------------------------------------------------- queue


async def test_only_so_many_run_at_once_and_the_rest_follow_in_order(tiny: ModelSpec) -> None:
    scene = Scene(tiny, with_admission(conversations=1))
    worker = scene.serving()
    streams = [await scene.ask() for _ in range(3)]
    for stream in streams:
        scene.streams.said(worker, Finished(stream.id, "stop"))

    assert [start.stream for start in worker.of(Start)] == [one.id for one in streams]


async def test_interactive_requests_go_before_background_ones(tiny: ModelSpec) -> None:
    scene = Scene(tiny, with_admission(conversations=1))
    worker = scene.serving()
    first = await scene.ask()
    slow = await scene.ask(priority=Priority.BACKGROUND)
    quick = await scene.ask()
    scene.streams.said(worker, Finished(first.id, "stop"))
    scene.streams.said(worker, Finished(quick.id, "stop"))

    assert [start.stream for start in worker.of(Start)] == [first.id, quick.id, slow.id]


async def test_a_full_queue_is_told_with_when_to_come_back(tiny: ModelSpec) -> None:
    scene = Scene(tiny, policy(admission=Admission(1, 20.0, 1, ())))
    scene.serving()
    await scene.ask()
    await scene.ask()
    with pytest.raises(ServingError) as told:
        await scene.ask()

    assert (told.value.status, told.value.code) == (429, "queue_full")
    assert told.value.retry_after_s


async def test_who_waits_too_long_is_told_so(tiny: ModelSpec) -> None:
    scene = Scene(tiny, with_admission(conversations=1, max_wait_s=5.0))
    scene.serving()
    await scene.ask()
    waiting = await scene.ask()
    scene.clock.now += 6
    scene.streams.expire()
    with pytest.raises(ServingError) as told:
        await waiting.next(1)

    assert told.value.code == "wait_exceeded"


async def test_a_larger_policy_starts_what_waits(tiny: ModelSpec) -> None:
    scene = Scene(tiny, with_admission(conversations=1))
    worker = scene.serving()
    await scene.ask()
    await scene.ask()
    scene.configure(with_admission(conversations=2))

    assert len(worker.of(Start)) == 2


# ---------------------------------------------------------------- crossing


async def test_a_stream_that_is_handed_back_starts_elsewhere_with_all_that_it_has(
    scene: Scene,
) -> None:
    old = scene.serving()
    stream = await scene.ask()
    scene.streams.said(old, Tokens(stream.id, 0, [7, 8], "ab"))
    new = scene.serving(1)
    scene.streams.release(old)
    scene.streams.said(old, Tokens(stream.id, 2, [9], "c"))
    scene.streams.said(old, Detached(stream.id, 3))
    start = new.of(Start)[0]

    assert old.of(Detach) == [Detach(stream.id)]
    assert start.prompt == [1, 2, 3]
    assert start.generated == [7, 8, 9]
    assert stream.disclosure.switches == 1


async def test_a_stream_is_held_until_a_worker_comes(scene: Scene) -> None:
    old = scene.serving()
    stream = await scene.ask()
    scene.streams.release(old)
    scene.streams.said(old, Detached(stream.id, 0))
    held = scene.streams.count(StreamState.HELD)
    new = scene.serving(1)

    assert held == 1
    assert len(new.of(Start)) == 1
    assert await scene.streams.released(old, 0.1)


async def test_a_worker_that_hands_back_too_little_is_reported(scene: Scene) -> None:
    old = scene.serving()
    stream = await scene.ask()
    scene.streams.said(old, Tokens(stream.id, 0, [7, 8], "ab"))
    scene.streams.release(old)
    scene.streams.said(old, Detached(stream.id, 1))

    assert len(scene.broken) == 1


async def test_a_request_that_every_worker_dies_of_is_given_up(scene: Scene) -> None:
    stream = None
    for _ in range(LOSSES_MAX + 1):
        worker = scene.serving()
        stream = stream or await scene.ask()
        worker.alive = False
        scene.streams.lost(worker)
    assert stream is not None
    with pytest.raises(EngineError) as told:
        await stream.next(1)

    assert told.value.code == "worker_failed"


async def test_one_that_workers_die_on_takes_no_other_along(tiny: ModelSpec) -> None:
    scene = Scene(tiny, with_admission(conversations=8))
    worker = scene.serving()
    deadly, *others = [await scene.ask() for _ in range(4)]
    beside = []
    while deadly.id in scene.streams._streams:
        proven = set()
        for one in others:
            begun = {start.stream for start in worker.of(Start)}
            if deadly.id not in begun and one.id in begun:
                for _ in range(2):
                    scene.streams.said(worker, Tokens(one.id, len(one.generated), [7], "a"))
                proven.add(one.id)
        begun = {start.stream for start in worker.of(Start)}
        assert deadly.id in begun
        beside.append(len(begun - proven))
        worker.alive = False
        scene.streams.lost(worker)
        worker = scene.serving()
    with pytest.raises(EngineError, match="9 workers died on this request"):
        await deadly.next(1)

    assert len(beside) == LOSSES_MAX + 1
    assert beside[:4] == [4, 4, 1, 1]
    assert all(one.generated and not one.done for one in others)


async def test_a_token_of_reading_it_all_again_clears_no_stream_that_workers_die_on(
    scene: Scene,
) -> None:
    worker = scene.serving()
    stream = await scene.ask()
    lives = 0
    while stream.id in scene.streams._streams:
        scene.streams.said(worker, Tokens(stream.id, lives, [7], "a"))
        worker.alive = False
        scene.streams.lost(worker)
        worker = scene.serving()
        lives += 1

    assert lives == LOSSES_MAX + 1


async def test_newcomers_overtake_only_those_held_whose_turn_is_after_theirs(
    tiny: ModelSpec,
) -> None:
    weights = (("interactive", 1.0), ("background", 0.2))
    scene = Scene(tiny, with_admission(conversations=4, priorities=weights))
    worker = scene.serving(0, "kv")
    await scene.ask()
    background = await scene.ask(priority=Priority.BACKGROUND)
    scene.streams.said(worker, Progress(background.id, 300, 300))
    scene.streams.room.memory_bytes = lambda: 0.0
    scene.streams.give_way(1)
    scene.streams.said(worker, Detached(background.id, 0))
    late = await scene.ask(priority=Priority.BACKGROUND)
    urgent = await scene.ask(priority=Priority.INTERACTIVE)
    begun = [start.stream for start in worker.of(Start)]

    assert urgent.id in begun
    assert late.id not in begun
    assert begun.count(background.id) == 1


async def test_a_stream_that_is_moved_while_it_is_paused_may_be_why_its_worker_died(
    tiny: ModelSpec,
) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    one, paused = await scene.ask(), await scene.ask()
    scene.streams.follow(Schedule((one.id, paused.id), together=1))
    moved = scene.streams._streams[paused.id]
    assert moved.lease is not None
    moved.moving = scene.pool.second(moved.lease, 3)
    worker.alive = False
    scene.streams.lost(worker)

    assert moved.losses == 1


async def test_a_stream_that_is_paused_is_not_why_its_worker_died(scene: Scene) -> None:
    worker = scene.serving()
    one, paused = await scene.ask(), await scene.ask()
    scene.streams.follow(Schedule((one.id, paused.id), together=1))
    for stream in (one, paused):
        scene.streams.said(worker, Tokens(stream.id, 0, [7], "a"))
    worker.alive = False
    scene.streams.lost(worker)
    known = scene.streams._streams

    assert (known[one.id].losses, known[paused.id].losses) == (1, 0)
    assert known[paused.id].resumed == 1


async def test_a_cancelled_stream_is_taken_from_its_worker(scene: Scene) -> None:
    worker = scene.serving()
    stream = await scene.ask()
    stream.cancel()
    stream.cancel()

    assert worker.of(Cancel) == [Cancel(stream.id)]
    assert not scene.streams.busy()
    assert scene.observer.steps[-1] == ("ended", stream.id)


async def test_a_shutdown_ends_each_stream_with_one_error(scene: Scene) -> None:
    worker = scene.serving()
    streams = [await scene.ask(), await scene.ask()]
    scene.streams.fail_all(lambda: ServingError("down", code="shutting_down"))
    for stream in streams:
        with pytest.raises(ServingError):
            await stream.next(1)

    assert len(worker.of(Cancel)) == 2


# ---------------------------------------------------------------- KV


def carrying(**kv: Any) -> Policy:
    return policy(
        handover=Handover(Carry.KV, Carry.REPLAY, 60.0),
        kv=replace(KvPolicy(None, 0, 0, Share.USER), **kv),
    )


def crowded(tiny: ModelSpec, grants: int) -> Scene:
    """A KV pool with room for so many grants."""
    return Scene(tiny, carrying(pool_bytes=grants * GRANT_TOKENS * 512))


async def ended(scene: Scene, worker: Any, tokens: int) -> StreamHandle:
    """An answer that came to its end and left KV of so many tokens behind."""
    stream = await scene.ask()
    scene.streams.said(worker, Progress(stream.id, tokens, tokens))
    scene.streams.said(worker, Finished(stream.id, "stop"))
    return stream


def taken_by_a_slow_disk(scene: Scene) -> Idle:
    """The conversation that has waited longest can't make way now."""
    idle = scene.pool.to_offload()
    assert idle is not None
    idle.busy = True
    return idle


async def test_a_stream_goes_down_with_its_kv_and_up_without(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    best = scene.serving(0, "kv")
    stream = await scene.ask()
    scene.streams.said(best, Progress(stream.id, 3, 3))
    scene.streams.said(best, Tokens(stream.id, 0, [7], "a"))
    scene.streams.said(best, Tokens(stream.id, 1, [8], "b"))
    least = scene.serving(2, "kv")
    scene.streams.release(best)
    scene.streams.said(best, Detached(stream.id, 2))
    again = scene.serving(0, "kv")
    scene.streams.release(least)
    scene.streams.said(least, Detached(stream.id, 2))

    assert best.of(Start)[0].valid == 0
    assert least.of(Start)[0].valid == 4
    assert again.of(Start)[0].valid == 0
    assert len(least.descriptors) == 1


async def test_a_worker_without_own_kv_gets_the_tokens_alone(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    best = scene.serving(0, "kv")
    stream = await scene.ask()
    scene.streams.said(best, Tokens(stream.id, 0, [7], "a"))
    plain = scene.serving(1, "generator")
    scene.streams.release(best)
    scene.streams.said(best, Detached(stream.id, 1))

    assert not plain.of(Start)[0].segment
    assert plain.of(Start)[0].generated == [7]
    assert scene.pool.ledger().leased == 0


async def test_a_variant_with_another_kv_shape_computes_it_again(tiny: ModelSpec) -> None:
    other = replace(
        tiny,
        variants=(tiny.variants[0], replace(tiny.variants[1], fingerprint="another")),
    )
    scene = Scene(other, carrying())
    best = scene.serving(0, "kv")
    stream = await scene.ask()
    scene.streams.said(best, Tokens(stream.id, 0, [7], "a"))
    least = scene.serving(1, "kv")
    scene.streams.release(best)
    scene.streams.said(best, Detached(stream.id, 1))

    assert least.of(Start)[0].valid == 0
    assert least.of(Start)[0].segment


async def test_room_is_granted_before_it_is_used(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    stream = await scene.ask(max_tokens=600)
    scene.streams.said(worker, Grow(stream.id, GRANT_TOKENS + 10))

    assert worker.of(Start)[0].granted == GRANT_TOKENS
    assert worker.of(Grant) == [Grant(stream.id, 2 * GRANT_TOKENS)]


async def starved(scene: Scene) -> tuple[Any, StreamHandle, StreamHandle]:
    """A worker and two streams that have all of three grants, and want more."""
    worker = scene.serving(0, "kv")
    one, other = [await scene.ask(max_tokens=1000) for _ in range(2)]
    scene.streams.said(worker, Progress(one.id, GRANT_TOKENS, 400))
    scene.streams.said(worker, Grow(one.id, GRANT_TOKENS + 10))
    scene.streams.said(worker, Progress(one.id, 2 * GRANT_TOKENS, 600))
    scene.streams.said(worker, Progress(other.id, GRANT_TOKENS, 400))
    for stream in (one, other):
        scene.streams.said(worker, Grow(stream.id, 2 * GRANT_TOKENS + 10))
    return worker, one, other


async def test_no_more_is_granted_than_a_stream_can_ever_take(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 200))]
    stream = await scene.ask(max_tokens=100)
    scene.streams.said(worker, Grow(stream.id, 3 * GRANT_TOKENS))

    assert worker.of(Grant) == [Grant(stream.id, 2 * GRANT_TOKENS)]


async def test_who_wants_room_gets_it_when_another_ends(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 3)
    worker, one, other = await starved(scene)
    refused = worker.of(Grant)[1:]
    scene.streams.said(worker, Finished(other.id, "stop"))
    scene.streams.expire()

    assert refused == []
    assert worker.of(Grant)[1:] == [Grant(one.id, 3 * GRANT_TOKENS)]


async def test_when_all_are_starved_the_youngest_gives_way(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 3)
    worker, one, other = await starved(scene)
    scene.streams.expire()
    asked = worker.of(Detach)
    scene.streams.said(worker, Detached(other.id, 0))
    granted, begun = worker.of(Grant)[1:], worker.of(Start)
    scene.streams.said(worker, Finished(one.id, "stop"))
    again = worker.of(Start)[-1]

    assert asked == [Detach(other.id)]
    assert granted == [Grant(one.id, 3 * GRANT_TOKENS)]
    assert [start.stream for start in begun] == [one.id, other.id]
    assert (again.stream, again.valid, again.segment) == (other.id, 0, True)
    assert await other.next(0.01) is None
    assert scene.streams.gave_way == 1


async def test_who_gave_way_is_held_for_as_long_as_others_go_on(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 3)
    worker, _, other = await starved(scene)
    scene.streams._streams[other.id].take_tokens(Tokens(other.id, 0, [5], "a"), 0.0)
    scene.streams._streams[other.id].lease.valid = GRANT_TOKENS
    scene.streams.expire()
    scene.streams.said(worker, Detached(other.id, 1))
    for _ in range(10):
        scene.clock.now += 30.0
        scene.streams.expire()
    first = await other.next(0.01)
    worker.alive = False
    scene.streams.lost(worker)
    scene.clock.now += 30.0
    scene.streams.expire()

    assert first == Delta("a", (5,))
    assert await other.next(0.01) is None  # since nothing runs it has waited 30 s of 60


async def test_who_gave_way_waits_for_more_room_each_time(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 8)
    scene.serving(0, "kv")
    one, other = [await scene.ask(max_tokens=1500) for _ in range(2)]
    held = scene.streams._streams[other.id]
    room = scene.streams.room
    running = [scene.streams._streams[one.id]]
    held.waits_for_room = True
    suffices = []
    for times in range(5):
        held.gave_way = times
        suffices.append(room.suffices(held, running))

    assert suffices == [True, True, False, False, False]
    assert room.suffices(held, [])


async def test_memory_that_is_short_makes_the_youngest_wait(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    streams = [await scene.ask() for _ in range(3)]
    for stream in streams:
        scene.streams.said(worker, Progress(stream.id, 300, 300))
    free = [0.0]
    scene.streams.room.memory_bytes = lambda: free[0]
    could = [stream.id for stream in scene.streams.could_give_way()]
    chosen = scene.streams.give_way(1)
    scene.streams.said(worker, Detached(streams[2].id, 0))
    held = scene.pool.ledger().leased
    scene.streams.expire()
    begun = len(worker.of(Start))
    free[0] = 1e9
    scene.streams.expire()

    assert could == [stream.id for stream in streams[1:]]
    assert [stream.id for stream in chosen] == [streams[2].id]
    assert begun == 3
    assert [start.stream for start in worker.of(Start)][3:] == [streams[2].id]
    assert held == scene.pool.ledger().leased == 0  # nobody wrote to them


async def one_waits_with_kv(tiny: ModelSpec) -> tuple[Scene, Any, StreamHandle, StreamHandle]:
    """A scene, its worker, one that runs, and one that waits with KV of 299 tokens."""
    one_by_one = replace(policy().admission, conversations=1)
    scene = Scene(tiny, replace(carrying(), admission=one_by_one))
    worker = scene.serving(0, "kv")
    said = list(range(1, 300))
    worker.renders = [said, [7, 8, 9], [*said, 5, 6]]
    await ended(scene, worker, 299)
    return scene, worker, await scene.ask(), await scene.ask()


async def test_who_has_not_begun_gives_way_first(tiny: ModelSpec) -> None:
    scene, worker, running, waiting = await one_waits_with_kv(tiny)
    scene.streams.said(worker, Progress(running.id, 3, 3))
    could = scene.streams.could_give_way()
    chosen = scene.streams.give_way(1)
    scene.streams.said(worker, Finished(running.id, "stop"))

    assert [one.id for one in could] == [one.id for one in chosen] == [waiting.id]
    assert [(start.stream, start.valid) for start in worker.of(Start)][2:] == [(waiting.id, 0)]
    assert scene.streams.gave_way == 0
    assert worker.of(Detach) == []


async def test_what_is_held_gives_its_kv_back_at_once(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    streams = [await scene.ask() for _ in range(2)]
    for stream in streams:
        scene.streams.said(worker, Progress(stream.id, 300, 300))
    worker.alive = False
    scene.streams.lost(worker)
    could = scene.streams.could_give_way()
    computed = [scene.streams.tokens_held()]
    scene.streams.give_way(1)
    computed.append(scene.streams.tokens_held())
    scene.streams.give_way(10**9)
    computed.append(scene.streams.tokens_held())
    worker = scene.serving(0, "kv")

    assert [stream.id for stream in could] == [streams[1].id]  # the eldest would take it again
    assert computed == [0, 0, 3]  # the eldest goes on with its KV until that is gone, too
    assert scene.streams.could_give_way() == []
    assert [(start.stream, start.valid) for start in worker.of(Start)] == [
        (stream.id, 0) for stream in streams
    ]


async def test_who_waits_gives_up_what_a_held_stream_needs(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 4)
    worker = scene.serving(0, "kv")
    said = list(range(1000, 1700))
    worker.renders = [said, list(range(1, 250))]
    await ended(scene, worker, 700)
    running = await scene.ask()
    scene.streams.said(worker, Progress(running.id, 249, 249))
    scene.streams.said(worker, Tokens(running.id, 0, list(range(100)), "a"))
    worker.alive = False
    scene.streams.lost(worker)
    scene.streams.give_way(10**9)
    held = scene.streams._streams[running.id]
    waiting = Stream(
        99, GenerationRequest("tiny", text="x", user=1), [*said, 5], 10, 2048, "r", 0.0, print
    )
    worker = scene.worker(0, "kv")
    await scene.carrier.prefixes.at_arrival(waiting, worker, [])
    scene.streams.add(waiting)
    scene.streams.attach(worker)
    waited = held.waits_for_room
    scene.streams.expire()

    assert waited
    assert [(start.stream, start.valid) for start in worker.of(Start)] == [(running.id, 0)]
    assert waiting.lease is None


async def test_who_waits_for_room_gets_it_when_a_cancelled_stream_has_been_let_go(
    tiny: ModelSpec,
) -> None:
    scene = crowded(tiny, 2)
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 400)), list(range(401, 800)), list(range(801, 1200))]
    one, *others = [await scene.ask() for _ in range(3)]
    one.cancel()
    told = [await stream.next(0.01) for stream in others]
    begun = [start.stream for start in worker.of(Start)]
    scene.streams.said(worker, Finished(one.id, "cancelled"))

    assert told == [None, None]
    assert begun == [one.id]
    assert [start.stream for start in worker.of(Start)] == [one.id, others[0].id]


async def test_room_that_comes_back_is_for_who_runs_not_for_who_waits(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 3)
    worker, one, other = await starved(scene)
    waiting = await scene.ask()
    scene.streams.expire()  # the younger gives way
    scene.streams.said(worker, Detached(other.id, 0))

    assert worker.of(Grant)[1:] == [Grant(one.id, 3 * GRANT_TOKENS)]
    assert waiting.id not in {start.stream for start in worker.of(Start)}


async def test_a_disk_that_hangs_holds_nobody_up_for_ever(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 2)
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 200)), list(range(401, 600))]
    await ended(scene, worker, 199)
    taken_by_a_slow_disk(scene)
    stream = await scene.ask()
    scene.streams.said(worker, Progress(stream.id, GRANT_TOKENS, GRANT_TOKENS))
    scene.streams.said(worker, Grow(stream.id, GRANT_TOKENS + 10))
    scene.streams.expire()
    early = await stream.next(0.01)
    scene.clock.now += STARVED_MAX_S
    scene.streams.expire()

    assert early is None
    assert worker.of(Grant) == [Grant(stream.id, 2 * GRANT_TOKENS)]


async def test_a_prompt_that_the_pool_will_never_hold_is_told_so_at_once(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 2)
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 100)), list(range(1, 600))]
    stream = await scene.ask()

    with pytest.raises(RequestError, match="the effective context is 512 tokens") as told:
        await scene.ask()
    assert told.value.code == "context_length_exceeded"
    assert "kv.pool" in told.value.hint
    assert stream.disclosure.context == scene.gateway.effective_context() == 512


async def test_kv_that_was_promised_and_given_up_is_no_time_for_fewer_tokens(
    tiny: ModelSpec,
) -> None:
    scene, worker, running, again = await one_waits_with_kv(tiny)
    stream = scene.streams._streams[again.id]
    held = stream.lease is not None
    scene.carrier.let_go([stream])
    scene.streams.said(worker, Finished(running.id, "stop"))
    for done in (64, 128, 256, 301):
        scene.streams.said(worker, Progress(again.id, done, 301, engine_s=1.0))

    assert held
    assert stream.promised == 299
    assert stream.spent.prefill_s == 1.0


async def test_idle_kv_is_not_dropped_for_room_that_it_could_not_make(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 3)
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 200)), list(range(401, 800)), list(range(801, 1200))]
    await ended(scene, worker, 199)
    await scene.ask()
    kept = scene.pool.ledger().idle_count
    waiting = await scene.ask()
    scene.streams.expire()

    assert waiting.id not in {start.stream for start in worker.of(Start)}
    assert kept == scene.pool.ledger().idle_count == 1


async def test_a_lone_stream_has_what_it_was_admitted_with_in_a_smaller_pool(
    tiny: ModelSpec,
) -> None:
    scene = crowded(tiny, 4)
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 400)), list(range(401, 650))]
    large, waiting = [await scene.ask(max_tokens=500) for _ in range(2)]
    scene.streams.said(worker, Progress(large.id, 2 * GRANT_TOKENS, 2 * GRANT_TOKENS))
    begun = [start.stream for start in worker.of(Start)]
    scene.configure(carrying(pool_bytes=2 * GRANT_TOKENS * 512))
    scene.streams.said(worker, Grow(large.id, 2 * GRANT_TOKENS + 10))
    scene.streams.expire()
    granted = worker.of(Grant)
    scene.streams.said(worker, Finished(large.id, "stop"))

    assert begun == [large.id]  # both would want more than there is
    assert granted == [Grant(large.id, 3 * GRANT_TOKENS)]
    assert await waiting.next(0.01) is None
    assert [start.stream for start in worker.of(Start)] == [large.id, waiting.id]


async def test_nobody_is_ended_for_want_of_room_that_is_about_to_come(tiny: ModelSpec) -> None:
    scene = crowded(tiny, 2)
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 200)), list(range(401, 800))]
    first = await ended(scene, worker, 199)
    idle = taken_by_a_slow_disk(scene)
    waiting = await scene.ask()
    early = worker.of(Start)
    idle.busy = False
    scene.streams.expire()

    assert [start.stream for start in early] == [first.id]
    assert await waiting.next(0.01) is None
    assert [start.stream for start in worker.of(Start)] == [first.id, waiting.id]


async def test_kv_of_who_has_not_begun_makes_way_for_who_runs(tiny: ModelSpec) -> None:
    policy_ = replace(
        carrying(pool_bytes=3 * GRANT_TOKENS * 512),
        admission=replace(policy().admission, conversations=1),
    )
    scene = Scene(tiny, policy_)
    worker = scene.serving(0, "kv")
    said = list(range(1000, 1200))
    worker.renders = [said, list(range(1, 400)), [*said, 5]]
    await ended(scene, worker, 200)
    running, waiting = [await scene.ask(max_tokens=400) for _ in range(2)]
    scene.streams.said(worker, Progress(running.id, 2 * GRANT_TOKENS, 2 * GRANT_TOKENS))
    scene.streams.said(worker, Grow(running.id, 2 * GRANT_TOKENS + 10))
    scene.streams.expire()
    granted = worker.of(Grant)
    scene.streams.said(worker, Finished(running.id, "stop"))
    starts = {start.stream: start.valid for start in worker.of(Start)}

    assert granted == [Grant(running.id, 3 * GRANT_TOKENS)]
    assert starts[waiting.id] == 0


async def test_a_held_stream_that_fails_to_start_has_the_next_one_started_once(
    tiny: ModelSpec,
) -> None:
    scene = crowded(tiny, 2)
    old = scene.serving(0, "kv")
    old.renders = [list(range(1, 200)), list(range(401, 500))]
    streams = [await scene.ask(max_tokens=10) for _ in range(2)]
    for stream in streams:  # larger than the pool by now, and small enough
        scene.streams.said(old, Progress(stream.id, 99, 99))
    large = scene.streams._streams[streams[0].id]
    large.prompt += list(range(2000, 2600))
    for stream in scene.streams._streams.values():
        stream.doubtful = True  # neither goes on with what it has
    old.alive = False
    scene.streams.lost(old)
    worker = scene.serving(0, "kv")
    begun = [start.stream for start in worker.of(Start)]
    scene.streams.said(worker, Finished(streams[1].id, "stop"))

    assert begun == [streams[1].id]
    assert [start.stream for start in worker.of(Start)] == [streams[1].id, streams[0].id]


async def test_kv_of_a_cancelled_stream_is_nobodys_until_its_worker_has_let_go(
    tiny: ModelSpec,
) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 50)), list(range(1, 50)), list(range(1, 50))]
    stream = await scene.ask()
    scene.streams.said(worker, Progress(stream.id, 49, 49))
    stream.cancel()
    early = await scene.ask()
    scene.streams.said(worker, Finished(stream.id, "cancelled"))
    late = await scene.ask()
    starts = {start.stream: start.valid for start in worker.of(Start)}

    assert starts[early.id] == 0
    assert starts[late.id] == 48


async def test_kv_that_a_stream_failed_on_is_nobodys_again(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 50))] * 2
    stream = await scene.ask()
    scene.streams.said(worker, Progress(stream.id, 49, 49))
    scene.streams.said(worker, Failed(stream.id, "engine_failed", "NaN"))
    again = await scene.ask()
    starts = {start.stream: start.valid for start in worker.of(Start)}

    assert starts[again.id] == 0
    assert scene.pool.ledger().idle_count == 0


async def test_nor_is_it_when_its_client_had_left_before(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 50))]
    stream = await scene.ask()
    scene.streams.said(worker, Progress(stream.id, 49, 49))
    stream.cancel()
    scene.streams.said(worker, Failed(stream.id, "engine_failed", "NaN"))

    assert scene.pool.ledger().idle_count == scene.pool.ledger().leased == 0


async def test_nor_is_what_it_was_copied_from(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    beginning = list(range(1, 50))
    worker.renders = [list(range(1, 300)), *[[*beginning, 999]] * 2]
    await ended(scene, worker, 299)
    stream = await scene.ask()
    scene.streams.said(worker, Failed(stream.id, "engine_failed", "NaN"))
    again = await scene.ask()
    starts = {start.stream: start.valid for start in worker.of(Start)}

    assert starts[stream.id] == 49
    assert starts[again.id] == 0


async def test_nor_is_what_it_was_copied_from_while_a_disk_takes_it(tiny: ModelSpec) -> None:
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    beginning = list(range(1, 50))
    worker.renders = [list(range(1, 300)), *[[*beginning, 999]] * 2]
    await ended(scene, worker, 299)
    stream = await scene.ask()
    idle = taken_by_a_slow_disk(scene)
    scene.streams.said(worker, Failed(stream.id, "engine_failed", "NaN"))
    idle.busy = False
    again = await scene.ask()
    starts = {start.stream: start.valid for start in worker.of(Start)}

    assert starts[stream.id] == 49
    assert starts[again.id] == 0


async def test_what_several_workers_have_computed_is_no_engine_time(scene: Scene) -> None:
    one = scene.serving()
    stream = await scene.ask()
    scene.streams.said(one, Tokens(stream.id, 0, [5], "a"))
    one.alive = False
    scene.streams.lost(one)
    other = scene.serving()
    scene.streams.said(other, Tokens(stream.id, 1, [6], "b"))
    crossed = scene.streams._streams[stream.id]
    scene.streams.said(other, Finished(stream.id, "stop", prefill_s=1.0, decode_s=2.0))
    alone = await scene.ask()
    whole = scene.streams._streams[alone.id]
    scene.streams.said(other, Finished(alone.id, "stop", prefill_s=1.0, decode_s=2.0))

    assert crossed.engine is None
    assert whole.engine == EngineTimes(1.0, 2.0)


def test_a_variant_is_left_out_before_its_streams_are_given_up() -> None:
    assert LOSSES_MAX > BARREN_ALLOWED + 1


async def test_kv_is_computed_again_for_the_last_tries_of_a_stream_that_workers_die_on(
    tiny: ModelSpec,
) -> None:
    scene = Scene(tiny, carrying())
    starts, stream = [], None
    for _ in range(LOSSES_MAX + 1):
        worker = scene.serving(0, "kv")
        if stream is None:
            worker.renders = [list(range(1, 50))]
            stream = await scene.ask()
        starts += worker.of(Start)
        scene.streams.said(worker, Progress(stream.id, 49, 49))
        worker.alive = False
        scene.streams.lost(worker)

    assert [start.valid for start in starts] == [0, 48, 48, 48, 48, 0, 0, 0, 0]
    assert scene.pool.ledger().idle_count == 0  # nine have died on it: it isn't kept


# ---------------------------------------------------------------- gateway


async def test_an_unknown_model_is_not_found_and_the_right_one_is_named(scene: Scene) -> None:
    scene.serving()
    with pytest.raises(RequestError) as told:
        await scene.ask(model="gpt-9")

    assert (told.value.status, told.value.code) == (404, "model_not_found")
    assert "tiny" in told.value.message


async def test_a_prompt_over_the_context_is_refused_with_the_effective_context(
    scene: Scene,
) -> None:
    worker = scene.serving()
    worker.renders = [[1] * 2048]
    with pytest.raises(RequestError) as told:
        await scene.ask()

    assert told.value.code == "context_length_exceeded"
    assert "2048" in told.value.message


async def test_an_answer_is_clipped_to_what_the_context_leaves(scene: Scene) -> None:
    worker = scene.serving()
    worker.renders = [[1] * 2000, [1] * 2000]
    await scene.ask(max_tokens=500)
    await scene.ask(max_tokens=None)

    assert [start.max_tokens for start in worker.of(Start)] == [48, 48]


async def test_without_a_model_the_way_to_one_is_told(scene: Scene) -> None:
    scene.gateway.configure(model=None, policy=policy())
    scene.gateway.admit(0)
    with pytest.raises(ServingError) as told:
        await scene.ask()

    assert told.value.code == "no_model"
    assert "models build" in told.value.hint


async def test_a_request_wakes_a_parked_daemon_and_is_told_why_if_nothing_fits(
    tiny: ModelSpec,
) -> None:
    scene = Scene(tiny, with_admission(max_wait_s=0.05))
    scene.gateway.why_not_loaded = "no variant fits"
    with pytest.raises(ServingError) as told:
        await scene.ask()

    assert scene.waits == 1
    assert told.value.code == "parked"
    assert "no variant fits" in told.value.message
    assert told.value.retry_after_s


async def test_a_drained_daemon_admits_nothing(scene: Scene) -> None:
    scene.serving()
    scene.gateway.drain()
    with pytest.raises(ServingError) as told:
        await scene.ask()

    assert told.value.code == "draining"


async def test_a_prompt_whose_tokenizing_loses_its_worker_is_tried_again(scene: Scene) -> None:
    worker = scene.serving()
    worker.renders = [WorkerError("gone"), [1, 2]]
    await scene.ask()

    assert worker.of(Start)[0].prompt == [1, 2]


async def test_what_stays_of_a_prompt_is_asked_again_of_another_worker(scene: Scene) -> None:
    knobs = replace(carrying().knobs, window=Window(True, None))
    scene.configure(replace(carrying(), knobs=knobs))
    worker = scene.serving(0, "kv")
    system = list(range(1, 40))
    prompt = [*system, 500, 501]
    worker.renders = [prompt, WorkerError("gone"), prompt, [*system, 999]]
    stream = await scene.ask(
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    )

    assert worker.renders == []
    assert stream.view.keep == len(system)


async def test_a_worker_that_is_silent_about_what_stays_fails_no_request(scene: Scene) -> None:
    knobs = replace(carrying().knobs, window=Window(True, None))
    scene.configure(replace(carrying(), knobs=knobs))
    worker = scene.serving(0, "kv")
    worker.renders = [list(range(1, 42)), SilentWorkerError("no answer within 30 s")]
    stream = await scene.ask(messages=[{"role": "user", "content": "Hi"}])

    assert stream.view.keep == SINKS


async def test_a_request_waits_for_the_next_worker_while_those_there_are_sent_away(
    scene: Scene,
) -> None:
    worker = scene.serving()
    gone = FakeWorker.render
    left = iter(range(RENDER_ATTEMPTS + 2))

    async def render(**told: Any) -> list[int]:
        if next(left, None) is not None:
            raise WorkerError("the worker is gone")  # it is retired; nobody died
        return await gone(worker, **told)

    worker.render = render
    stream = await scene.ask()

    assert stream.prompt_tokens == 3


async def test_a_prompt_that_kills_every_worker_is_given_up(scene: Scene) -> None:
    worker = scene.serving()
    worker.renders = [WorkerError("gone")] * (RENDER_ATTEMPTS + 2)
    with pytest.raises(ServingError) as told:
        await scene.ask()

    assert told.value.code == "worker_failed"
    assert scene.gateway.rendering == 0


# ---------------------------------------------------------------- KV in doubt


async def doubted(scene: Scene) -> tuple[Any, Any]:
    """A worker and its stream, whose KV may be wrong after three tokens."""
    worker = scene.serving(decoder="kv")
    stream: Any = await scene.ask()
    scene.streams.said(worker, Tokens(stream.id, 0, [7, 8, 9], ""))
    scene.streams.doubt(stream)
    return worker, stream


async def test_a_stream_in_doubt_is_computed_again_by_the_same_worker(scene: Scene) -> None:
    worker, stream = await doubted(scene)
    first = stream.lease
    scene.streams.doubt(stream)
    owes = scene.streams.has_work(worker)
    scene.streams.said(worker, Tokens(stream.id, 3, [10], ""))  # made before it heard of it
    scene.streams.said(worker, Detached(stream.id, 4))
    starts = worker.of(Start)

    assert len(worker.of(Detach)) == 1
    assert owes  # one that never answers is found
    assert stream.lease is not first
    assert (starts[1].generated, starts[1].valid) == ([7, 8, 9, 10], 0)
    assert not stream.doubtful
    assert stream.disclosure.resumed == 0


async def test_a_stream_in_doubt_whose_worker_dies_is_computed_again_by_the_next(
    scene: Scene,
) -> None:
    worker, _ = await doubted(scene)
    scene.streams.lost(worker)
    other = scene.serving(decoder="kv")
    (start,) = other.of(Start)

    assert (start.generated, start.valid) == ([7, 8, 9], 0)


async def test_a_worker_that_is_gone_holds_no_stream_in_doubt_back(scene: Scene) -> None:
    worker = scene.serving(decoder="kv")
    stream: Any = await scene.ask()
    scene.streams.said(worker, Tokens(stream.id, 0, [7, 8, 9], ""))
    worker.alive = False
    scene.streams.doubt(stream)
    scene.streams.lost(worker)
    (start,) = scene.serving(decoder="kv").of(Start)

    assert (start.generated, start.valid) == ([7, 8, 9], 0)


async def test_what_ends_in_doubt_leaves_nothing_behind(scene: Scene) -> None:
    worker, stream = await doubted(scene)
    stream.lease.valid = 40  # worth keeping otherwise
    scene.streams.said(worker, Finished(stream.id, "stop", ""))
    scene.streams.doubt(stream)

    assert stream.done
    assert scene.pool.ledger().idle_count == 0
    assert scene.pool.ledger().leased == 0


# ---------------------------------------------------------------- what it begins with


async def beginning(tiny: ModelSpec) -> tuple[Scene, Any, Any]:
    """A stream that has begun with 299 positions of the turn before, and has no token yet."""
    scene = Scene(tiny, carrying())
    worker = scene.serving(0, "kv")
    said = list(range(1, 300))
    worker.renders = [said, [*said, 5, 6]]
    await ended(scene, worker, 299)
    stream: Any = await scene.ask()
    assert stream.cached_tokens == 299
    return scene, worker, stream


async def served(scene: Scene, worker: Any, stream: Any) -> int:
    """The cached tokens of its answer."""
    scene.streams.said(worker, Tokens(stream.id, 0, [7], "a"))
    scene.streams.said(worker, Finished(stream.id, "stop"))
    await stream.next(1)
    end = await stream.next(1)
    assert isinstance(end, Ended)
    return end.usage.cached_tokens


async def test_what_is_computed_after_all_before_the_first_token_was_not_cached(
    tiny: ModelSpec,
) -> None:
    scene, worker, stream = await beginning(tiny)
    scene.streams.doubt(stream)
    scene.streams.said(worker, Detached(stream.id, 0))
    (_, again) = [start for start in worker.of(Start) if start.stream == stream.id]

    assert again.valid == 0
    assert await served(scene, worker, stream) == 0


async def test_nor_is_what_a_hand_over_has_computed_again(tiny: ModelSpec) -> None:
    scene, worker, stream = await beginning(tiny)
    scene.streams.release(worker)
    other = scene.serving(2, "generator")
    scene.streams.said(worker, Detached(stream.id, 0))

    assert await served(scene, other, stream) == 0


async def test_what_a_dead_worker_had_read_of_the_prompt_was_not_cached_before(
    tiny: ModelSpec,
) -> None:
    scene, worker, stream = await beginning(tiny)
    scene.streams.said(worker, Progress(stream.id, 300, 301))
    scene.streams.lost(worker)
    other = scene.serving(0, "kv")
    (start,) = other.of(Start)

    assert start.valid == 300
    assert await served(scene, other, stream) == 299


@pytest.mark.parametrize("to", [(0, "generator"), (0, "kv"), (2, "kv")])
async def test_who_has_not_begun_and_loses_its_kv_is_as_it_came(
    tiny: ModelSpec, to: tuple[int, str]
) -> None:
    replay = Handover(Carry.REPLAY, Carry.REPLAY, 60.0)
    scene = Scene(tiny, replace(carrying(), handover=replay))
    worker = scene.serving(0, "kv")
    said = list(range(1, 300))
    worker.renders = [said, [*said, 5, 6]]
    await ended(scene, worker, 299)
    scene.configure(replace(with_admission(conversations=0), handover=replay))
    stream: Any = await scene.ask()
    stream.view = replace(stream.view, keep=4, dropped=1)  # as the other conversation's was
    had = stream.source
    scene.streams.release(worker)
    other = scene.serving(*to)
    scene.configure(replace(carrying(), handover=replay))
    (start,) = other.of(Start)
    kept = to == (0, "kv")

    assert had is not None
    assert start.dropped == (1 if kept else 0)
    assert start.valid == (299 if kept else 0)
    assert (stream.source is had) is kept


# ---------------------------------------------------------------- a broken protocol


@pytest.mark.parametrize(
    "behind",
    [Finished(1, "stop"), Tokens(1, 1, [6], "b"), Detached(1, 1), Failed(1, "x", "y")],
)
async def test_nothing_counts_that_a_worker_says_behind_a_token_that_was_lost(
    scene: Scene, behind: Any
) -> None:
    worker = scene.serving()
    stream: Any = await scene.ask()
    for message in (Tokens(stream.id, 0, [5], "a"), Tokens(stream.id, 2, [7], "c"), behind):
        scene.streams.said(worker, message)
    after = stream.done, list(stream.generated), stream.worker is worker
    scene.streams.lost(worker)
    (start,) = scene.serving().of(Start)

    assert stream.id == behind.stream
    assert after == (False, [5], True)
    assert start.generated == [5]
    assert len(scene.broken) == 1
