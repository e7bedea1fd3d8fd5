"""How many requests a user may send: a bucket for each of them, so that one can't take it all.

The generic cell rate algorithm: one number for each user says when their bucket will be full again
(ITU-T I.371, annex A). No clock of its own: time is an argument.
"""

from __future__ import annotations

from typing import Final

MAX_USERS: Final = 1024
"""Whoever has been quiet is forgotten beyond this; a full bucket holds no memory of anybody."""


class RateLimit:
    """The buckets of one socket.

    Args:
        per_second: Requests that a user may send in the long run; 0 lifts the limit.
        burst: Requests that may come at once after a pause.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._gap_s = 1 / per_second if per_second > 0 else 0.0
        self._ahead_s = (burst - 1) * self._gap_s
        self._full_at_s: dict[int | None, float] = {}

    def __len__(self) -> int:
        """Users that aren't forgotten yet."""
        return len(self._full_at_s)

    def wait_s(self, user: int | None, at_s: float) -> float:
        """Take a request in.

        Args:
            user: The peer's user id; None for whoever holds the token of the TCP door.
            at_s: Now, on a clock that never goes back.

        Returns:
            0 if the request may go on, else the seconds until one may; that one isn't counted.
        """
        full_at_s = max(self._full_at_s.get(user, at_s), at_s)
        wait_s = full_at_s - self._ahead_s - at_s
        if wait_s > 0:
            return wait_s
        if len(self._full_at_s) >= MAX_USERS:
            self._forget_quiet(at_s)
        self._full_at_s[user] = full_at_s + self._gap_s
        return 0.0

    def _forget_quiet(self, at_s: float) -> None:
        self._full_at_s = {
            user: full_at_s for user, full_at_s in self._full_at_s.items() if full_at_s > at_s
        }
