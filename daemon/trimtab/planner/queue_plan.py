"""A plan over everything that waits or runs: whom to serve on which variant, in which order.

For one variant, all pieces of work (a prompt to read, an answer to write) are taken in the order of
their deadlines: on one engine that can pause, no other order keeps more of them. Where a piece would
be late, the request that takes the most time for its worth is left out, as in Moore's and Hodgson's
algorithm. What the plan is worth is the value of what it keeps, less the price of the time it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.planner.jobs import Job, left

SURE: Final = 0.5
MOST_JOBS: Final = 24


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
        kept: Requests that are planned to meet their objective, in the order of their next piece.
        value: What it is worth, less the price of its time.
        busy_s: How long it takes.
    """

    kept: tuple[int, ...]
    value: float
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
    jobs: Sequence[Job],
    order: Sequence[Piece],
    rests: Sequence[tuple[float, ...]],
    rate: Rate,
    start_s: float,
    price: float,
    stretch: float,
) -> Plan:
    """The plan for one variant.

    Args:
        jobs: All requests that can still meet their objective.
        order: `pieces` of them.
        rests: What may be left of each answer, equally likely.
        rate: The variant's speed and quality.
        start_s: When the engine is free for it.
        price: Of a second of engine time.
        stretch: How much longer everything takes for what will come in between.
    """
    count = len(jobs)
    spent = [0.0] * count
    chance = [0.0] * count
    out = [False] * count
    decode_s, prefill_s = rate.decode_s * stretch, rate.prefill_s * stretch
    at_s = start_s
    for due_s, writes, position in order:
        if out[position]:
            continue
        job = jobs[position]
        if writes:
            begin_s = at_s
            at_s += job.mean_left * decode_s
            spent[position] += job.mean_left * decode_s
            slack_s = job.end_base_s + job.per_token_s * job.produced - begin_s
            chance[position] = likely = met(rests[position], slack_s, job.per_token_s - decode_s)
            fine = likely >= SURE
        else:
            took_s = job.prefill_left * prefill_s
            at_s += took_s
            spent[position] += took_s
            fine = at_s <= due_s
        if not fine:
            worst = position
            # The one that takes the most time for its worth goes; what runs stays if it can.
            most = -1.0
            for other in range(count):
                if spent[other] > 0 and not out[other] and (
                    jobs[other].prefill_left > 0 or other == position
                ):
                    cost = spent[other] / jobs[other].weight
                    if cost > most:
                        worst, most = other, cost
            out[worst] = True
            at_s -= spent[worst]
            spent[worst] = 0.0
    value = -price * (at_s - start_s)
    kept: list[int] = []
    seen = [False] * count
    for _, _, position in order:
        if not out[position] and not seen[position]:
            seen[position] = True
            kept.append(position)
            job = jobs[position]
            total = job.produced + job.mean_left
            quality = (job.earned + rate.quality * job.mean_left) / total
            value += job.weight * quality * chance[position]
    return Plan(tuple(kept), value, at_s - start_s)


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
