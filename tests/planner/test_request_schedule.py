"""Requests through `step`: who is served, who is refused, and what is learned from them."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from policies_for_tests import policy
from trimtab.domain.decisions import Direction
from trimtab.domain.events import (
    ActionEnded,
    Event,
    ModelChanged,
    OutcomeKind,
    RequestArrived,
    RequestEnd,
    RequestEnded,
    RequestProgress,
    Tick,
)
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.readings import Reading, Snapshot
from trimtab.domain.scheduling import Objective, Schedule
from trimtab.planner import State, step
from trimtab.planner.bursts import Bursts
from trimtab.planner.requests import Queue, with_home
from trimtab.planner.shadow import Shadow
from trimtab.planner.value import STAY_S
from trimtab.policy.compiled import Admission, Policy, Slo

MIB = 1024 * 1024
IN_TIME = Objective(first_within_s=2.0, end_base_s=4.0, end_per_token_s=0.3)


def ladder(**speeds: float) -> ModelSpec:
    """Variants with these tokens a second, best first; all of them small."""
    variants = tuple(
        VariantSpec(
            name=name,
            precision=name,
            folder="",
            weights_bytes=(200 - 10 * position) * MIB,
            disk_bytes=0,
            kv_bytes_per_token=0,
            quality=1.0 - 0.1 * position,
            fingerprint="f",
            context_length=4096,
            decode_tps=speed,
            prefill_tps=500.0,
        )
        for position, (name, speed) in enumerate(speeds.items())
    )
    return ModelSpec("m", "M", "llama", 4096, 16, 4, 64, "t", True, variants)


class Desk:
    """A core with one variant loaded; requests are its only events from then on."""

    def __init__(self, model: ModelSpec, in_force: Policy) -> None:
        self.state = State()
        self.policy = in_force
        self.schedule: Schedule | None = None
        self.post(ModelChanged(0.0, model))
        self.tick(0.0)

    def post(self, event: Event) -> Schedule | None:
        result = step(self.state, event, self.policy)
        self.state = result.state
        self.schedule = result.schedule or self.schedule
        for action in result.actions:
            assert result.decision is not None
            self.post(ActionEnded(event.at_s, action.id, OutcomeKind.DONE, result.decision.target))
        return result.schedule

    def tick(self, at_s: float) -> None:
        reading = Reading("memory.available", 4000 * MIB, at_s)
        self.post(Tick(at_s, Snapshot(at_s, {reading.signal: reading})))

    def arrive(self, request: int, at_s: float, prompt: int = 100, **others: Any) -> None:
        event = RequestArrived(at_s, request, prompt, 64, 1.0, IN_TIME)
        self.post(replace(event, **others))

    @property
    def order(self) -> tuple[int, ...]:
        assert self.schedule is not None
        return self.schedule.order


@pytest.fixture
def desk() -> Desk:
    hurried = Admission(8, 2.0, 8, (("interactive", 1.0), ("background", 0.2)))
    return Desk(ladder(big=10.0, small=20.0), policy(admission=hurried))


def test_a_new_arrival_is_served_before_a_conversation_that_has_time(desk: Desk) -> None:
    desk.arrive(1, 0.0)
    desk.post(RequestProgress(0.2, 1, 100, 0, prefill_s=0.2))

    desk.arrive(2, 0.5)

    assert desk.order == (2, 1)


def test_a_conversation_goes_on_once_the_newcomer_has_its_first_token(desk: Desk) -> None:
    desk.arrive(1, 0.0)
    desk.post(RequestProgress(0.2, 1, 100, 0, prefill_s=0.2))
    desk.arrive(2, 0.5)

    desk.post(RequestProgress(0.7, 2, 100, 0, prefill_s=0.2))

    assert desk.order == (1, 2)


def test_a_request_that_cannot_begin_in_time_is_refused_with_a_time_to_come_back(
    desk: Desk,
) -> None:
    for request in range(12):
        desk.arrive(request, 0.01 * request, prompt=400)

    schedule = desk.post(RequestProgress(1.9, 0, 400, 0, prefill_s=0.8))

    assert schedule is not None
    assert schedule.shed
    assert all(shed.retry_after_s >= 1 for shed in schedule.shed)
    assert not {shed.request for shed in schedule.shed} & set(schedule.order)


def test_a_background_request_gives_way_to_an_interactive_one(desk: Desk) -> None:
    desk.arrive(1, 0.0, prompt=700, weight=0.2)

    desk.arrive(2, 0.1, prompt=700, weight=1.0)

    assert desk.order[0] == 2


def test_a_request_that_is_late_is_still_served_when_nobody_else_waits(desk: Desk) -> None:
    desk.arrive(1, 0.0)
    desk.post(RequestProgress(0.2, 1, 100, 0, prefill_s=0.2))

    desk.post(RequestProgress(200.0, 1, 100, 1, decode_s=0.1))

    assert desk.order == (1,)
    assert desk.state.queue.jobs[0].late


def test_a_late_request_gets_its_floor_share_while_others_are_served(desk: Desk) -> None:
    desk.arrive(1, 0.0)
    desk.post(RequestProgress(0.2, 1, 100, 0, prefill_s=0.2))
    desk.post(RequestProgress(100.0, 1, 100, 1, decode_s=0.1))
    desk.arrive(2, 100.0)
    first = []

    for turn in range(60):
        desk.post(RequestProgress(101.0 + turn, 2, 100, 1, decode_s=0.1))
        desk.arrive(3 + turn, 101.0 + turn)
        first.append(desk.order[0])

    assert 1 in first
    assert first.count(1) < len(first) / 4


def test_a_late_answer_that_has_to_be_read_again_keeps_its_floor_share(desk: Desk) -> None:
    desk.arrive(1, 0.0)
    desk.post(RequestProgress(0.2, 1, 100, 0, prefill_s=0.2))
    desk.post(RequestProgress(100.0, 1, 100, 1, decode_s=0.1))
    desk.post(RequestProgress(100.0, 1, 0, 1))  # its worker was lost
    desk.arrive(2, 100.0)
    first = []

    for turn in range(60):
        desk.post(RequestProgress(101.0 + turn, 2, 100, 1, decode_s=0.1))
        desk.arrive(3 + turn, 101.0 + turn)
        first.append(desk.order[0])

    assert desk.state.queue.jobs[0].late
    assert 0 < first.count(1) < len(first) / 4


class Rush(Desk):
    """Answers without a TPOT objective, and newcomers whose prompts would fill the engine."""

    def __init__(self, answers: int, conversations: int) -> None:
        admission = Admission(1000, 20.0, conversations, (("interactive", 1.0),))
        super().__init__(ladder(big=10.0), policy(slo=Slo(20.0, None, 60.0), admission=admission))
        self.newest = answers
        for number in range(1, answers + 1):
            self.arrive(number, 0.0, objective=None)
            self.post(RequestProgress(0.2, number, 100, 0, prefill_s=0.2))

    def served(self) -> tuple[int, ...]:
        assert self.schedule is not None
        return self.order[: self.schedule.together or len(self.order)]

    def come_and_read(self, at_s: float, conversations: int) -> None:
        """All that were reading have read, and as many others want to."""
        before, self.newest = self.newest, self.newest + conversations
        for number in range(before + 1, self.newest + 1):
            self.arrive(number, at_s, prompt=500, objective=None)
        for number in range(before + 1 - conversations, before + 1):
            self.post(RequestEnded(at_s, number, 1, end=RequestEnd.GONE))


@pytest.mark.parametrize("conversations", [1, 4])
def test_an_answer_without_a_deadline_goes_on_while_newcomers_fill_the_engine(
    conversations: int,
) -> None:
    rush = Rush(1, conversations)
    rush.newest += conversations  # nobody is cancelled in the first round
    turns = []

    for turn in range(600):
        rush.come_and_read(1.0 + 0.1 * turn, conversations)
        turns.append(1 in rush.served())

    waited = [len(list(same)) for had, same in groupby(turns) if not had]
    assert max(waited) <= 110  # 0.3 s for ten
    assert 0.02 < sum(turns) / len(turns) < 0.06


def test_the_oldest_of_several_without_a_deadline_has_the_floor_share_first() -> None:
    rush = Rush(3, 1)
    rush.newest += 1
    heads = []

    for turn in range(600):
        rush.come_and_read(1.0 + 0.1 * turn, 1)
        heads.append(rush.order[0])

    assert {head for head in heads if head <= 3} == {1}


def test_an_answer_without_a_deadline_that_has_to_be_read_again_has_the_floor_share_too() -> None:
    rush = Rush(1, 1)
    rush.newest += 1
    rush.post(RequestProgress(0.9, 1, 100, 5, decode_s=0.5))
    rush.post(RequestProgress(1.0, 1, 0, 5))  # its worker was lost
    heads = []

    for turn in range(600):
        rush.come_and_read(30.0 + 0.1 * turn, 1)
        heads.append(rush.order[0])

    assert 0 < heads.count(1) < 40


def test_a_cancelled_request_leaves_the_queue_and_teaches_nothing(desk: Desk) -> None:
    desk.arrive(1, 0.0)

    desk.post(RequestEnded(1.0, 1, 3, end=RequestEnd.GONE))

    assert not desk.state.queue.jobs
    assert not desk.state.queue.lengths.seen


def test_a_slow_engine_is_noticed_within_seconds_of_work(desk: Desk) -> None:
    desk.arrive(1, 0.0)
    for turn in range(12):
        desk.post(RequestProgress(1.0 + turn, 1, 100, 5 * (turn + 1), decode_s=1.0))

    factor = desk.state.queue.speeds.factor("big")

    assert factor == pytest.approx(0.5, abs=0.05)  # 5 tokens a second instead of 10


def test_without_objectives_requests_are_served_in_order_of_arrival(desk: Desk) -> None:
    patient = policy(admission=replace(desk.policy.admission, max_wait_s=600.0))
    plain = Desk(ladder(big=10.0), patient)

    for request in range(4):
        plain.arrive(request, float(request), objective=None)

    assert plain.order == (0, 1, 2, 3)


def test_under_load_the_faster_variant_becomes_the_choice_and_the_record_says_why() -> None:
    slow = Desk(ladder(big=5.0, small=20.0), policy())
    records = []
    now = 0.0
    for request in range(60):
        now += 4.0
        slow.arrive(request, now, prompt=50, max_tokens=64)
        result = step(slow.state, Tick(now, _roomy(now)), slow.policy)
        if result.decision is not None:
            records.append(result.decision)
        slow.tick(now)

    moves = [record for record in records if record.trigger.signal == "value"]
    assert moves
    assert moves[0].target.variant == "small"
    assert "would have been worth" in moves[0].trigger.text


def test_with_a_light_load_the_best_variant_stays() -> None:
    light = Desk(ladder(big=40.0, small=80.0), policy())
    now = 0.0
    for request in range(60):
        now += 30.0
        light.arrive(request, now, prompt=50)
        light.post(RequestEnded(now + 1.0, request, 20, 0.1, 0.5))
        light.tick(now + 2.0)

    assert light.state.point.variant == "big"


def _roomy(at_s: float) -> Snapshot:
    return Snapshot(at_s, {"memory.available": Reading("memory.available", 4000 * MIB, at_s)})


def test_the_way_back_takes_a_wider_lead_for_some_hundred_requests() -> None:
    def shadows(big: float, small: float) -> Queue:
        pair = (("big", Shadow(earned=big, count=96)), ("small", Shadow(earned=small, count=96)))
        return Queue(shadows=pair, home="big")

    both = ("big", "small")
    gone = with_home(shadows(0.90, 0.92), both, {})
    tempted = replace(gone, shadows=shadows(0.92, 0.905).shadows)

    assert gone.home == "small"
    assert with_home(tempted, both, {}).home == "small"
    assert with_home(replace(tempted, left_ago=600), both, {}).home == "big"


def test_requests_that_come_at_once_are_one_moment() -> None:
    bursts = Bursts()
    for moment in range(60):
        for _ in range(9):
            bursts = bursts.arrived(10.0 * moment)
    alone = Bursts()
    for moment in range(60):
        alone = alone.arrived(10.0 * moment)

    assert bursts.size == pytest.approx(9.0, rel=0.01)
    assert alone.size == 1.0


def test_evidence_counts_in_moments() -> None:
    pair = (("big", Shadow(earned=0.90, count=96)), ("small", Shadow(earned=0.91, count=96)))
    one_by_one = Queue(shadows=pair, home="big")
    in_bursts = replace(one_by_one, bursts=Bursts(size=9.0))

    assert with_home(one_by_one, ("big", "small"), {}).home == "small"
    assert with_home(in_bursts, ("big", "small"), {}).home == "big"


def test_what_is_remembered_counts_in_moments(desk: Desk) -> None:
    for moment in range(40):
        for number in range(9):
            request = 9 * moment + number
            desk.arrive(request, 100.0 * moment)
        for number in range(9):
            desk.post(RequestEnded(100.0 * moment + 50.0, 9 * moment + number, 20, 0.1, 0.5))

    queue = desk.state.queue
    assert queue.memory > 800
    assert queue.truth.count > 300


def test_a_change_that_stops_the_engine_has_to_pay_for_itself() -> None:
    pair = (("big", Shadow(earned=0.80, count=96)), ("small", Shadow(earned=0.82, count=96)))
    queue = Queue(shadows=pair, home="big")

    assert with_home(queue, ("big", "small"), {"small": 0.0}).home == "small"
    assert with_home(queue, ("big", "small"), {"small": 20 / STAY_S}).home == "big"


def test_a_home_that_no_longer_fits_is_left_whatever_it_earns() -> None:
    pair = (("big", Shadow(earned=0.99, count=96)), ("small", Shadow(earned=0.5, count=96)))

    queue = with_home(Queue(shadows=pair, home="big"), ("small",), {})

    assert queue.home == "small"


def test_a_request_that_waited_for_a_load_is_due_from_when_it_was_received(desk: Desk) -> None:
    desk.arrive(1, 10.0, waited_s=1.5)

    assert desk.state.queue.jobs[0].first_by_s == 10.5


def test_refused_requests_are_a_decision_that_says_why_and_a_rush_of_them_is_one(
    desk: Desk,
) -> None:
    records = []
    for request in range(40):
        desk.arrive(request, 0.01 * request, prompt=400)
    for moment in (1.9, 2.0, 2.1, 3.2):
        event = RequestProgress(moment, 0, 400, 0, prefill_s=0.8)
        records.append(step(desk.state, event, desk.policy).decision)
        desk.post(event)
        desk.arrive(int(100 * moment), moment, prompt=1, waited_s=moment)

    first, soon, sooner, last = records
    assert first is not None
    assert last is not None
    assert (soon, sooner) == (None, None)
    assert first.direction is Direction.SHED
    assert first.source == first.target == desk.state.point
    assert "can't be in time" in first.trigger.text
    assert (first.id, last.id) == (2, 3)


def test_an_answer_whose_prompt_must_be_read_again_is_not_refused(desk: Desk) -> None:
    desk.arrive(1, 0.0)
    desk.post(RequestProgress(0.2, 1, 100, 0, prefill_s=0.2))
    desk.post(RequestProgress(1.0, 1, 0, 1))
    for request in range(2, 12):
        desk.arrive(request, 1.0, prompt=400)

    schedule = desk.post(RequestProgress(60.0, 1, 0, 1))

    assert schedule is not None
    assert 1 in schedule.order


@pytest.mark.parametrize(("prompt", "sharing"), [(200, 2), (500, 1)])
def test_a_newcomer_shares_the_engine_unless_it_would_be_late(
    desk: Desk, prompt: int, sharing: int
) -> None:
    desk.arrive(1, 0.0, prompt=10)
    desk.post(RequestProgress(0.1, 1, 10, 0, prefill_s=0.1))

    schedule = desk.post(RequestArrived(0.1, 2, prompt, 64, 1.0, IN_TIME))

    assert schedule is not None
    assert schedule.order == (2, 1)
    assert schedule.together == sharing


def test_a_late_answer_waits_while_others_can_be_in_time(desk: Desk) -> None:
    desk.arrive(1, 0.0, prompt=10)
    desk.post(RequestProgress(0.1, 1, 10, 0, prefill_s=0.1))
    desk.post(RequestProgress(90.0, 1, 10, 1, decode_s=0.1))
    desk.arrive(2, 90.0, prompt=10)

    schedule = desk.post(RequestProgress(90.1, 2, 10, 0, prefill_s=0.1))

    assert schedule is not None
    assert schedule.order == (2, 1)
    assert schedule.together == 1
