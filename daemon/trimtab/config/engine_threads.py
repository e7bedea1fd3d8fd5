"""How many engine threads there are where nobody says."""

from __future__ import annotations

from typing import Final

THREADS_MAX: Final = 4


def default_threads(cores: int) -> int:
    """Engine threads where nobody says: one core is left to everything else, and four are enough.

    A second process on the last core makes all engine threads wait for the slowest.
    """
    return max(1, min(cores - 1, THREADS_MAX))
