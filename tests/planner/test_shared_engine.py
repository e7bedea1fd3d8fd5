"""An engine that decodes for several at once: what is learned of it, and whom it lets share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shared_engine_world import SharedEngine

from trimtab.planner.jobs import Job
from trimtab.planner.queue_plan import Rate
from trimtab.planner.sharing import shared_rate, together
from trimtab.planner.speeds import Speeds
from trimtab.policy.compiled import Slo

BIG = Rate("big", prefill_s=0.002, decode_s=0.02, quality=1.0)
HALF = Speeds(further=0.5)


def writing(request: int = 1, **changes: object) -> Job:
    """An answer with 100 tokens to go, and 10 s for them."""
    job = Job(
        request=request,
        arrived_s=0.0,
        weight=1.0,
        limit=None,
        prompt=100,
        prefill_left=0,
        produced=0,
        first_by_s=1.0,
        end_base_s=10.0,
        per_token_s=0.0,
        lengths=(100.0,),
        mean_left=100.0,
    )
    return replace(job, **changes)  # type: ignore[arg-type]


def reading(first_by_s: float) -> Job:
    """A prompt of 100 tokens, 0.2 s of work, to be read by then."""
    return writing(2, prefill_left=100, first_by_s=first_by_s)


def test_what_sharing_costs_is_learned_from_steps_that_were_shared() -> None:
    speeds = Speeds()
    for _ in range(40):  # four share a step that takes twice as long as one alone
        speeds = speeds.shared("big", 1.0, 2.0, 4.0)

    assert speeds.further == pytest.approx(1 / 3, abs=0.01)
    assert speeds.step(4) == pytest.approx(2.0, abs=0.05)
    assert speeds.factor("big") == 1.0


def test_a_slow_engine_is_not_taken_for_one_that_shares_badly() -> None:
    slow = replace(HALF, common=0.5)
    for _ in range(40):
        slow = slow.shared("big", 1.0, 3.0, 2.0)  # twice 1.5

    assert slow.further == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("took_s", "further"), [(0.1, 0.0), (50.0, 1.0)])
def test_what_is_learned_of_sharing_stays_within_reason(took_s: float, further: float) -> None:
    speeds = HALF
    for _ in range(200):
        speeds = speeds.shared("big", 1.0, took_s, 4.0)

    assert speeds.further == pytest.approx(further, abs=0.2)
    assert 0 <= speeds.further <= 1


def test_all_together_get_more_done_than_one_alone() -> None:
    shared = shared_rate(BIG, HALF, 4)

    assert shared.decode_s == pytest.approx(0.02 * 2.5 / 4)
    assert shared.prefill_s == BIG.prefill_s


def test_an_engine_that_serves_one_after_the_other_gains_nothing() -> None:
    assert shared_rate(BIG, Speeds(), 4) == BIG


def test_all_share_while_that_makes_nobody_late() -> None:
    jobs = [writing(1), writing(2), writing(3)]

    assert together(jobs, BIG, HALF, 0.0) == 3


def test_fewer_share_when_the_first_is_in_a_hurry() -> None:
    hurried = writing(1, end_base_s=3.5)  # alone 2 s, with one other 3 s, with two others 4 s
    jobs = [hurried, writing(2), writing(3)]

    assert together(jobs, BIG, HALF, 0.0) == 2


def test_a_prompt_that_has_time_is_read_between_the_steps_of_others() -> None:
    assert together([reading(0.5), writing(1)], BIG, HALF, 0.0) == 2


def test_a_prompt_that_has_not_has_the_engine_to_itself() -> None:
    assert together([reading(0.25), writing(1)], BIG, HALF, 0.0) == 1


def test_prompts_that_nobody_writes_beside_are_not_slowed_down() -> None:
    assert together([reading(0.25), reading(0.45)], BIG, HALF, 0.0) == 2


ROOMY, TIGHT = Slo(2.5, 0.2, 60.0), Slo(0.8, 0.05, 60.0)


@pytest.mark.parametrize(("slo", "rho", "gain"), [(ROOMY, 1.0, 0.05), (TIGHT, 1.0, 0.2)])
def test_following_the_schedule_keeps_more_requests_in_time_than_taking_what_comes(
    slo: Slo, rho: float, gain: float
) -> None:
    scheduled = SharedEngine(slo, rho).run()
    as_it_comes = SharedEngine(slo, rho, follow=False).run()

    assert scheduled.in_time > as_it_comes.in_time + gain


def test_with_time_to_spare_sharing_beats_one_after_the_other() -> None:
    shared = SharedEngine(ROOMY, 1.5).run()
    one_by_one = SharedEngine(ROOMY, 1.5, together=1).run()

    assert shared.in_time > one_by_one.in_time + 0.05
    assert shared.answered > one_by_one.answered


def test_when_it_is_tight_fewer_share_than_may_run() -> None:
    shared = SharedEngine(TIGHT, 1.0).run()
    all_at_once = SharedEngine(TIGHT, 1.0, together=4).run()

    assert shared.in_time > all_at_once.in_time + 0.1
