"""The queue inside the core: what requests tell, whom to serve, whom to refuse, which variant pays.

Pure: every function takes a queue and gives another. The order is the earliest deadline first among
those that can still meet their objective; a new arrival's prompt is due soon, so it is read at once
unless others would miss for it. What can't be met any more is served in spare time, and for a floor
share of the time in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trimtab.domain.events import RequestArrived, RequestEnd, RequestEnded, RequestProgress
from trimtab.domain.scheduling import Objective, Schedule, Shed
from trimtab.planner.jobs import Job, left
from trimtab.planner.lengths import Lengths
from trimtab.planner.price import WINDOW, Price, solve
from trimtab.planner.queue_plan import Plan, Rate, met, pieces, plan
from trimtab.planner.speeds import Speeds

PRICE_EVERY: Final = 4
PRICE_SHARE: Final = 1.0
STRETCH: Final = 1.05
STAY: Final = 0.0


@dataclass(frozen=True, slots=True)
class Queue:
    """All requests that haven't ended, and what past ones taught.

    Attributes:
        jobs: In order of arrival.
        lengths: Of answers.
        price: Of engine time.
        speeds: Corrections of what is known of the variants.
    """

    jobs: tuple[Job, ...] = ()
    lengths: Lengths = field(default_factory=Lengths)
    price: Price = field(default_factory=Price)
    speeds: Speeds = field(default_factory=Speeds)


# ---------------------------------------------------------------- what requests tell


def arrived(
    queue: Queue, event: RequestArrived, objective: Objective, rates: Sequence[Rate]
) -> Queue:
    """A request has come."""
    lengths = queue.lengths.guess(event.prompt_tokens, event.max_tokens)
    mean = sum(lengths) / len(lengths)
    job = Job(
        request=event.request,
        arrived_s=event.at_s,
        weight=event.weight,
        limit=event.max_tokens,
        prompt=event.prompt_tokens,
        prefill_left=event.prompt_tokens,
        produced=0,
        earned=0.0,
        first_by_s=event.at_s + objective.first_within_s,
        end_base_s=event.at_s + objective.end_base_s,
        per_token_s=objective.end_per_token_s,
        lengths=lengths,
        mean_left=mean,
    )
    offer = tuple(
        [
            (
                event.weight * rate.quality,
                event.prompt_tokens * rate.prefill_s + mean * rate.decode_s,
            )
            for rate in rates
        ]
    )
    return replace(queue, jobs=(*queue.jobs, job), price=_asked(queue.price, event.at_s, offer))


def _asked(price: Price, at_s: float, offer: tuple[tuple[float, float], ...]) -> Price:
    arrivals = (*price.arrivals[-WINDOW:], (at_s, offer))
    if price.since + 1 < PRICE_EVERY:
        return replace(price, arrivals=arrivals, since=price.since + 1)
    # The first arrival opens the span: its own offer isn't counted.
    asked = solve([one for _, one in arrivals[1:]], at_s - arrivals[0][0], price.asked)
    return replace(price, arrivals=arrivals, asked=asked, since=0)


def progressed(queue: Queue, event: RequestProgress, known: Rate | None) -> Queue:
    """A request got on. ``known`` is the serving variant's speed as it was known before."""
    speeds = queue.speeds
    jobs = []
    for job in queue.jobs:
        if job.request == event.request:
            speeds = _seen(speeds, job, event.prefilled_tokens, event.produced_tokens, event, known)
            job = _moved(job, event, known)
        jobs.append(job)
    return replace(queue, jobs=tuple(jobs), speeds=speeds)


def _seen(
    speeds: Speeds,
    job: Job,
    prefilled: float,
    produced: int,
    event: RequestProgress | RequestEnded,
    known: Rate | None,
) -> Speeds:
    if known is None:
        return speeds
    read = prefilled - (job.prompt - job.prefill_left)
    speeds = speeds.observed(known.variant, read * known.prefill_s, event.prefill_s)
    written = produced - job.produced
    return speeds.observed(known.variant, written * known.decode_s, event.decode_s)


def _moved(job: Job, event: RequestProgress, known: Rate | None) -> Job:
    new = event.produced_tokens - job.produced
    rests = left(job.lengths, event.produced_tokens, job.limit)
    return replace(
        job,
        prefill_left=max(0.0, job.prompt - event.prefilled_tokens),
        produced=event.produced_tokens,
        earned=job.earned + new * (known.quality if known is not None else 1.0),
        mean_left=sum(rests) / len(rests),
    )


