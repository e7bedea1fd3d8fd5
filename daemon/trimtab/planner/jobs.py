"""Requests as the schedule sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One request that hasn't ended.

    Attributes:
        request: Names it.
        arrived_s: When it came.
        weight: What its priority makes of its value.
        limit: Its ``max_tokens``; None without one.
        prompt: Tokens of its prompt.
        prefill_left: Tokens of its prompt still to be read.
        produced: Tokens of its answer.
        first_by_s: When its first token is due.
        end_base_s: When its last token would be due if the answer were empty.
        per_token_s: How much later for each token of the answer.
        lengths: Equally likely lengths of its answer, rising.
        mean_left: Mean of what is left of those that it hasn't passed.
        late: It can't meet its objective any more; it is served in spare time.
    """

    request: int
    arrived_s: float
    weight: float
    limit: int | None
    prompt: int
    prefill_left: float
    produced: int
    first_by_s: float
    end_base_s: float
    per_token_s: float
    lengths: tuple[float, ...]
    mean_left: float
    late: bool = False

    @property
    def end_by_s(self) -> float:
        """When its last token is due, if its answer gets as long as expected."""
        return self.end_base_s + self.per_token_s * (self.produced + self.mean_left)


def left(lengths: tuple[float, ...], produced: int, limit: int | None) -> tuple[float, ...]:
    """What may be left of an answer after ``produced`` tokens, equally likely.

    Past the longest likely length, half as much again is expected, up to the limit.
    """
    rest = tuple([length - produced for length in lengths if length > produced])
    if rest:
        return rest
    more = max(1.0, 0.5 * produced)
    return (min(more, max(1.0, limit - produced)) if limit is not None else more,)


def moved(job: Job, prefill_left: float, produced: int) -> Job:
    """The job further on. Written out, since it happens at every mark."""
    rests = left(job.lengths, produced, job.limit)
    return Job(
        job.request,
        job.arrived_s,
        job.weight,
        job.limit,
        job.prompt,
        prefill_left,
        produced,
        job.first_by_s,
        job.end_base_s,
        job.per_token_s,
        job.lengths,
        sum(rests) / len(rests),
        job.late,
    )
