"""A plan over everything that waits or runs: whom to serve, in which order, and whom to leave out.

For one variant, all pieces of work (a prompt to read, an answer to write) are taken in the order of
their deadlines: on one engine that can pause, no other order keeps more of them. Where a piece
would be late, the request that takes the most time for its worth is left out, as in Moore's and
Hodgson's algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.planner.jobs import Job, left

SURE: Final = 0.5
"""How likely an answer must be in time to be kept in the plan."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a variant does now.

    Attributes:
        variant: Its name.
        prefill_s: Seconds for a token of a prompt.
        decode_s: Seconds for a token of an answer.
        quality: 0 to 1.
    """

    variant: str
    prefill_s: float
    decode_s: float
    quality: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan on one variant.

    Attributes:
        kept: Positions of the requests that are planned to meet their objective, in the order of
            their next piece.
        kept_requests: The same, by the requests' numbers.
        busy_s: How long it takes.
    """

    kept: tuple[int, ...]
    kept_requests: tuple[int, ...]
    busy_s: float


Piece = tuple[float, bool, int]
"""(deadline, whether it writes, position of the job)."""


def pieces(jobs: Sequence[Job]) -> list[Piece]:
    """All pieces of work, earliest deadline first."""
    out: list[Piece] = []
    for position, job in enumerate(jobs):
        if job.prefill_left > 0:
            out.append((job.first_by_s, False, position))
        out.append((job.end_by_s, True, position))
    out.sort()
    return out


def plan(
    jobs: Sequence[Job], order: Sequence[Piece], rate: Rate, start_s: float, stretch: float
) -> Plan:
    """The plan for one variant.

    Args:
        jobs: All requests that can still meet their objective.
        order: `pieces` of them.
        rate: The variant's speed.
        start_s: When the engine is free for it.
        stretch: How much longer everything takes for what will come in between.
    """
    spent = [0.0] * len(jobs)
    out = [False] * len(jobs)
    decode_s, prefill_s = rate.decode_s * stretch, rate.prefill_s * stretch
    at_s = start_s
    for due_s, writes, position in order:
        if out[position]:
            continue
        job = jobs[position]
        if writes:
            took_s = job.mean_left * decode_s
            slack_s = job.end_base_s + job.per_token_s * job.produced - at_s
            gain_s = job.per_token_s - decode_s
            fine = (slack_s >= 0 and gain_s >= 0) or met(
                left(job.lengths, job.produced, job.limit), slack_s, gain_s
            ) >= SURE
        else:
            took_s = job.prefill_left * prefill_s
            fine = at_s + took_s <= due_s
        at_s += took_s
        spent[position] += took_s
        if not fine:
            worst = _dearest(jobs, spent, out, position)
            out[worst] = True
            at_s -= spent[worst]
            spent[worst] = 0.0
    kept = tuple(dict.fromkeys([position for _, _, position in order if not out[position]]))
    return Plan(kept, tuple([jobs[position].request for position in kept]), at_s - start_s)


def _dearest(jobs: Sequence[Job], spent: list[float], out: list[bool], late: int) -> int:
    """Whom to leave out: the longest for its worth of those not yet begun, or the late one."""
    worst, most = late, spent[late] / jobs[late].weight
    for position, job in enumerate(jobs):
        if spent[position] > 0 and job.prefill_left > 0 and not out[position]:
            cost = spent[position] / job.weight
            if cost > most:
                worst, most = position, cost
    return worst


def met(rests: tuple[float, ...], slack_s: float, gain_s: float) -> float:
    """How likely an answer ends in time if it is written from now on without a pause.

    Each token uses up slack, or adds to it, by ``gain_s``: what the objective allows for a token
    less what it takes. The end is in time if slack + gain × tokens left isn't negative.
    """
    if gain_s >= 0 and slack_s >= 0:
        return 1.0
    good = 0
    for rest in rests:
        if slack_s + gain_s * rest >= 0:
            good += 1
    return good / len(rests)
