"""Whom the engine serves next and who is turned away, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must reach to count: its first token in time, and its last.

    The last token is due `end_base_s` after arrival plus `end_per_token_s` for each token of the
    answer, so that a longer answer may take longer.

    Attributes:
        first_within_s: Time to the first token.
        end_base_s: Time for everything but the answer's tokens.
        end_per_token_s: Time allowed for each token of the answer.
    """

    first_within_s: float
    end_base_s: float
    end_per_token_s: float


@dataclass(frozen=True, slots=True)
class Shed:
    """A waiting request that nothing can be gained by keeping.

    Attributes:
        request: Which.
        retry_after_s: When a new try is likely to be served.
        reason: In words, for its client.
    """

    request: int
    retry_after_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to do with the requests from now on, until the next schedule.

    Attributes:
        order: Requests in the order in which the engine's time goes to them. An engine that serves
            one at a time serves the first and pauses the others; they keep their KV.
        shed: Waiting requests to be refused.
        look_tokens: Report progress once the first one has produced so many tokens.
        together: How many of the first may share the engine's steps where it can decode for
            several, so that none is late that would be in time alone; None: as many as may run.
    """

    order: tuple[int, ...]
    shed: tuple[Shed, ...] = ()
    look_tokens: int | None = None
    together: int | None = None
