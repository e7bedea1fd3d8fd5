"""The requests inside the core: what their events tell, and what past ones taught.

Pure: every function takes a queue and gives another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Final

from trimtab.domain.events import RequestArrived, RequestEnd, RequestEnded, RequestProgress
from trimtab.domain.scheduling import Objective
from trimtab.planner.bursts import Bursts
from trimtab.planner.jobs import Job, moved
from trimtab.planner.lengths import Lengths
from trimtab.planner.queue_plan import Rate
from trimtab.planner.shadow import MEMORY, Arrival, Shadow, served
from trimtab.planner.speeds import Speeds
from trimtab.policy.compiled import Policy

FEWEST: Final = 4
MARGIN: Final = 0.05
BACK: Final = 5.0
BACK_MOMENTS: Final = 6 * MEMORY
DRAW: Final = 5
ENOUGH: Final = 24
STRETCH: Final = 1.25
STRETCH_LEAST: Final = 1.0
STRETCH_MOST: Final = 2.0
STRETCH_GAIN: Final = 0.1
SHARED: Final = 1.2
"""From so many requests to a step on, decoding tells what sharing costs, and not how fast it is."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What really came of requests, to hold the shadows against.

    A shadow knows its lengths and is never disturbed, so it earns more than the engine will. Its
    work is stretched until the shadow of the variant that is loaded earns what was really earned.

    Attributes:
        earned: Mean value of a request, as in a shadow.
        count: Requests that ended, up to as many as shadows remember.
        stretch: Factor on the shadows' work.
    """

    earned: float = 0.0
    count: float = 0.0
    stretch: float = STRETCH

    def after(self, gain: float, memory: float) -> Truth:
        """With one more request that ended, of so many that are remembered."""
        count = min(memory, self.count + 1)
        return Truth(self.earned + (gain - self.earned) / count, count, self.stretch)

    def held_against(self, shadow: float) -> Truth:
        """With the stretch moved towards what makes a shadow's earnings true."""
        if self.count < ENOUGH:
            return self
        stretch = self.stretch + STRETCH_GAIN * (shadow - self.earned)
        return Truth(self.earned, self.count, min(STRETCH_MOST, max(STRETCH_LEAST, stretch)))


@dataclass(frozen=True, slots=True)
class Queue:
    """All requests that haven't ended, and what past ones taught.

    Attributes:
        jobs: In order of arrival.
        lengths: Of answers.
        speeds: Corrections of what is known of the variants.
        shadows: What each variant would have earned, by its name.
        home: The variant that pays best by them; None before there is enough to go by.
        left: The home before, unless it had to be left.
        left_ago: Requests that have come since.
        truth: What really came of the last requests, to hold the shadows against.
        owed_s: Engine time that answers which no deadline brings to their turn have saved up by the
            floor share.
        considered_s: When the schedule was last made.
        slice_until_s: Until when one of them has its turn.
        bursts: How many requests come at once.
    """

    jobs: tuple[Job, ...] = ()
    lengths: Lengths = field(default_factory=Lengths)
    speeds: Speeds = field(default_factory=Speeds)
    shadows: tuple[tuple[str, Shadow], ...] = ()
    home: str | None = None
    left: str | None = None
    left_ago: int = 0
    truth: Truth = field(default_factory=Truth)
    owed_s: float = 0.0
    considered_s: float = 0.0
    slice_until_s: float = 0.0
    bursts: Bursts = field(default_factory=Bursts)

    @property
    def memory(self) -> float:
        """Requests that shadows and truth remember."""
        return self.bursts.memory

    def earned(self, variant: str) -> float:
        """What a request would have earned on a variant lately."""
        return next((one.earned for name, one in self.shadows if name == variant), 0.0)


def objective(event: RequestArrived, policy: Policy) -> Objective:
    """What a request must reach: its own objective, else the policy's.

    Without a TTFT objective the policy's longest wait stands in for it; without one for TPOT the
    answer may take as long as it takes.
    """
    if event.objective is not None:
        return event.objective
    first_s, token_s = policy.slo.ttft_p95_s, policy.slo.tpot_p95_s
    if first_s is None:
        first_s = policy.admission.max_wait_s
    if token_s is None:
        return Objective(first_s, inf, 0.0)
    return Objective(first_s, first_s, token_s)


