"""Choosing the next token from the engine's logits.

The engine's own sampler draws from a generator that no other process can continue. Here randomness
is a function of a seed and the token's position, so a stream that crosses to another worker draws
what it would have drawn in the first.

For a vocabulary of 49,000 the obvious code (softmax, sort, cumulative sum) takes 4 ms a token. Only
the best few hundred tokens can matter under top-k and top-p, and the maxima of blocks of the logits
tell where they are: that takes tens of microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import EngineError
from trimtab.workers.protocol import Sampling

Logits: TypeAlias = NDArray[np.float32]

_BLOCK: Final = 256
_FIRST_GUESS: Final = 128  # candidates that are tried first for top-p
_SMALLEST_BLOCK: Final = 8
_MASK: Final = (1 << 64) - 1
_GUESS, _ACCEPT, _REJECTED = 1, 2, 3  # which of the numbers at a position; the token's own is 0


def uniform(seed: int, position: int, draw: int = 0) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (SplitMix64).

    Args:
        seed: The stream's seed.
        position: Of the token in the whole sequence.
        draw: Which of several numbers at this position.
    """
    state = _mix(_mix(_mix(seed & _MASK) ^ position) ^ draw)
    return (state >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Tokens that may come next, with weights that needn't add up to 1.

    Attributes:
        ids: Token ids; None if every token of the vocabulary may come.
        weights: Of the ids, or of the whole vocabulary in order.
    """

    ids: NDArray[np.int64] | None
    weights: NDArray[np.float32] | NDArray[np.float64]

    def draw(self, u: float) -> int:
        """The token at the share ``u`` in [0, 1) of the total weight."""
        if self.ids is not None:
            return int(self.ids[_pick(self.weights, u)])
        starts = np.arange(0, len(self.weights), _BLOCK)
        sums = np.add.reduceat(self.weights, starts, dtype=np.float64)
        block = _pick(sums, u)
        before = float(sums[:block].sum())
        rest = (u * float(sums.sum()) - before) / float(sums[block])
        start = block * _BLOCK
        return start + _pick(self.weights[start : start + _BLOCK], rest)

    def probability(self, token: int) -> float:
        """The probability of one token."""
        return float(self._weights_of(np.array([token]))[0]) / self._total

    def beyond(self, other: Distribution) -> Distribution:
        """What is likelier here than there, by how much: max(p - q, 0)."""
        ids = np.arange(len(self.weights)) if self.ids is None else self.ids
        more = self.weights / self._total - other._weights_of(ids) / other._total
        return Distribution(self.ids, np.maximum(more, 0))

    @property
    def _total(self) -> float:
        return float(self.weights.sum(dtype=np.float64))

    def _weights_of(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weights of these tokens."""
        if self.ids is None:
            return self.weights[ids].astype(np.float64)
        order = np.argsort(self.ids)
        at = order[np.minimum(self.ids.searchsorted(ids, sorter=order), len(order) - 1)]
        return np.where(self.ids[at] == ids, self.weights[at], 0.0)


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that a draft variant drew.

    Attributes:
        token: Its id.
        drawn_from: The draft's own distribution.
    """

    token: int
    drawn_from: Distribution


def _pick(weights: NDArray[np.float32] | NDArray[np.float64], u: float) -> int:
    """The index at the share ``u`` of the total; never one of weight zero."""
    cumulative = weights.cumsum(dtype=np.float64)
    at = int(cumulative.searchsorted(u * cumulative[-1], side="right"))
    if at < len(weights) and weights[at] > 0:
        return at
    return int(np.flatnonzero(weights)[-1])  # rounding led past the end


def best_ids(logits: Logits, count: int) -> NDArray[np.int64]:
    """The ids of the ``count`` highest logits, best first; equal ones by rising id."""
    size = len(logits)
    count = min(count, size)
    block = min(_BLOCK, size // (2 * count))
    if block >= _SMALLEST_BLOCK:
        whole = size - size % block
        maxima = logits[:whole].reshape(-1, block).max(axis=1)
        threshold = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    else:
        threshold = np.partition(logits, size - count)[size - count]
    ids = np.flatnonzero(logits >= threshold)
    order = np.argsort(-logits[ids], kind="stable")[:count]
    return ids[order]


class Sampler:
    """Chooses the tokens of one stream.

    Its state is which tokens were seen, so it follows from the prompt and the tokens that it was
    told of by `observe`.

    Args:
        sampling: How to draw.
        prompt: The prompt's token ids, for the repetition penalty.
        vocabulary: Number of token ids.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocabulary: int) -> None:
        self._sampling = sampling
        self._seen = _Counter(vocabulary) if sampling.repetition_penalty != 1 else None
        counted = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        self._counted = _Counter(vocabulary) if counted else None
        self._recent: deque[int] = deque()  # those of the window
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        if self._seen is not None:
            for token in prompt[-sampling.repetition_window :]:
                self._see(self._seen, token)

    def observe(self, token: int) -> None:
        """Take note of a token that was generated."""
        if self._seen is not None:
            self._see(self._seen, token)
        if self._counted is not None:
            self._counted.add(token)

    def _see(self, seen: _Counter, token: int) -> None:
        """Count a token for the repetition penalty, and forget the one that leaves the window."""
        seen.add(token)
        if window := self._sampling.repetition_window:
            self._recent.append(token)
            if len(self._recent) > window:
                seen.remove(self._recent.popleft())

    def choose(self, logits: Logits, position: int, guess: Guess | None = None) -> int:
        """The token for ``position``.

        A guess is taken with the probability min(1, p / q) of its token, where p is its probability
        here and q that in the draft's own distribution. If it isn't, the token is drawn from what
        is likelier here than there. So whatever the draft is, a token comes with the probability
        that it has here (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
        Decoding", appendix A.1).

        Args:
            logits: One for each token id; changed in place by penalties and biases.
            position: Of the token in prompt and answer.
            guess: What a draft variant drew for this position; see `guess`.

        Raises:
            EngineError: The engine's logits aren't numbers.
        """
        self.adjust(logits)
        if self._sampling.greedy:
            token = int(logits.argmax())
            _check(logits[token])
            return token
        seed, here = self._sampling.seed, self.distribution(logits)
        if guess is None:
            return here.draw(uniform(seed, position))
        ratio = here.probability(guess.token) / guess.drawn_from.probability(guess.token)
        if uniform(seed, position, _ACCEPT) < ratio:
            return guess.token
        rest = here.beyond(guess.drawn_from)
        if not rest.weights.any():  # rounding alone said no
            rest = here
        return rest.draw(uniform(seed, position, _REJECTED))

    def guess(self, logits: Logits, position: int) -> tuple[int, Distribution | None]:
        """What a draft variant's logits say of ``position``.

        A greedy answer, and one that has to be the same without drafts, takes a guess only if it is
        the token that it would have chosen; so it is guessed with that token's own random number.

        Args:
            logits: Of the draft variant; changed in place.
            position: Of the token in prompt and answer.

        Returns:
            The token, and the distribution that it was drawn from if `choose` is to judge it by
            that.

        Raises:
            EngineError: The engine's logits aren't numbers.
        """
        if self._sampling.greedy or self._sampling.seeded:
            return self.choose(logits, position), None
        self.adjust(logits)
        drawn_from = self.distribution(logits)
        return drawn_from.draw(uniform(self._sampling.seed, position, _GUESS)), drawn_from

    def adjust(self, logits: Logits) -> None:
        """Apply penalties and biases in place."""
        sampling = self._sampling
        if self._seen is not None:
            ids = self._seen.ids()
            values = logits[ids]
            penalty = np.float32(sampling.repetition_penalty)
            logits[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._counted is not None:
            ids = self._counted.ids()
            often = self._counted.counts(ids)
            logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * often
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias

    def distribution(self, logits: Logits) -> Distribution:
        """What may come next under temperature, top-k and top-p, in this order.

        Args:
            logits: Already adjusted.

        Raises:
            EngineError: The engine's logits aren't numbers.
        """
        sampling = self._sampling
        peak = logits.max()
        _check(peak)
        if sampling.greedy:
            return Distribution(np.array([logits.argmax()]), np.ones(1))
        if 0 < sampling.top_k < len(logits):
            ids = best_ids(logits, sampling.top_k)
            weights = _weights(logits[ids], peak, sampling.temperature)
            return _nucleus(ids, weights, sampling.top_p * float(weights.sum()))
        weights = _weights(logits, peak, sampling.temperature)
        if sampling.top_p >= 1:
            return Distribution(None, weights)
        return self._nucleus_of_all(logits, weights)

    def _nucleus_of_all(self, logits: Logits, weights: NDArray[np.float32]) -> Distribution:
        wanted = self._sampling.top_p * float(weights.sum(dtype=np.float64))
        ids = best_ids(logits, _FIRST_GUESS)
        best = weights[ids]
        if float(best.sum(dtype=np.float64)) >= wanted:
            return _nucleus(ids, best, wanted)
        falling = np.sort(weights)[::-1]  # a flat distribution: sorting numbers is cheap, ids isn't
        cumulative = falling.cumsum(dtype=np.float64)
        keep = min(int(cumulative.searchsorted(wanted, side="left")), len(falling) - 1)
        ids = np.flatnonzero(weights >= falling[keep])
        return Distribution(ids, weights[ids])


def log_probabilities(
    logits: Logits, token: int, top: int
) -> tuple[float, list[tuple[int, float]]]:
    """Natural logarithms of probabilities in the model's own distribution.

    Args:
        logits: As the engine gave them.
        token: The token that was chosen.
        top: How many of the best to tell.

    Returns:
        That of the token, and id and value of the best ones, best first.
    """
    peak = logits.max()
    total = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    best = best_ids(logits, top) if top > 0 else np.empty(0, np.int64)
    return float(logits[token]) - total, [(int(i), float(logits[i]) - total) for i in best]


def _check(best: np.float32) -> None:
    if not np.isfinite(best):
        raise EngineError(
            "the engine's logits are not finite numbers",
            hint="the variant is broken on this machine: `trimtab models verify`",
            code="logits_not_finite",
        )


def _weights(logits: Logits, peak: np.float32, temperature: float) -> NDArray[np.float32]:
    scaled = logits - peak
    scaled /= np.float32(max(temperature, 1e-4))
    np.exp(scaled, out=scaled)
    return scaled


def _nucleus(ids: NDArray[np.int64], weights: NDArray[np.float32], wanted: float) -> Distribution:
    """The first of ``ids`` (best first) whose weights reach ``wanted``; at least one."""
    cumulative = weights.cumsum(dtype=np.float64)
    keep = int(cumulative.searchsorted(wanted, side="left")) + 1
    return Distribution(ids[:keep], weights[:keep])


class _Counter:
    """How often each token was seen; the distinct ones are kept in a buffer as they come."""

    def __init__(self, vocabulary: int) -> None:
        self._often = np.zeros(vocabulary, np.int32)
        self._ids = np.empty(256, np.int64)
        self._size = 0

    def add(self, token: int) -> None:
        if not self._often[token]:
            if self._size == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._ids[self._size] = token
            self._size += 1
        self._often[token] += 1

    def remove(self, token: int) -> None:
        self._often[token] -= 1
        if not self._often[token]:
            self._size -= 1
            at = np.flatnonzero(self._ids[: self._size + 1] == token)
            self._ids[at] = self._ids[self._size]

    def ids(self) -> NDArray[np.int64]:
        return self._ids[: self._size]

    def counts(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        return self._often[ids]
