"""A model of the device, fitted to what `trimtab profile` measured: all points from few.

Per variant and thread count, over n tokens in the cache or in the prompt:

- a token takes ``base + slope · n`` seconds: reading the weights once, and the cache once;
- a first token takes ``n · (base + slope · n)`` seconds: the weights' work for each token of the
  prompt, and attention to all tokens before it;
- a worker holds what it held after loading, working memory of ``base + slope · n``, and the KV
  cache.

What wasn't measured follows from what was. Another thread count: from the ratio that the variants
show which were measured with both, else from the ratio of memory bandwidths. A variant that was
never measured: from its bytes, at the rate at which the others read theirs. Each estimate says how
it was found, with a standard error that grows with the distance from a measurement.

`device_fit` makes it from a profile, or from what was seen when the variants were built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from trimtab.domain.decisions import Source
from trimtab.domain.models import VariantSpec

UNSEEN_WORKER_BYTES: Final = 20 * 1024 * 1024
"""Anonymous memory of a worker beside its weights, as likely as not. Where a step has to fit, the
planner takes more until it has measured one (`predict.WORKER_BYTES`)."""

TYPICAL_CACHED_TOKENS: Final = 384
"""Where speeds are taken from that stand for a whole conversation."""


LEAST_SIGMA: Final[dict[Source, float]] = {
    Source.MEASURED: 0.02,
    Source.FITTED: 0.05,
    Source.SCALED: 0.20,
    Source.BYTES: 0.30,
    Source.BUILD: 0.35,
    Source.ASSUMED: 0.50,
}
"""What an estimate may be off at best. `trimtab bench prediction` holds the first four against what
is measured; the last two are taken to be wide."""

THREADS_POWER: Final = 0.7
"""n threads are about n to this power as fast as one, where nothing else is known: two were 1.55 to
1.74 times as fast on the machine that this was developed on."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted quantity.

    Attributes:
        value: In base units.
        sigma_ratio: Its standard error, relative to it.
        source: How it was found.
    """

    value: float
    sigma_ratio: float
    source: Source

    def scaled(self, factor: float, source: Source) -> Estimate:
        """The same times a factor that is known less well."""
        sigma = max(self.sigma_ratio, LEAST_SIGMA[source])
        return Estimate(self.value * factor, sigma, self.source.or_worse(source))


@dataclass(frozen=True, slots=True)
class Curve:
    """``nᵏ · (base + slope · n)``: k = 0 for a token over n cached, 1 for a prompt of n.

    Attributes:
        power: The k.
        base: Of the weights.
        slope: Of the attention to what is cached.
        points: The measured n and values.
        spread_ratio: How far the samples at one point lay apart.
        source: Where it is from, if not from this device.
    """

    power: int
    base: float
    slope: float
    points: tuple[tuple[int, float], ...]
    spread_ratio: float = 0.0
    source: Source = Source.FITTED

    def at(self, tokens: int) -> float:
        """The curve's value; never negative."""
        return float(tokens**self.power) * max(0.0, self.base + self.slope * tokens)

    def estimate(self, tokens: int) -> Estimate:
        """A measured point itself, else the curve."""
        for measured, value in self.points:
            if measured == tokens:
                return _estimate(value, self.spread_ratio, Source.MEASURED)
        return _estimate(self.at(tokens), self.spread_ratio, self.source)


