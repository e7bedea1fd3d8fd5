"""Whom to serve and whom to refuse, from everything that waits or runs.

The order is the earliest deadline first among those that can still meet their objective; a new
arrival's prompt is due soon, so it is read at once unless others would miss for it. What can't be
met any more is served in spare time, and for a floor share of the time in any case, so that nobody
starves. So is an answer that has no deadline, while others take its place. A request that hasn't
begun is refused once its turn can't come within the policy's wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Final

from trimtab.domain.scheduling import Schedule, Shed
from trimtab.planner.jobs import Job, left
from trimtab.planner.queue_plan import Plan, Rate, met, pieces, plan
from trimtab.planner.requests import Queue
from trimtab.planner.sharing import shared_rate, together
from trimtab.policy.compiled import Admission

STRETCH: Final = 1.05
"""Everything is planned to take so much longer, for what will come in between."""

MOST_JOBS: Final = 24
FLOOR_SHARE: Final = 0.03
"""Of the engine's time, for answers that have begun and that no deadline brings to their turn."""

SLICE_S: Final = 0.3
FIRST_LOOK: Final = 8


@dataclass(frozen=True, slots=True)
class Considered:
    """What came of looking at the queue: the queue without what is refused, and the schedule."""

    queue: Queue
    schedule: Schedule


def consider(
    queue: Queue, rate: Rate, fastest: Rate, at_s: float, admission: Admission
) -> Considered:
    """Plan on the variant that is loaded.

    Args:
        queue: Up to date.
        rate: The loaded variant's speed now, for one request alone.
        fastest: The best speeds that a change of variant could give: what they can't save is lost.
        at_s: Now.
        admission: How many may run, and how long a request may wait for its turn.
    """
    queue = _with_late_marked(queue, fastest, at_s)
    if len(queue.jobs) == 1 and not queue.jobs[0].late:  # alone and in time: nothing to plan
        schedule = Schedule((queue.jobs[0].request,))
        return Considered(_looked_at(queue, at_s, 0.0, queue.slice_until_s), schedule)
    live = [job for job in queue.jobs if not job.late]
    if len(live) > MOST_JOBS:
        live = sorted(live, key=_due)[:MOST_JOBS]
    order = pieces(live)
    count = min(len(queue.jobs), admission.conversations)
    planned = plan(live, order, shared_rate(rate, queue.speeds, count), at_s, STRETCH)
    if count > 1 and planned.kept:
        # Late ones don't slow those down that can be in time: they have what time these leave.
        kept = [live[position] for position in planned.kept[:count]]
        fewer = together(kept, rate, queue.speeds, at_s)
        if fewer < count:
            count = fewer
            planned = plan(live, order, shared_rate(rate, queue.speeds, count), at_s, STRETCH)
    queue, shed = _refused(queue, planned, at_s, admission.max_wait_s)
    return _ordered(queue, live, planned, rate, shed, at_s, count)


def _due(job: Job) -> float:
    return job.first_by_s if job.prefill_left > 0 else job.end_by_s


def _with_late_marked(queue: Queue, fastest: Rate, at_s: float) -> Queue:
    late = [
        job
        for job in queue.jobs
        if not job.late and job.first_by_s < at_s + job.prompt * fastest.prefill_s
        if _hopeless(job, fastest, at_s)
    ]
    if not late:
        return queue
    jobs = tuple([replace(job, late=True) if job in late else job for job in queue.jobs])
    return replace(queue, jobs=jobs)


def _hopeless(job: Job, fastest: Rate, at_s: float) -> bool:
    """True if no speed saves it."""
    if job.prefill_left > 0 and not job.produced:
        return at_s + job.prefill_left * fastest.prefill_s > job.first_by_s
    slack_s = job.end_base_s + job.per_token_s * job.produced - at_s
    return slack_s < 0 and not met(
        left(job.lengths, job.produced, job.limit), slack_s, job.per_token_s - fastest.decode_s
    )


def _refused(
    queue: Queue, planned: Plan, at_s: float, max_wait_s: float
) -> tuple[Queue, tuple[Shed, ...]]:
    """Refuse what is late, hasn't begun, and won't have its turn in time."""
    turn_s = at_s + planned.busy_s
    out = [
        job
        for job in queue.jobs
        if job.late and job.prefill_left >= job.prompt and not job.produced
        if turn_s > job.arrived_s + max_wait_s
    ]
    if not out:
        return queue, ()
    retry_s = float(max(1, ceil(planned.busy_s)))
    jobs = tuple([job for job in queue.jobs if job not in out])
    truth = queue.truth
    for _ in out:
        truth = truth.after(0.0, queue.memory)
    return replace(queue, jobs=jobs, truth=truth), tuple(
        [Shed(job.request, retry_s, _why(turn_s - job.arrived_s, max_wait_s)) for job in out]
    )


def _why(wait_s: float, max_wait_s: float) -> str:
    return (
        "its first token can't be in time any more, and its turn would come after "
        f"{wait_s:.1f} s, when {max_wait_s:g} s is the longest wait"
    )


def _ordered(
    queue: Queue,
    live: list[Job],
    planned: Plan,
    rate: Rate,
    shed: tuple[Shed, ...],
    at_s: float,
    count: int,
) -> Considered:
    """Kept requests first, the rest behind; the floor share goes to the rest now and then."""
    first = [live[position] for position in planned.kept]
    kept = set(planned.kept_requests)
    rest = [job for job in queue.jobs if job.request not in kept]
    rest.sort(key=_behind)
    order = [job.request for job in first] + [job.request for job in rest]
    head = first[0] if first else rest[0] if rest else None
    # Alone in the queue, nothing that its length could tell would change anything.
    look = next_look(head.produced) if head is not None and len(order) > 1 else None
    owed_s, until_s = 0.0, queue.slice_until_s
    served = order[:count]
    # Begun, and no deadline will ever bring them to their turn: they can't be in time any more, or
    # may take as long as they take (no objective for TPOT) and aren't among those served now.
    begun = [
        job
        for job in queue.jobs
        if (job.late or (job.end_base_s == inf and job.request not in served))
        and (job.prefill_left < job.prompt or job.produced)
    ]
    if first and begun:
        owed_s = queue.owed_s + FLOOR_SHARE * (at_s - queue.considered_s)
        if owed_s >= SLICE_S:
            owed_s, until_s = owed_s - SLICE_S, at_s + SLICE_S
        if at_s < until_s:
            head = min(begun, key=_arrived)
            order.remove(head.request)
            order.insert(0, head.request)
            look = head.produced + max(1, int(SLICE_S / rate.decode_s))
    queue = _looked_at(queue, at_s, owed_s, until_s)
    return Considered(queue, Schedule(tuple(order), shed, look, count))


def _looked_at(queue: Queue, at_s: float, owed_s: float, until_s: float) -> Queue:
    return Queue(
        queue.jobs,
        queue.lengths,
        queue.speeds,
        queue.shadows,
        queue.home,
        queue.left,
        queue.left_ago,
        queue.truth,
        owed_s,
        at_s,
        until_s,
        queue.bursts,
    )


def _behind(job: Job) -> tuple[bool, bool, float]:
    return job.late, job.prefill_left > 0, job.arrived_s if job.late else job.end_by_s


def _arrived(job: Job) -> float:
    return job.arrived_s


def next_look(produced: int) -> int:
    """When to look again at an answer: after 8, 12, 18, 27… tokens."""
    look = FIRST_LOOK
    while look <= produced:
        look = look * 3 // 2
    return look
