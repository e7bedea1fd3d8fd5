"""When the engine may run, and how much it takes on at once."""

from __future__ import annotations

from typing import Final

WHOLE_PIECE: Final = 64  # the fastest prefill: longer and shorter pieces are both slower
_SHARED_PIECE_S: Final = 0.05
_ALONE_PIECE_S: Final = 0.5
_SMALLEST_PIECE: Final = 4
_FIRST_RATE_TPS: Final = 300.0
_WEIGHT: Final = 0.3
_LOWEST_RATIO: Final = 0.1


def piece_of(tokens: int, most: int) -> int:
    """How many of so many tokens to compute at once, at most ``most``.

    None is left over to be computed alone: kernels round one row otherwise than it among others, so
    that an answer would depend on how its prompt was cut up.
    """
    return most - 1 if tokens - most == 1 and most > 2 else min(tokens, most)


class PieceSize:
    """How many tokens of a prompt to compute at once.

    By the rate seen so far, a piece takes no more than 50 ms of the time of others that decode, and
    never more than half a second: so long others that come may have to wait.
    """

    def __init__(self) -> None:
        self._rate_tps = _FIRST_RATE_TPS

    def tokens(self, *, shared: bool) -> int:
        """The next piece's size; ``shared`` if somebody waits for the engine."""
        bounded = int(self._rate_tps * (_SHARED_PIECE_S if shared else _ALONE_PIECE_S))
        return min(WHOLE_PIECE, max(_SMALLEST_PIECE, bounded))

    def observe(self, tokens: int, seconds: float) -> None:
        """Take note of how long a piece took."""
        if seconds > 0:
            self._rate_tps += _WEIGHT * (tokens / seconds - self._rate_tps)


class Pacer:
    """Keeps the engine's share of the time at a ratio by resting after each run."""

    def __init__(self) -> None:
        self._ratio = 1.0
        self._rest_until_s = 0.0

    @property
    def full(self) -> bool:
        """True if the engine may run all the time."""
        return self._ratio >= 1

    def with_rest(self, seconds: float) -> float:
        """A run's time and the rest that follows it."""
        return seconds / self._ratio

    def set(self, ratio: float) -> None:
        """Change the share; it is kept within 0.1 to 1."""
        self._ratio = min(1.0, max(_LOWEST_RATIO, ratio))
        self._rest_until_s = 0.0

    def ran(self, seconds: float, now_s: float) -> None:
        """The engine ran until now, for so long."""
        if not self.full:
            rest_s = seconds * (1 / self._ratio - 1)
            self._rest_until_s = max(self._rest_until_s, now_s) + rest_s

    def rest_s(self, now_s: float) -> float:
        """How long to rest before the engine may run again."""
        return max(0.0, self._rest_until_s - now_s)