Curves = Mapping[tuple[str, int], Curve]


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What this device does with a model's variants.

    It is made once and never changes: it is the key under which is kept what has been worked out
    from it.

    Attributes:
        model_id: Of which model.
        bandwidth: Bytes/s read from memory, by thread count.
        decode: Seconds a token over tokens cached, by variant and threads.
        first_token: Seconds to a first token over prompt length, by variant and threads.
        resident: Anonymous bytes after loading, by variant.
        in_use: Anonymous bytes after a prompt, by variant: without any token, and more for each.
        load_s: Warm load times, by variant.
        stolen: By thread count, how much longer a token takes while another process keeps a core.
        speculation: n-gram drafting's ratio of speeds, by variant and text.
        handover_s: From the last token in one variant to the first in another.
    """

    model_id: str
    bandwidth: Mapping[int, float] = field(default_factory=dict)
    decode: Curves = field(default_factory=dict)
    first_token: Curves = field(default_factory=dict)
    resident: Mapping[str, float] = field(default_factory=dict)
    in_use: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    load_s: Mapping[str, float] = field(default_factory=dict)
    stolen: Mapping[int, float] = field(default_factory=dict)
    speculation: Mapping[tuple[str, str], float] = field(default_factory=dict)
    handover_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.model_id)  # of what is in the tables, one is alive at a time

    def decode_s(
        self, variant: VariantSpec, tokens: int, threads: int, *, stolen: bool = False
    ) -> Estimate | None:
        """Seconds for each token of one conversation; None if nothing comparable was measured."""
        found = self._time(self.decode, variant, tokens, threads)
        if found is None or not stolen:
            return found
        return found.scaled(self._stolen(threads), Source.SCALED)

    def first_token_s(
        self, variant: VariantSpec, prompt: int, threads: int, *, stolen: bool = False
    ) -> Estimate | None:
        """Seconds to the first token after a prompt of which nothing is cached."""
        found = self._time(self.first_token, variant, prompt, threads)
        if found is None or not stolen:
            return found
        return found.scaled(self._stolen(threads), Source.SCALED)

    def loaded_bytes(self, variant: VariantSpec) -> Estimate:
        """Anonymous memory of a worker that has just loaded the variant."""
        measured = self.resident.get(variant.name)
        if measured is not None:
            return Estimate(measured, 0.01, Source.MEASURED)
        return Estimate(UNSEEN_WORKER_BYTES + variant.weights_bytes, 0.1, Source.BYTES)

    def memory_bytes(self, variant: VariantSpec, tokens: int) -> Estimate:
        """The worker with so many tokens cached: loaded, working memory, and KV by arithmetic.

        The first prompt makes room for working with it, once; longer ones add little.
        """
        loaded = self.loaded_bytes(variant)
        base, slope = self.in_use.get(variant.name, (loaded.value, 0.0))
        value = max(loaded.value, base) + (slope + variant.kv_bytes_per_token) * tokens
        return Estimate(value, loaded.sigma_ratio, loaded.source)

    def working_bytes(self, name: str) -> float:
        """What a worker with this variant holds beyond its loading, once it has read a prompt."""
        base, slope = self.in_use.get(name, (0.0, 0.0))
        loaded = self.resident.get(name, base)
        return max(0.0, base + slope * TYPICAL_CACHED_TOKENS - loaded)

    def speculation_ratio(self, variant: VariantSpec, text: str) -> float:
        """What n-gram drafting makes of the speed on a kind of text; 1 if that isn't known.

        A variant that wasn't measured gets the least that any other gained.
        """
        found = self.speculation.get((variant.name, text))
        if found is not None:
            return found
        return min((v for (_, kind), v in self.speculation.items() if kind == text), default=1.0)

    def _stolen(self, threads: int) -> float:
        """A thread that has to share its core gets half of it: twice the time, unless measured."""
        if threads in self.stolen:
            return self.stolen[threads]
        return max(self.stolen.values(), default=2.0)

    def _time(
        self, curves: Curves, variant: VariantSpec, tokens: int, threads: int
    ) -> Estimate | None:
        own = curves.get((variant.name, threads))
        if own is not None:
            return own.estimate(tokens)
        base = _nearest(curves, variant.name, threads)
        if base is not None:
            factor = self._threads_factor(curves, base, threads)
            return curves[variant.name, base].estimate(tokens).scaled(factor, Source.SCALED)
        return self._by_bytes(curves, variant, tokens, threads)

    def _by_bytes(
        self, curves: Curves, variant: VariantSpec, tokens: int, threads: int
    ) -> Estimate | None:
        """A variant that was never measured, from the one nearest in size."""
        known = [name for name, _ in curves if self.resident.get(name)]
        if not known:
            return None
        size = self.loaded_bytes(variant).value
        name = min(known, key=lambda other: abs(self.resident[other] - size))
        base = _nearest(curves, name, threads)
        if base is None:
            return None
        factor = self._threads_factor(curves, base, threads)
        if curves is self.decode:
            factor *= size / self.resident[name]
        return curves[name, base].estimate(tokens).scaled(factor, Source.BYTES)

    def _threads_factor(self, curves: Curves, measured: int, wanted: int) -> float:
        """How much longer ``wanted`` threads take than ``measured``."""
        if measured == wanted:
            return 1.0
        ratios = []
        for (name, threads), curve in curves.items():
            other = curves.get((name, wanted))
            if threads == measured and other is not None:
                at = max(other.points, default=(1, 0.0))[0]
                ratios.append(other.at(at) / curve.at(at))
        if ratios:
            return median(ratios)
        before, after = self.bandwidth.get(measured), self.bandwidth.get(wanted)
        if before and after:
            return before / after
        return float((measured / wanted) ** THREADS_POWER)


def _nearest(curves: Curves, name: str, threads: int) -> int | None:
    """The thread count nearest to ``threads`` with which the variant was measured."""
    counts = [count for other, count in curves if other == name]
    return min(counts, key=lambda count: (abs(count - threads), count), default=None)


def _estimate(value: float, spread_ratio: float, source: Source) -> Estimate:
    return Estimate(value, max(spread_ratio, LEAST_SIGMA[source]), source)
