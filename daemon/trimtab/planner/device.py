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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp
from statistics import median
from typing import Final

from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import STOLEN, Kind, Measurement, Profile

UNSEEN_WORKER_BYTES: Final = 20 * 1024 * 1024
"""Anonymous memory of a worker beside its weights where no variant was measured at all."""

TYPICAL_CACHED_TOKENS: Final = 384
"""Where speeds are taken from that stand for a whole conversation."""


class Source(StrEnum):
    """How an estimate was found."""

    MEASURED = "measured"
    FITTED = "fitted"  # this variant and thread count, another number of tokens
    SCALED = "scaled"  # this variant, another thread count
    BYTES = "bytes"  # another variant, by its size


_LEAST_SIGMA: Final[dict[Source, float]] = {
    Source.MEASURED: 0.02,
    Source.FITTED: 0.05,
    Source.SCALED: 0.12,
    Source.BYTES: 0.30,
}


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
        return Estimate(self.value * factor, max(self.sigma_ratio, _LEAST_SIGMA[source]), source)


@dataclass(frozen=True, slots=True)
class Curve:
    """``nᵏ · (base + slope · n)``: k = 0 for a token over n cached, 1 for a prompt of n.

    Attributes:
        power: The k.
        base: Of the weights.
        slope: Of the attention to what is cached.
        points: The measured n and values.
        spread_ratio: How far the samples at one point lay apart.
    """

    power: int
    base: float
    slope: float
    points: tuple[tuple[int, float], ...]
    spread_ratio: float = 0.0

    def at(self, tokens: int) -> float:
        """The curve's value; never negative."""
        return float(tokens**self.power) * max(0.0, self.base + self.slope * tokens)

    def estimate(self, tokens: int) -> Estimate:
        """A measured point itself, else the curve."""
        for measured, value in self.points:
            if measured == tokens:
                return _estimate(value, self.spread_ratio, Source.MEASURED)
        return _estimate(self.at(tokens), self.spread_ratio, Source.FITTED)


Curves = Mapping[tuple[str, int], Curve]


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What this device does with a model's variants. Made by `fit`.

    Attributes:
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

    bandwidth: Mapping[int, float]
    decode: Curves
    first_token: Curves
    resident: Mapping[str, float]
    in_use: Mapping[str, tuple[float, float]]
    load_s: Mapping[str, float]
    stolen: Mapping[int, float]
    speculation: Mapping[tuple[str, str], float]
    handover_s: Mapping[tuple[str, str], float]

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
        return before / after if before and after else measured / wanted


def fit(profile: Profile) -> DeviceModel:
    """The model of the device that a profile describes."""
    one = profile.all
    return DeviceModel(
        bandwidth={m.threads: m.value for m in one(Kind.BANDWIDTH)},
        decode=_curves(one(Kind.DECODE), power=0),
        first_token=_curves(one(Kind.TTFT), power=1),
        resident=_by_variant(one(Kind.RESIDENT)),
        in_use=_in_use(profile.all(Kind.IN_USE)),
        load_s=_by_variant(one(Kind.LOAD_WARM)),
        stolen=_stolen_factors(profile),
        speculation={(m.variant, m.detail): m.value for m in one(Kind.SPECULATION)},
        handover_s={(m.variant, m.detail): m.value for m in one(Kind.HANDOVER)},
    )


def _by_variant(measurements: Iterable[Measurement]) -> dict[str, float]:
    """The median over thread counts."""
    groups: dict[str, list[float]] = {}
    for one in measurements:
        groups.setdefault(one.variant, []).append(one.value)
    return {name: median(values) for name, values in groups.items()}


