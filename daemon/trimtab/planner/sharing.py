"""How many requests may share the engine where it decodes for several in one step.

The plan serves one at a time, the earliest deadline first. An engine that decodes for several at
once gets more done, but each of them more slowly, and a prompt is read in pieces between their
steps. So the first of the order share it, as many as leave those in time that can be in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.planner.jobs import Job, left
from trimtab.planner.queue_plan import SURE, Rate, met
from trimtab.planner.speeds import Speeds

PIECE_S: Final = 0.05
"""Longest that a piece of a prompt keeps others waiting, in the worker."""

PIECE_TOKENS: Final = 64


def shared_rate(rate: Rate, speeds: Speeds, together: int) -> Rate:
    """A variant's speed for all together, while so many share its steps."""
    if together <= 1 or speeds.further >= 1:
        return rate
    decode_s = rate.decode_s * speeds.step(together) / together
    return Rate(rate.variant, rate.prefill_s, decode_s, rate.quality)


def together(jobs: Sequence[Job], rate: Rate, speeds: Speeds, at_s: float) -> int:
    """How many of the first may share the engine without making each other late.

    Args:
        jobs: Those planned to be in time, in the order in which the engine's time goes to them.
        rate: The loaded variant's speed for one alone.
        speeds: How much sharing costs.
        at_s: Now.
    """
    for count in range(len(jobs), 1, -1):
        if _in_time(jobs[:count], rate, speeds, at_s):
            return count
    return 1


def _in_time(jobs: Sequence[Job], rate: Rate, speeds: Speeds, at_s: float) -> bool:
    writing = sum(1 for job in jobs if job.prefill_left <= 0)
    step_s = rate.decode_s * speeds.step(max(1, writing))
    piece_s = min(PIECE_S, PIECE_TOKENS * rate.prefill_s)
    slowed = 1 + step_s / piece_s if writing else 1.0
    read_s = 0.0
    for job in jobs:
        if job.prefill_left > 0:
            read_s += job.prefill_left * rate.prefill_s * slowed
            if at_s + read_s > job.first_by_s:
                return False
            continue
        slack_s = job.end_base_s + job.per_token_s * job.produced - at_s
        rests = left(job.lengths, job.produced, job.limit)
        if met(rests, slack_s, job.per_token_s - step_s) < SURE:
            return False
    return True