def ended(queue: Queue, event: RequestEnded, known: Rate | None) -> Queue:
    """A request has left."""
    job = next((one for one in queue.jobs if one.request == event.request), None)
    if job is None:
        return queue
    jobs = tuple([one for one in queue.jobs if one is not job])
    if event.end is RequestEnd.GONE:
        return replace(queue, jobs=jobs)
    speeds = _seen(queue.speeds, job, float(job.prompt), event.produced_tokens, event, known)
    new = event.produced_tokens - job.produced
    earned = job.earned + new * (known.quality if known is not None else 1.0)
    in_time = event.at_s <= job.end_base_s + job.per_token_s * event.produced_tokens
    value = job.weight * earned / max(1, event.produced_tokens) if in_time else 0.0
    price = replace(queue.price, earned=(*queue.price.earned[-WINDOW + 1 :], (event.at_s, value)))
    return replace(
        queue,
        jobs=jobs,
        speeds=speeds,
        price=price,
        lengths=queue.lengths.with_answer(job.prompt, job.limit, event.produced_tokens),
    )


# ---------------------------------------------------------------- what to do


@dataclass(frozen=True, slots=True)
class Wish:
    """What the queue wants.

    Attributes:
        queue: With what became late marked, and without what is refused.
        schedule: Whom to serve and refuse.
        variant: On which variant the plan is worth most.
        value: What it is worth there.
        here: What it is worth on the variant that is loaded.
    """

    queue: Queue
    schedule: Schedule
    variant: str
    value: float
    here: float


def price_now(price: Price, at_s: float) -> float:
    """The price per second: by the equation, or what was really earned if that is less."""
    asked = price.asked
    if len(price.earned) >= 8:
        span_s = at_s - price.earned[0][0]
        if span_s > 0:
            asked = min(asked, sum([value for _, value in price.earned[1:]]) / span_s)
    return PRICE_SHARE * asked


def consider(
    queue: Queue, rates: Sequence[Rate], loaded: str, at_s: float, switch_s: float
) -> Wish:
    """Plan on each variant that may be taken, and say what is best.

    Args:
        queue: Up to date.
        rates: Of the variants that may be taken, corrected; the loaded one among them.
        loaded: The variant that is loaded.
        at_s: Now.
        switch_s: How long a change of variant takes.
    """
    queue, shed = _sift(queue, rates, at_s)
    live = [job for job in queue.jobs if not job.late]
    price = price_now(queue.price, at_s)
    order = pieces(live)
    rests = [left(job.lengths, job.produced, job.limit) for job in live]
    best: Plan | None = None
    here: Plan | None = None
    chosen = loaded
    for rate in rates:
        extra_s = 0.0 if rate.variant == loaded else switch_s
        one = plan(live, order, rests, rate, at_s + extra_s, price, STRETCH)
        one = Plan(one.kept, one.value - price * extra_s, one.busy_s)
        if rate.variant != loaded:
            one = Plan(one.kept, one.value - STAY, one.busy_s)
        if rate.variant == loaded:
            here = one
        if best is None or one.value > best.value:
            best, chosen = one, rate.variant
    assert best is not None
    here = here or best
    return Wish(queue, _schedule(queue, live, here, shed), chosen, best.value, here.value)


def _sift(queue: Queue, rates: Sequence[Rate], at_s: float) -> tuple[Queue, tuple[Shed, ...]]:
    """Mark what can't be met any more; refuse what can't even begin in time."""
    fastest_prefill = min([rate.prefill_s for rate in rates])
    fastest_decode = min([rate.decode_s for rate in rates])
    jobs: list[Job] = []
    shed: list[Shed] = []
    changed = False
    for job in queue.jobs:
        if job.late:
            jobs.append(job)
        elif job.prefill_left > 0:
            if at_s + job.prefill_left * fastest_prefill > job.first_by_s:
                shed.append(Shed(job.request, 1.0, "its first token would come too late"))
                changed = True
            else:
                jobs.append(job)
        else:
            slack_s = job.end_base_s + job.per_token_s * job.produced - at_s
            if slack_s < 0 and not met(
                left(job.lengths, job.produced, job.limit),
                slack_s,
                job.per_token_s - fastest_decode,
            ):
                job = replace(job, late=True)
                changed = True
            jobs.append(job)
    return (replace(queue, jobs=tuple(jobs)) if changed else queue), tuple(shed)


def _schedule(queue: Queue, live: list[Job], here: Plan, shed: tuple[Shed, ...]) -> Schedule:
    order = [live[position].request for position in here.kept]
    kept = set(order)
    others = [job for job in queue.jobs if job.request not in kept]
    others.sort(key=lambda job: (job.late, job.prefill_left > 0, job.end_by_s))
    order += [job.request for job in others]
    look = None
    if order:
        first = next(job for job in queue.jobs if job.request == order[0])
        look = next_look(first.produced)
    return Schedule(tuple(order), shed, look)


def next_look(produced: int) -> int:
    """When to look again at an answer: after 8, 12, 18, 27… tokens."""
    look = 8
    while look <= produced:
        look = look * 3 // 2
    return look
