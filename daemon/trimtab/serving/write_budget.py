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
        size_bytes: How much.
        written: Whether anything may have been written to it: what has worn the flash isn't
            given back to the daily budget.
        over: Whether the space has been given back.
    """

    at_s: float
    size_bytes: int
    written: bool = False
    over: bool = False


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
        counted_bytes: All that was ever counted here: changes with each write.
    """

    def __init__(self) -> None:
        self.limit_bytes = 0
        self.spent_bytes = 0
        self.counted_bytes = 0
        self._claims: deque[Claim] = deque()

    def has_room(self, size_bytes: int, at_s: float) -> bool:
        """True if so much more may be written now."""
        self._forget_yesterday(at_s)
        return self.spent_bytes + size_bytes <= self.limit_bytes

    def count(self, claim: Claim) -> None:
        """A write counts before it is made."""
        self._claims.append(claim)
        self.spent_bytes += claim.size_bytes
        self.counted_bytes += claim.size_bytes

    def uncount(self, claim: Claim) -> None:
        """It was never made; harmless if it is no longer counted."""
        if claim in self._claims:
            self._claims.remove(claim)
            self.spent_bytes -= claim.size_bytes
            self.counted_bytes -= claim.size_bytes

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
            both = known.size_bytes + claim.size_bytes
            hours[hour] = Written(min(known.age_s, age_s), both)
        return tuple(sorted(hours.values(), reverse=True))

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
