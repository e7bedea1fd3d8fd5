"""What each variant would have earned lately: the same arrivals through a small queue of its own.

A shadow serves every arrival in imagination, on one variant at the speed that it would have now:
pieces of work (a prompt to read, an answer to write) earliest deadline first; where one would be
late, the request not yet begun that takes longest is dropped, as in `queue_plan`. An answer's
length is drawn from its likely lengths in turn, so that long and short ones have their share. All
shadows see the same requests, so that the difference between two of them is far less noisy than
either.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import Final

MEMORY: Final = 96.0
"""Moments at which requests came that are remembered."""

Piece = tuple[float, int, float, bool, float]
"""(due, request, seconds of work left, whether it reads the prompt, worth)."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """One variant's imagined queue.

    Attributes:
        at_s: Time of its last arrival.
        pieces: Work of admitted requests, earliest due first.
        earned: Mean value of a request, over about the last ones that `Arrival.memory` says.
        count: Requests seen, up to as many.
    """

    at_s: float = 0.0
    pieces: tuple[Piece, ...] = ()
    earned: float = 0.0
    count: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as shadows see it.

    Attributes:
        at_s: When it came.
        request: Names it.
        prompt: Tokens of its prompt.
        output: Tokens that its answer is taken to have.
        first_by_s: When its first token is due.
        end_by_s: When its last one is.
        weight: Its priority's.
        memory: Requests that are remembered now.
    """

    at_s: float
    request: int
    prompt: float
    output: float
    first_by_s: float
    end_by_s: float
    weight: float
    memory: float


def served(
    shadow: Shadow, new: Arrival, prefill_s: float, decode_s: float, quality: float
) -> Shadow:
    """The shadow after one more arrival, at these seconds per token."""
    pieces, gains = _passed(shadow, new.at_s - shadow.at_s)
    worth = new.weight * quality
    read_s, write_s = new.prompt * prefill_s, new.output * decode_s
    insort(pieces, (new.first_by_s, new.request, read_s, True, worth))
    insort(pieces, (new.end_by_s, new.request, write_s, False, worth))
    dropped = _drop_late(pieces, new.at_s)
    earned, count = shadow.earned, shadow.count
    for gain in (*gains, *([0.0] * dropped)):
        count = min(new.memory, count + 1)
        earned += (gain - earned) / count
    return Shadow(new.at_s, tuple(pieces), earned, count)


def _passed(shadow: Shadow, elapsed_s: float) -> tuple[list[Piece], list[float]]:
    """What is left of the work after some time, and what was earned meanwhile."""
    gains: list[float] = []
    for position, (due_s, request, left_s, reads, worth) in enumerate(shadow.pieces):
        if left_s > elapsed_s:
            rest = (due_s, request, left_s - elapsed_s, reads, worth)
            return [rest, *shadow.pieces[position + 1 :]], gains
        elapsed_s -= left_s
        if not reads:
            gains.append(worth)
    return [], gains


def _drop_late(pieces: list[Piece], at_s: float) -> int:
    """Drop requests, in place, until no piece is late; how many went."""
    dropped = 0
    while (late := _first_late(pieces, at_s)) is not None:
        spent: dict[int, float] = {}
        unread = {pieces[late][1]}
        for _, request, left_s, reads, worth in pieces[: late + 1]:
            spent[request] = spent.get(request, 0.0) + left_s / worth
            if reads:
                unread.add(request)
        worst = max(unread, key=lambda request: (spent[request], request))
        pieces[:] = [piece for piece in pieces if piece[1] != worst]
        dropped += 1
    return dropped


def _first_late(pieces: list[Piece], at_s: float) -> int | None:
    for position, piece in enumerate(pieces):
        at_s += piece[2]
        if at_s > piece[0]:
            return position
    return None
