"""When drafting pays, and how far to draft.

A pass of the target over k + 1 tokens costs T(k+1), little more than T(1) while weights have to be
read from memory anyway. If the n-th drafted token is right with probability aₙ once those before it
were, a round of k drafts gives 1 + a₁ + a₁a₂ + … + a₁…aₖ tokens. It pays if that beats
(k · T_draft + T(k+1)) / T(1). All of it is measured while the stream runs: a source that is wrong
too often switches itself off, and what it costs to find that out is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from trimtab.workers.protocol import Sampling

_LENGTHS: Final = range(1, 9)
MOST_DRAFTED: Final = _LENGTHS[-1]
_FIRST_SLOPE: Final = 0.2
_FIRST_DRAFT_RATIO: Final = 0.5
_LEAST_SLOPE: Final = 0.01
_KEPT: Final = 15  # passes over one token, and drafts, that costs are judged by
_KEPT_SEVERAL: Final = 60  # passes over several: a length that isn't used any more is forgotten
_SINGLE_EVERY: Final = 48
_WEIGHT: Final = 0.08
_WEIGHT_OF_ALL: Final = 0.01
_ENOUGH: Final = 1.04  # what a round must promise over plain decoding
_FIRST_PAUSE: Final = 48
_LONGEST_PAUSE: Final = 1536


class Costs:
    """What passes of the target and of the draft cost, in this worker.

    Seconds are those of the processor, so that what other programs take counts for nothing. They
    are kept as medians of the last passes: one that was disturbed all the same changes nothing.
    The passes over each number of tokens are kept apart, since the engine's kernels go in steps: on
    int4 the second token of a pass may cost 0.2 of one, the third 0.4.
    """

    def __init__(self) -> None:
        self._single_s: deque[float] = deque(maxlen=_KEPT)
        self._single_now_s = 0.0
        self._several: deque[tuple[int, float]] = deque(maxlen=_KEPT_SEVERAL)
        self._verify_ratios = _verify_ratios({})
        self._draft_s: deque[float] = deque(maxlen=_KEPT)
        self._draft_ratio = _FIRST_DRAFT_RATIO
        self._since_single = 0

    @property
    def outdated(self) -> bool:
        """True if a pass over one token should be made only to see what it costs now."""
        return self._since_single >= _SINGLE_EVERY

    def passed(self, rows: int, seconds: float) -> None:
        """A pass of the target over ``rows`` tokens of one stream took so long."""
        if rows == 1:
            self._since_single = 0
            self._single_s.append(seconds)
            self._single_now_s = median(self._single_s)
            return
        self._since_single += 1
        if self._single_now_s:
            self._several.append((rows, seconds / self._single_now_s))
            seen: dict[int, list[float]] = {}
            for some_rows, ratio in self._several:
                seen.setdefault(some_rows, []).append(ratio)
            self._verify_ratios = _verify_ratios(seen)

    def drafted(self, tokens: int, seconds: float) -> None:
        """The draft variant wrote so many tokens in so long."""
        self._draft_s.append(seconds / tokens)
        if self._single_now_s:
            self._draft_ratio = median(self._draft_s) / self._single_now_s

    def forget_drafts(self) -> None:
        """What drafts cost, that is: the draft variant is another one now."""
        self._draft_s.clear()
        self._draft_ratio = _FIRST_DRAFT_RATIO

    def round_ratio(self, length: int, *, free: bool) -> float:
        """A round's time in passes over one token; ``free`` if drafting itself costs nothing."""
        verify = self._verify_ratios[length]
        return verify if free else verify + length * self._draft_ratio


def _verify_ratios(seen: dict[int, list[float]]) -> list[float]:
    """What it costs to verify drafts of 0, 1, … tokens, in passes over one token.

    What nobody has measured lies on a line between its neighbours, or on the line through the last.
    One that was measured little is kept near the usual by a pass that costs what is usual.

    Args:
        seen: What passes over so many rows cost, in passes over one.
    """
    known = {1: 1.0}
    for rows, measured in sorted(seen.items()):
        least, most = max(known.values()) + _LEAST_SLOPE, float(rows)
        known[rows] = min(most, max(least, median([1 + _FIRST_SLOPE * (rows - 1), *measured])))
    last = max(known)
    slope = (known[last] - 1) / (last - 1) if last > 1 else _FIRST_SLOPE
    known.setdefault(MOST_DRAFTED + 1, 1 + slope * MOST_DRAFTED)
    ratios = [1.0]
    for lower, upper in pairwise(sorted(known)):
        step = (known[upper] - known[lower]) / (upper - lower)
        ratios += [known[lower] + step * more for more in range(1, upper - lower + 1)]
    return ratios


@dataclass(frozen=True, slots=True)
class Round:
    """What a round of drafts promises.

    Attributes:
        length: Tokens to draft; 0 if none.
        gain: Speed over plain decoding; 1 without a draft.
    """

    length: int
    gain: float


NO_ROUND: Final = Round(0, 1.0)


