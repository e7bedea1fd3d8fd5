"""The model of a device, fitted to its profile, or to what was seen when variants were built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, sqrt
from statistics import median

from trimtab.domain.decisions import Source
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import STOLEN, Kind, Measurement, Profile
from trimtab.planner.device import (
    TYPICAL_CACHED_TOKENS,
    UNSEEN_WORKER_BYTES,
    Curve,
    Curves,
    DeviceModel,
)


def fit(profile: Profile) -> DeviceModel:
    """The model of the device that a profile describes."""
    one = profile.all
    return DeviceModel(
        model_id=profile.model_id,
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


def from_build(model: ModelSpec) -> DeviceModel:
    """What is known without a profile: the speeds that were seen when the variants were built."""
    decode: dict[tuple[str, int], Curve] = {}
    first: dict[tuple[str, int], Curve] = {}
    for one in model.variants:
        key = (one.name, one.proof_threads)
        if one.decode_tps:
            decode[key] = Curve(0, 1 / one.decode_tps, 0.0, (), source=Source.BUILD)
        if one.prefill_tps:
            first[key] = Curve(1, 1 / one.prefill_tps, 0.0, (), source=Source.BUILD)
    sizes = {one.name: float(UNSEEN_WORKER_BYTES + one.weights_bytes) for one in model.variants}
    return DeviceModel(model.model_id, decode=decode, first_token=first, resident=sizes)


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
        curve = Curve(power, base, slope, points, spread)
        curves[key] = replace(curve, spread_ratio=max(spread, _residual_ratio(curve)))
    return curves


def _residual_ratio(curve: Curve) -> float:
    """How far the measured points lie off the curve; 0 where two of them decide it."""
    free = len(curve.points) - 2
    if free < 1:
        return 0.0
    squares = sum((curve.at(tokens) / value - 1) ** 2 for tokens, value in curve.points)
    return sqrt(squares / free)


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
