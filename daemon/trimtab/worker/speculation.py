"""When drafting pays, and how far to draft.

A pass of the target over k + 1 tokens costs T(k+1), little more than T(1) while weights have to be
read from memory anyway. If the first drafted token is right with probability f, and each one after
a right one with probability a, a round of k drafts gives 1 + f (1 + a + … + aᵏ⁻¹) tokens. It pays
if that beats (k · T_draft + T(k+1)) / T(1). All of it is measured while the stream runs: a source
that is wrong too often switches itself off.
"""

from __future__ import annotations

from typing import Final

_LENGTHS: Final = (1, 2, 3, 4, 6, 8)
MOST_DRAFTED: Final = _LENGTHS[-1]
_FIRST_SLOPE: Final = 0.2
_FIRST_DRAFT_RATIO: Final = 0.5
_FIRST_AFTER_WRONG: Final = 0.5
_FIRST_AFTER_RIGHT: Final = 0.75
_WEIGHT: Final = 0.1
_ENOUGH: Final = 1.04  # what a round must promise over plain decoding
_FIRST_PAUSE: Final = 48
_LONGEST_PAUSE: Final = 1536


class Costs:
    """What passes of the target and of the draft cost, in this worker."""

    def __init__(self) -> None:
        self._one_s = 0.0
        self._draft_s = 0.0
        self._slope = _FIRST_SLOPE

    def passed(self, rows: int, seconds: float) -> None:
        """A pass of the target over ``rows`` tokens of one stream took so long."""
        if rows == 1:
            self._one_s = _towards(self._one_s, seconds)
        elif self._one_s > 0:
            slope = (seconds / self._one_s - 1) / (rows - 1)
            self._slope = _towards(self._slope, min(1.0, max(0.01, slope)))

    def drafted(self, tokens: int, seconds: float) -> None:
        """The draft variant wrote so many tokens in so long."""
        self._draft_s = _towards(self._draft_s, seconds / tokens)

    def round_ratio(self, length: int, *, free: bool) -> float:
        """A round's time in passes over one token; ``free`` if drafting itself costs nothing."""
        verify = 1 + self._slope * length
        if free:
            return verify
        known = self._one_s > 0 and self._draft_s > 0
        return verify + length * (self._draft_s / self._one_s if known else _FIRST_DRAFT_RATIO)


class Acceptance:
    """How often one source's drafts are right in one stream.

    A token after one that was right is likelier to be right too: text that is being copied goes on
    being copied. So there are two probabilities: for the token after a right one, and after a wrong
    one or none.
    """

    def __init__(self) -> None:
        self._after_right = _FIRST_AFTER_RIGHT
        self._after_wrong = _FIRST_AFTER_WRONG
        self._last_was_right = False
        self._pause = _FIRST_PAUSE
        self._wait = 0

    def judged(self, right: int, wrong: bool) -> None:
        """So many drafted tokens in a row were right, and then one was wrong or not."""
        for _ in range(right):
            self._learn(1.0)
            self._last_was_right = True
        if wrong:
            self._learn(0.0)
            self._last_was_right = False

    def expected_tokens(self, length: int) -> float:
        """Tokens that a round with so many drafts gives: those that are right, and one more."""
        first = self._after_right if self._last_was_right else self._after_wrong
        return 1 + first * sum(self._after_right**n for n in range(length))

    def _learn(self, right: float) -> None:
        if self._last_was_right:
            self._after_right += _WEIGHT * (right - self._after_right)
        else:
            self._after_wrong += _WEIGHT * (right - self._after_wrong)

    def length(self, costs: Costs, most: int, *, free: bool) -> int:
        """How many tokens to draft now; 0 if none."""
        best, best_gain = 0, _ENOUGH
        for length in _LENGTHS:
            if length > most:
                break
            gain = self.expected_tokens(length) / costs.round_ratio(length, free=free)
            if gain > best_gain:
                best, best_gain = length, gain
        return best

    def length_or_probe(self, costs: Costs, most: int) -> int:
        """The same for a source that can only be judged by using it: now and then it is tried."""
        length = self.length(costs, most, free=False)
        if length:
            self._pause = _FIRST_PAUSE
            return length
        self._wait += 1
        if self._wait < self._pause:
            return 0
        self._wait = 0
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
        return min(1, most)


def _towards(old: float, new: float) -> float:
    return new if old == 0 else old + _WEIGHT * (new - old)
