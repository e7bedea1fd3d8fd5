"""The daily budget of writes to disk: what has worn the flash counts for a day."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0


@dataclass(slots=True, eq=False)
class Claim:
    """Space on the disk, counted before it is taken.

    Attributes:
        at_s: When it was claimed.
        size_bytes: How much counts.
        written: Whether all of it may have been written: what has worn the flash isn't given back
            to the daily budget.
        over: Whether the space has been given back.
        fills: Whether it is written bit by bit, as a running conversation goes on.
        filled_bytes: How much of it may have been written so far, if it is.
    """

    at_s: float
    size_bytes: int
    written: bool = False
    over: bool = False
    fills: bool = False
    filled_bytes: int = 0

    @property
    def written_bytes(self) -> int:
        """How much of it may have been written."""
        return self.size_bytes if self.written else self.filled_bytes

    @property
    def kept_bytes(self) -> int:
        """What counts if the controller ends now."""
        return self.filled_bytes if self.fills else self.size_bytes


class Written(NamedTuple):
    """What was written within an hour or so.

    Attributes:
        age_s: How long ago the last of it was.
        size_bytes: How much.
    """

    age_s: float
    size_bytes: int


class WriteBudget:
    """What may be written within any 24 hours.

    Attributes:
        limit_bytes: The most.
        spent_bytes: What counts now, claims that are still to be written included; what is older
            than a day leaves it with the next question.
    """

    def __init__(self) -> None:
        self.limit_bytes = 0
        self.spent_bytes = 0
        self._counted_bytes = 0  # without what is being filled
        self._claims: deque[Claim] = deque()
        self._filling: list[Claim] = []

    @property
    def counted_bytes(self) -> int:
        """All that was ever written, or is about to be at once: changes with each write."""
        return self._counted_bytes + sum(claim.filled_bytes for claim in self._filling)

    def has_room(self, size_bytes: int, at_s: float) -> bool:
        """True if so much more may be written now."""
        self._forget_yesterday(at_s)
        return self.spent_bytes + size_bytes <= self.limit_bytes

    def count(self, claim: Claim) -> None:
        """A write counts before it is made."""
        self._claims.append(claim)
        self.spent_bytes += claim.size_bytes
        if claim.fills:
            self._filling.append(claim)
        else:
            self._counted_bytes += claim.size_bytes

    def settle(self, claim: Claim) -> None:
        """Nothing more will be written of it: no more than that counts from now on.

        Harmless if it is no longer counted, or is settled already.
        """
        written_bytes = claim.written_bytes
        self._counted_bytes += written_bytes
        if claim in self._filling:
            self._filling.remove(claim)
        else:
            self._counted_bytes -= claim.size_bytes
        if claim in self._claims:
            self.spent_bytes -= claim.size_bytes - written_bytes
            if not written_bytes:
                self._claims.remove(claim)
        claim.size_bytes, claim.written, claim.fills = written_bytes, True, False

    def by_hour(self, at_s: float) -> tuple[Written, ...]:
        """What counts now, oldest first: each hour's writes as if made at the last of them.

        Hours are the clock's, not of age: kept and restored again and again, they stay the same.
        """
        self._forget_yesterday(at_s)
        hours: dict[int, Written] = {}
        for claim in self._claims:
            age_s = max(0.0, at_s - claim.at_s)
            hour = int(claim.at_s // HOUR_S)
            known = hours.get(hour, Written(age_s, 0))
            both = known.size_bytes + claim.kept_bytes
            hours[hour] = Written(min(known.age_s, age_s), both)
        return tuple(sorted((one for one in hours.values() if one.size_bytes), reverse=True))

    def restore(self, writes: Iterable[Written], at_s: float) -> None:
        """Writes of an earlier controller count too.

        Args:
            writes: Their ages are as of now.
            at_s: Now.
        """
        earlier = [Claim(at_s - one.age_s, one.size_bytes, True, True) for one in writes]
        self._claims = deque(sorted([*earlier, *self._claims], key=_claimed_s))
        self.spent_bytes += sum(claim.size_bytes for claim in earlier)

    def _forget_yesterday(self, at_s: float) -> None:
        while self._claims and at_s - self._claims[0].at_s > DAY_S:
            self.spent_bytes -= self._claims.popleft().size_bytes


def _claimed_s(claim: Claim) -> float:
    return claim.at_s
