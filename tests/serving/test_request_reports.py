"""What the core hears of requests while streams live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct
from stand_ins import FakeClock, FakeWorker
from test_kv_disk import until

from policies_for_tests import policy
from trimtab.domain.events import (
    Event,
    RequestArrived,
    RequestEnd,
    RequestEnded,
    RequestProgress,
)
from trimtab.domain.models import ModelSpec
from trimtab.domain.scheduling import Schedule
from trimtab.policy.compiled import Policy, Window
from trimtab.serving.carrier import Carrier
from trimtab.serving.gateway import Gateway
from trimtab.serving.pool import Pool
from trimtab.serving.reports import Reports
from trimtab.serving.requests import GenerationRequest, Priority, StreamHandle
from trimtab.serving.streams import Streams
from trimtab.workers.protocol import Failed, Finished, Full, Moved, Progress, Tokens

PROMPT = list(range(1, 101))


class Desk:
    """Streams whose reports are kept.

    Args:
        model: What is served.
        rules: In force.
        context: For new conversations.
    """

    def __init__(self, model: ModelSpec, rules: Policy, context: int) -> None:
        self.events: list[Any] = []
        self.clock = FakeClock()
        self.reports = Reports(self._take, lambda call: call())
        self.pool = Pool()
        carrier = Carrier(self.pool, self.clock)
        self.streams = Streams(self.clock, self.reports, carrier, lambda *_: None)
        self.gateway = Gateway(self.streams, carrier, self.clock, lambda: None)
        carrier.serve(model)
        self.streams.configure(rules)
        self.reports.configure(rules.admission.priorities)
        self.gateway.configure(model=model, policy=rules)
        self.gateway.admit(context)
        self.worker: Any = FakeWorker(model.variants[0], "kv")
        self.streams.attach(self.worker)

    def _take(self, event: Event) -> None:
        self.events.append(event)

    async def ask(self, prompt: Sequence[int] = PROMPT, **changes: Any) -> StreamHandle:
        self.worker.renders.append(list(prompt))
        request = GenerationRequest("tiny", text="x", max_tokens=50, user=1)
        return await self.gateway.submit(replace(request, **changes))

    def say(self, message: Any) -> None:
        self.clock.now += 1
        self.streams.said(self.worker, message)

    def writes(self, stream: int, first: int, count: int, seconds: float, together: int) -> None:
        """Tokens one by one, each from a step of its own."""
        for at in range(first, first + count):
            self.say(Tokens(stream, at, [9], "a", engine_s=seconds, together=together))


@pytest.fixture
def desk(tiny: ModelSpec) -> Desk:
    return Desk(tiny, policy(), 2048)


@pytest.fixture
def narrow(tiny: ModelSpec) -> Desk:
    """Windows of 64 tokens, of which the first 8 stay when the older half of the rest goes."""
    return Desk(tiny, policy(knobs=replace(policy().knobs, window=Window(True, 8))), 64)


async def test_a_request_is_told_with_its_length_limit_weight_and_wait(desk: Desk) -> None:
    desk.clock.now += 5

    await desk.ask(priority=Priority.BACKGROUND)

    assert desk.events == [RequestArrived(1005.0, 1, 100, 50, 0.2, waited_s=0.0)]


async def test_a_request_without_a_limit_of_its_own_has_none(desk: Desk) -> None:
    await desk.ask(max_tokens=None)

    assert desk.events[0].max_tokens is None


async def test_what_lies_in_the_cache_already_is_no_work(desk: Desk) -> None:
    first = await desk.ask()
    desk.say(Progress(first.id, 100, 100))
    desk.say(Finished(first.id, "stop"))

    await desk.ask()

    arrived = [event for event in desk.events if isinstance(event, RequestArrived)]
    assert [event.prompt_tokens for event in arrived] == [100, 1]


async def test_what_a_request_copies_when_its_turn_comes_took_the_engine_no_time(
    desk: Desk,
) -> None:
    first, second = await desk.ask(), await desk.ask([*PROMPT, 7, 8])
    desk.say(Progress(first.id, 100, 100, 0.5))
    await until(lambda: any(isinstance(one, RequestProgress) for one in desk.events))
    desk.say(Progress(second.id, 102, 102, 0.1))
    desk.say(Tokens(second.id, 0, [9], "a"))
    told = [event for event in desk.events if isinstance(event, RequestProgress)]

    assert [event.prompt_tokens for event in desk.events if isinstance(event, RequestArrived)] == [
        100,
        102,
    ]
    of_second = [event for event in told if event.request == second.id]
    assert [(event.prefilled_tokens, event.prefill_s) for event in of_second] == [
        (100, 0.0),
        (102, 0.1),
    ]


async def test_the_first_token_tells_what_the_prompt_took_and_no_decoding(desk: Desk) -> None:
    stream = await desk.ask()
    desk.say(Progress(stream.id, 64, 100, 0.2))
    desk.say(Progress(stream.id, 100, 100, 0.1))
    desk.say(Tokens(stream.id, 0, [9], "a"))

    assert desk.events[1:] == [RequestProgress(1003.0, 1, 100, 0, pytest.approx(0.3))]


async def test_further_tokens_are_told_where_the_schedule_looks_and_nowhere_else(
    desk: Desk,
) -> None:
    stream = await desk.ask()
    desk.reports.follow(Schedule((stream.id,), look_tokens=8))
    desk.say(Tokens(stream.id, 0, [9], "a"))
    desk.writes(stream.id, 1, 11, 0.5, 1)

    told = [event for event in desk.events if isinstance(event, RequestProgress)]
    assert [(event.produced_tokens, event.decode_s) for event in told] == [(0, 0.0), (7, 3.5)]


async def test_before_a_new_request_all_that_run_are_told(desk: Desk) -> None:
    one = await desk.ask()
    desk.say(Progress(one.id, 64, 100, 0.2))

    await desk.ask()

    kinds = [type(event) for event in desk.events]
    assert kinds == [RequestArrived, RequestProgress, RequestArrived]
    assert desk.events[1].prefilled_tokens == 64


async def test_nothing_new_is_told_twice(desk: Desk) -> None:
    stream = await desk.ask()
    desk.say(Tokens(stream.id, 0, [9], "a"))
    desk.reports.progress(1001.0)
    desk.reports.progress(1002.0)

    assert len(desk.events) == 2


async def test_steps_that_several_shared_are_told_with_how_many(desk: Desk) -> None:
    stream = await desk.ask()
    desk.say(Tokens(stream.id, 0, [9], "a"))
    desk.writes(stream.id, 1, 2, 0.5, 1)
    desk.writes(stream.id, 3, 2, 1.5, 4)
    desk.reports.progress(1010.0)

    told = desk.events[-1]
    assert (told.produced_tokens, told.decode_s, told.together) == (4, 4.0, 2.5)


async def test_a_complete_answer_tells_its_length_and_a_broken_one_does_not(desk: Desk) -> None:
    whole, broken, left = await desk.ask(), await desk.ask(), await desk.ask()
    desk.say(Tokens(whole.id, 0, [9, 9, 9], "a"))
    desk.say(Finished(whole.id, "length"))
    desk.say(Failed(broken.id, "engine_failed", "NaN"))
    left.cancel()

    ends = [event for event in desk.events if isinstance(event, RequestEnded)]
    assert [(end.request, end.produced_tokens, end.end) for end in ends] == [
        (whole.id, 2, RequestEnd.DONE),
        (broken.id, 0, RequestEnd.GONE),
        (left.id, 0, RequestEnd.GONE),
    ]


async def test_reading_again_after_a_change_of_worker_says_nothing_of_speed(desk: Desk) -> None:
    stream = await desk.ask()
    desk.say(Progress(stream.id, 100, 100, 0.3))
    desk.say(Tokens(stream.id, 0, [9], "a"))
    desk.say(Progress(stream.id, 50, 101, 7.0))
    desk.writes(stream.id, 1, 1, 0.5, 1)
    desk.reports.progress(1010.0)

    told = desk.events[-1]
    assert (told.prefilled_tokens, told.prefill_s, told.decode_s) == (100, 0.0, 0.5)


async def test_what_a_window_forgets_of_a_prompt_beforehand_is_no_work(narrow: Desk) -> None:
    stream = await narrow.ask()
    narrow.say(Progress(stream.id, 30, 36, 0.2))
    narrow.reports.progress(1010.0)
    narrow.say(Progress(stream.id, 36, 36, 0.1))
    narrow.say(Tokens(stream.id, 0, [9], "a"))

    arrived, *told = narrow.events
    assert arrived.prompt_tokens == 36
    assert [event.prefilled_tokens for event in told] == [30, 36]


async def test_what_lies_in_the_cache_of_a_forgetful_conversation_is_no_work(narrow: Desk) -> None:
    first = await narrow.ask()
    narrow.say(Progress(first.id, 36, 36))
    narrow.say(Finished(first.id, "stop"))

    await narrow.ask([*PROMPT, *range(200, 210)])

    arrived = [event for event in narrow.events if isinstance(event, RequestArrived)]
    assert [event.prompt_tokens for event in arrived] == [36, 10]


async def begun_whole(narrow: Desk) -> StreamHandle:
    """A prompt of 90 tokens whose first 60 are there: its window is full before its end."""
    first = await narrow.ask(PROMPT[:60])
    narrow.say(Progress(first.id, 60, 60))
    narrow.say(Finished(first.id, "stop"))
    narrow.events.clear()
    stream = await narrow.ask(PROMPT[:90])
    narrow.say(Progress(stream.id, 63, 90, 0.1))
    narrow.say(Full(stream.id, 63))
    return stream


async def test_what_a_window_forgets_of_a_prompt_while_it_is_read_has_been_read(
    narrow: Desk,
) -> None:
    stream = await begun_whole(narrow)
    narrow.reports.progress(1010.0)
    narrow.say(Moved(stream.id, 28, 35))
    narrow.reports.progress(1011.0)
    narrow.say(Progress(stream.id, 50, 62, 0.1))
    narrow.reports.progress(1012.0)

    arrived, *told = narrow.events
    assert arrived.prompt_tokens == 30
    assert [event.prefilled_tokens for event in told] == [3, 18]


async def test_what_stays_and_is_read_again_has_not_been_read_yet(narrow: Desk) -> None:
    narrow.worker.ready = replace_struct(narrow.worker.ready, rereads="quantized keys")
    stream = await begun_whole(narrow)
    narrow.reports.progress(1010.0)
    narrow.say(Progress(stream.id, 50, 62, 0.1))
    narrow.reports.progress(1011.0)

    assert [event.prefilled_tokens for event in narrow.events[1:]] == [18]