def arrived(
    queue: Queue, event: RequestArrived, due: Objective, rates: Sequence[Rate], loaded: str | None
) -> Queue:
    """A request has come; ``rates`` are the speeds of all variants as they are now."""
    lengths = queue.lengths.guess(event.prompt_tokens, event.max_tokens)
    arrived_s = event.at_s - event.waited_s
    job = Job(
        request=event.request,
        arrived_s=arrived_s,
        weight=event.weight,
        limit=event.max_tokens,
        prompt=event.prompt_tokens,
        prefill_left=event.prompt_tokens,
        produced=0,
        first_by_s=arrived_s + due.first_within_s,
        end_base_s=arrived_s + due.end_base_s,
        per_token_s=due.end_per_token_s,
        lengths=lengths,
        mean_left=sum(lengths) / len(lengths),
    )
    bursts = queue.bursts.arrived(event.at_s)
    # Steps of five walk through all six sixths, short and long in turn.
    length = lengths[event.request * DRAW % len(lengths)]
    new = Arrival(
        event.at_s,
        event.request,
        event.prompt_tokens,
        length,
        job.first_by_s,
        job.end_base_s + job.per_token_s * length,
        event.weight,
        bursts.memory,
    )
    past = dict(queue.shadows)
    truth = queue.truth
    if loaded in past:
        truth = truth.held_against(past[loaded].earned)
    stretch = truth.stretch
    shadows = tuple(
        [
            (
                rate.variant,
                served(
                    past.get(rate.variant) or Shadow(event.at_s),
                    new,
                    rate.prefill_s * stretch,
                    rate.decode_s * stretch,
                    rate.quality,
                ),
            )
            for rate in rates
        ]
    )
    jobs = (*queue.jobs, job)
    return Queue(
        jobs,
        queue.lengths,
        queue.speeds,
        shadows,
        queue.home,
        queue.left,
        queue.left_ago + 1,
        truth,
        queue.owed_s,
        queue.considered_s,
        queue.slice_until_s,
        bursts,
    )


def progressed(queue: Queue, event: RequestProgress, known: Rate | None) -> Queue:
    """A request got on. ``known`` is the serving variant's speed as it was known before."""
    speeds = queue.speeds
    jobs = []
    for job in queue.jobs:
        if job.request == event.request:
            speeds = _seen(speeds, job, event.prefilled_tokens, event, known)
            unread = max(0.0, job.prompt - event.prefilled_tokens)
            job = moved(job, unread, event.produced_tokens)
        jobs.append(job)
    return _with(queue, tuple(jobs), speeds)


def ended(queue: Queue, event: RequestEnded, known: Rate | None) -> Queue:
    """A request has left; a complete answer teaches how long answers are."""
    job = next((one for one in queue.jobs if one.request == event.request), None)
    if job is None:
        return queue
    jobs = tuple([one for one in queue.jobs if one is not job])
    if event.end is RequestEnd.GONE:
        return replace(queue, jobs=jobs)
    speeds = _seen(queue.speeds, job, float(job.prompt), event, known)
    lengths = queue.lengths.with_answer(job.prompt, job.limit, event.produced_tokens)
    in_time = event.at_s <= job.end_base_s + job.per_token_s * event.produced_tokens
    worth = job.weight * known.quality if known is not None else 0.0
    truth = queue.truth.after(worth if in_time and not job.late else 0.0, queue.memory)
    return Queue(
        jobs,
        lengths,
        speeds,
        queue.shadows,
        queue.home,
        queue.left,
        queue.left_ago,
        truth,
        queue.owed_s,
        queue.considered_s,
        queue.slice_until_s,
        queue.bursts,
    )


def _with(queue: Queue, jobs: tuple[Job, ...], speeds: Speeds) -> Queue:
    return Queue(
        jobs,
        queue.lengths,
        speeds,
        queue.shadows,
        queue.home,
        queue.left,
        queue.left_ago,
        queue.truth,
        queue.owed_s,
        queue.considered_s,
        queue.slice_until_s,
        queue.bursts,
    )


def _seen(
    speeds: Speeds,
    job: Job,
    prefilled: float,
    event: RequestProgress | RequestEnded,
    known: Rate | None,
) -> Speeds:
    if known is None:
        return speeds
    read_s = (prefilled - (job.prompt - job.prefill_left)) * known.prefill_s
    written_s = (event.produced_tokens - job.produced) * known.decode_s
    if event.together < SHARED:
        took_s = event.prefill_s + event.decode_s
        return speeds.observed(known.variant, read_s + written_s, took_s)
    speeds = speeds.observed(known.variant, read_s, event.prefill_s)
    return speeds.shared(known.variant, written_s, event.decode_s, event.together)


def with_home(queue: Queue, allowed: Iterable[str], costs: Mapping[str, float]) -> Queue:
    """Choose the home among the variants that may be taken.

    Another one has to have earned more by a margin, which shrinks with the evidence: with few
    requests the difference is mostly chance, and those that come at once count as one. Back to
    where it came from takes a wider margin, which narrows over some hundred of them, so that two
    variants that earn about the same don't take turns. And the change has to pay for itself.

    Args:
        queue: Up to date.
        allowed: Variants that may be taken.
        costs: What changing to a variant costs, as a share of what is earned while it is home.
    """
    may = [(one.earned, name) for name, one in queue.shadows if name in allowed]
    if not may or queue.shadows[0][1].count < FEWEST:
        return queue if queue.home is None else replace(queue, home=None)
    present = next((earned for earned, name in may if name == queue.home), None)
    size = queue.bursts.size
    margin = MARGIN / sqrt(queue.shadows[0][1].count / size + 1)
    if present is None:
        return replace(queue, home=max(may)[1], left=None)
    back = 1 + (BACK - 1) * max(0.0, 1 - queue.left_ago / size / BACK_MOMENTS)
    lead, best = max(
        (
            earned
            - present * (1 + costs.get(name, 0.0))
            - margin * (back if name == queue.left else 1.0),
            name,
        )
        for earned, name in may
    )
    if lead <= 0:
        return queue
    return replace(queue, home=best, left=queue.home, left_ago=0)