class Acceptance:
    """How often one source's drafts are right in one stream.

    A token is likelier to be right the more tokens before it agreed with the source: text that is
    being copied goes on being copied. So there is a probability for each number of tokens that
    agree, in a few classes.

    Args:
        belief: What is expected before this stream tells anything; it learns from the stream.

    Attributes:
        agreed: Tokens up to here that agree with the source.
    """

    def __init__(self, belief: Belief) -> None:
        self.agreed = 0
        self._belief = belief
        self._bounds = belief.bounds
        self._rates = [_Rate(rate.value, belief.counts_for, _WEIGHT) for rate in belief.rates]
        self._pause = _FIRST_PAUSE
        self._wait = 0

    def judged(self, right: int, wrong: bool) -> None:
        """So many drafted tokens in a row were right, and then one was wrong or not."""
        for _ in range(right):
            self._learn(1.0)
            self.agreed += 1
        if wrong:
            self._learn(0.0)
            self.agreed = 0

    def expected_tokens(self, length: int) -> float:
        """Tokens that a round with so many drafts gives: those that are right, and one more."""
        tokens = all_right = 1.0
        for ahead in range(length):
            all_right *= self._rate(self.agreed + ahead).value
            tokens += all_right
        return tokens

    def missed(self) -> None:
        """It had no draft here: what comes next follows no right token of its own."""
        self.agreed = 0

    def best_round(self, costs: Costs, most: int, *, free: bool) -> Round:
        """The round that promises most, if any promises enough."""
        best = Round(0, _ENOUGH)
        for length in _LENGTHS:
            if length > most:
                break
            gain = self.expected_tokens(length) / costs.round_ratio(length, free=free)
            if gain > best.gain:
                best = Round(length, gain)
        return best if best.length else NO_ROUND

    def probe(self, most: int) -> int:
        """Tokens to draft although it doesn't seem to pay, to learn whether that is still so.

        It is due after growing pauses, so that a source that loses costs less and less.
        """
        self._wait += 1
        if self._wait < self._pause:
            return 0
        self._wait = 0
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
        return min(1, most)

    def paid(self) -> None:
        """It is in use again: the next pause is a short one."""
        self._wait, self._pause = 0, _FIRST_PAUSE

    def _rate(self, agreed: int) -> _Rate:
        return self._rates[bisect_right(self._bounds, agreed)]

    def _learn(self, right: float) -> None:
        self._rate(self.agreed).learn(right)
        self._belief.rates[bisect_right(self._bounds, self.agreed)].learn(right)


class _Rate:
    """A probability, learned fast at first and steadily later.

    Args:
        first: Where it begins.
        counts_for: Tokens that this counts for.
        weight: The least that one more token counts.
    """

    def __init__(self, first: float, counts_for: int, weight: float) -> None:
        self.value = first
        self._seen = counts_for
        self._weight = weight

    def learn(self, right: float) -> None:
        self._seen += 1
        self.value += max(self._weight, 1 / self._seen) * (right - self.value)


class Belief:
    """What a stream begins with: how often a source was right in the streams before it.

    Args:
        first: Before there was any, by class; see `Acceptance`.
        bounds: The numbers of agreeing tokens at which the classes after the first begin.
        counts_for: Tokens that the belief counts for in a new stream, and the first one for itself.

    Attributes:
        rates: By class.
        bounds: See above.
        counts_for: See above.
    """

    def __init__(self, first: Sequence[float], bounds: Sequence[int], counts_for: int) -> None:
        self.bounds = tuple(bounds)
        self.counts_for = counts_for
        self.rates = [_Rate(value, counts_for, _WEIGHT_OF_ALL) for value in first]


class Experience:
    """What a worker's streams of one kind have taught of drafts: each begins with it.

    Measured on recorded answers of SmolLM2 (free text, quotes and code in turn, three variants): a
    stream that begins so reaches 0.996 of the better of always and never on average; 0.987 if each
    begins anew.

    Attributes:
        ngrams: Three tokens that agree do so in any text now and then; where many do, something is
            being copied.
        variant: Another variant of the model, which agrees on two tokens of three.
    """

    def __init__(self) -> None:
        self.ngrams = Belief((0.5, 0.6, 0.75, 0.85), (4, 6, 9), counts_for=12)
        self.forget_variant()

    def forget_variant(self) -> None:
        """It will be another one: what is believed of it begins anew."""
        self.variant = Belief((0.7, 0.75), (1,), counts_for=6)


class Experiences:
    """One experience for each kind of answer.

    Drafts are right more often where the best token is always taken than where it is drawn, and a
    draft variant less often where what is drawn must be the same as without it.
    """

    def __init__(self) -> None:
        self._by_kind: dict[str, Experience] = {}

    def of(self, sampling: Sampling) -> Experience:
        """That of the answers that are drawn like this one."""
        kind = "greedy" if sampling.greedy else "seeded" if sampling.seeded else "drawn"
        return self._by_kind.setdefault(kind, Experience())

    def forget_variant(self) -> None:
        """The draft variant is another one now."""
        for experience in self._by_kind.values():
            experience.forget_variant()