def _curves(measurements: Iterable[Measurement], power: int) -> Curves:
    """A curve for each variant and thread count; a single point borrows the others' slope."""
    groups: dict[tuple[str, int], list[Measurement]] = {}
    for one in measurements:
        if not one.detail:
            groups.setdefault((one.variant, one.threads), []).append(one)
    lines = {
        key: line([(m.tokens, m.value / m.tokens**power) for m in group])
        for key, group in groups.items()
        if len(group) > 1
    }
    curves = {}
    for key, group in groups.items():
        if key in lines:
            base, slope = lines[key]
        else:
            slope = _borrowed(lines, key)
            one = group[0]
            base = one.value / one.tokens**power - slope * one.tokens
        points = tuple(sorted((m.tokens, m.value) for m in group))
        spread = median(m.spread_ratio for m in group)
        curves[key] = Curve(power, base, slope, points, spread)
    return curves


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Base and slope of the line with the least squares of relative errors.

    Neither is ever below zero: that is noise, since more tokens never take less, and no tokens
    never take less than nothing. The other one is then fitted alone.
    """
    weights = [1 / (value * value) for _, value in points]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    across = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    along = sum(w * (n - mean_n) * (y - mean_y) for w, (n, y) in zip(weights, points, strict=True))
    slope = max(0.0, along / across) if across > 0 else 0.0
    base = mean_y - slope * mean_n
    if base >= 0:
        return base, slope
    squares = sum(w * n * n for w, (n, _) in zip(weights, points, strict=True))
    products = sum(w * n * y for w, (n, y) in zip(weights, points, strict=True))
    return 0.0, products / squares


def _borrowed(lines: Mapping[tuple[str, int], tuple[float, float]], key: tuple[str, int]) -> float:
    """A slope for a curve with one point.

    Other variants' at as many threads, since attention doesn't depend on how the weights are
    stored; else its own at another count; else none.
    """
    name, threads = key
    same = [slope for (_, count), (_, slope) in lines.items() if count == threads]
    own = [slope for (other, _), (_, slope) in lines.items() if other == name]
    return _middle(same or own)


def _nearest(curves: Curves, name: str, threads: int) -> int | None:
    """The thread count nearest to ``threads`` with which the variant was measured."""
    counts = [count for other, count in curves if other == name]
    return min(counts, key=lambda count: (abs(count - threads), count), default=None)


def _in_use(measurements: Iterable[Measurement]) -> dict[str, tuple[float, float]]:
    """Anonymous bytes over the prompt's length: a line for each variant, over all threads."""
    points: dict[str, list[tuple[int, float]]] = {}
    for one in measurements:
        points.setdefault(one.variant, []).append((one.tokens, one.value))
    return {name: line(known) for name, known in points.items()}


def _stolen_factors(profile: Profile) -> dict[int, float]:
    """How much longer a token takes beside another process, by thread count."""
    ratios: dict[int, list[float]] = {}
    for one in profile.all(Kind.DECODE):
        alone = profile.find(Kind.DECODE, one.variant, one.threads, one.tokens)
        if one.detail == STOLEN and alone is not None:
            ratios.setdefault(one.threads, []).append(max(1.0, one.value / alone.value))
    return {threads: median(values) for threads, values in ratios.items()}


def _estimate(value: float, spread_ratio: float, source: Source) -> Estimate:
    return Estimate(value, max(spread_ratio, _LEAST_SIGMA[source]), source)


def _middle(values: Iterable[float]) -> float:
    known = list(values)
    return median(known) if known else 0.0


def calibrate(model: ModelSpec, profile: Profile, threads: int) -> ModelSpec:
    """The model with this device's figures in place of those of the machine that built it.

    Args:
        model: From its manifest.
        profile: Of this device.
        threads: Engine threads that the daemon will use.

    Returns:
        The same variants with measured (else fitted) speeds, load times and qualities, ordered by
        quality as the catalog orders them.
    """
    device = fit(profile)
    qualities = measured_qualities(profile)
    variants = [_calibrated(variant, device, threads, qualities) for variant in model.variants]
    variants.sort(key=lambda variant: (-variant.quality, -variant.weights_bytes, variant.name))
    return replace(model, variants=tuple(variants))


def measured_qualities(profile: Profile) -> dict[str, float]:
    """exp(−mean KL), the mean of each variant's tasks; only what was measured here."""
    return {
        one.variant: exp(-sum(task.mean_kl for task in one.tasks) / len(one.tasks))
        for one in profile.quality
        if one.tasks
    }


def _calibrated(
    variant: VariantSpec, device: DeviceModel, threads: int, qualities: Mapping[str, float]
) -> VariantSpec:
    decode = device.decode_s(variant, TYPICAL_CACHED_TOKENS, threads)
    first = device.first_token_s(variant, TYPICAL_CACHED_TOKENS, threads)
    return replace(
        variant,
        decode_tps=1 / decode.value if decode and decode.value > 0 else variant.decode_tps,
        prefill_tps=TYPICAL_CACHED_TOKENS / first.value
        if first and first.value > 0
        else variant.prefill_tps,
        load_s=device.load_s.get(variant.name, variant.load_s),
        proof_threads=threads if decode else variant.proof_threads,
        quality=qualities.get(variant.name, variant.quality),
    )
