"""What an operating point will hold and do: from the device's model, corrected by what is seen.

Speeds come from the device's profile, else from what was seen when the variants were built, else
from first principles: a token reads all weights once, so that tokens a second are bandwidth ÷
bytes. Observed speeds correct them (`speeds`). Memory comes from what workers were measured to
hold, else from the manifest's weights; KV is arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import hypot
from typing import Final

from trimtab.domain.decisions import Grounds, Prediction, Source
from trimtab.domain.knobs import SPECULATION_NGRAM, SPECULATION_OFF, OperatingPoint
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.planner.device import LEAST_SIGMA, TYPICAL_CACHED_TOKENS, DeviceModel, Estimate
from trimtab.planner.device_fit import from_build
from trimtab.planner.doubt import Doubt
from trimtab.planner.drafting import draft_ratio, ngram_ratio, worth
from trimtab.planner.points import draft_of
from trimtab.planner.resident import estimates
from trimtab.planner.speeds import Speeds

WORKER_BYTES: Final = 60 * 1024 * 1024
"""Anonymous memory of a worker beside its weights, until this device has been measured: the
interpreter, the engine's libraries and its arena."""

TYPICAL_PROMPT_TOKENS: Final = 200

BANDWIDTH_BYTES_S: Final = 8e9
"""Of a small board, where no variant was ever measured; observation corrects it within seconds."""

PREFILL_PER_DECODE: Final = 6.0
"""How much faster a prompt is read than an answer is written, where it wasn't measured."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What predictions start from.

    Attributes:
        available_bytes: Memory that is available now, or would be without the KV of conversations
            that have ended; None if it isn't known.
        held_bytes: What the serving worker holds now, and would give back.
        kv_tokens: Tokens cached for the running streams; they move along with a step.
        speeds: Observed ÷ known speed.
        unwritten_bytes: What is counted as available and must be written to a disk before it is.
    """

    available_bytes: int | None
    held_bytes: int
    kv_tokens: int
    speeds: Speeds = field(default_factory=Speeds)
    unwritten_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What was measured on this device, or will be. It hardly ever changes.

    Attributes:
        resident: Anonymous bytes of a freshly loaded worker, by variant.
        doubt: How far predictions of that may be wrong.
        working: What a worker holds beyond that once it has served, by variant.
        device: The model of the device; None: what was seen when the variants were built.
    """

    resident: Mapping[str, int] = field(default_factory=dict)
    doubt: Doubt = field(default_factory=Doubt)
    working: Mapping[str, int] = field(default_factory=dict)
    device: DeviceModel | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a variant is, undisturbed and at full pace.

    Attributes:
        decode_s: Seconds a token, with `TYPICAL_CACHED_TOKENS` in the cache.
        cached_s: How much longer it takes for each token more in the cache.
        prefill_s: Seconds for each token of a prompt.
        first_s: Seconds to the first token of a typical prompt of which nothing is cached.
        error_ratio: Standard error of all of them.
        source: How they were found.
    """

    decode_s: float
    cached_s: float
    prefill_s: float
    first_s: float
    error_ratio: float
    source: Source


@lru_cache(maxsize=8)
def known_device(model: ModelSpec) -> DeviceModel:
    """The model of a device that was never measured."""
    return from_build(model)


@lru_cache(maxsize=2048)
def known_speed(
    device: DeviceModel,
    variant: VariantSpec,
    draft: VariantSpec | None,
    threads: int,
    speculation: str,
) -> Speed:
    """How fast a variant is in this mode of drafting. Worked out once for a device.

    Args:
        device: The model of the device.
        variant: What serves.
        draft: What drafts for it in the same process, if the mode wants one.
        threads: Engine threads.
        speculation: The mode.
    """
    plain = _plain_speed(device, variant, threads)
    if draft is not None:
        gain = _draft_gain(device, variant, draft, threads)
    elif speculation != SPECULATION_OFF:
        gain = ngram_ratio(device, variant)
    else:
        return plain
    return replace(
        plain,
        decode_s=plain.decode_s / gain.value,
        cached_s=plain.cached_s / gain.value,
        error_ratio=hypot(plain.error_ratio, gain.sigma_ratio),
        source=plain.source.or_worse(gain.source),
    )


def _draft_gain(
    device: DeviceModel, variant: VariantSpec, draft: VariantSpec, threads: int
) -> Estimate:
    """Speed with a draft ÷ without: that of n-grams, which its mode has in it, or more."""
    plain, of_draft = _plain_speed(device, variant, threads), _plain_speed(device, draft, threads)
    ngrams = ngram_ratio(device, variant)
    gain = draft_ratio(variant, draft, plain.decode_s, of_draft.decode_s, plain.prefill_s)
    return gain if gain.value >= worth(plain.source, of_draft.source) * ngrams.value else ngrams


def _plain_speed(device: DeviceModel, variant: VariantSpec, threads: int) -> Speed:
    """Without drafts; from first principles where nothing comparable is known."""
    decode = device.decode_s(variant, TYPICAL_CACHED_TOKENS, threads)
    if decode is None or decode.value <= 0:
        bandwidth = device.bandwidth.get(threads, BANDWIDTH_BYTES_S)
        token_s = max(1, variant.weights_bytes) / bandwidth
        decode = Estimate(token_s, LEAST_SIGMA[Source.ASSUMED], Source.ASSUMED)
    twice = device.decode_s(variant, 2 * TYPICAL_CACHED_TOKENS, threads)
    more_s = twice.value - decode.value if twice is not None else 0.0
    prefill_s, first_s = decode.value / PREFILL_PER_DECODE, 0.0
    first = device.first_token_s(variant, TYPICAL_PROMPT_TOKENS, threads)
    longer = device.first_token_s(variant, TYPICAL_CACHED_TOKENS, threads)
    if first is not None and longer is not None:
        prefill_s, first_s = longer.value / TYPICAL_CACHED_TOKENS, first.value
    return Speed(
        decode_s=decode.value,
        cached_s=max(0.0, more_s) / TYPICAL_CACHED_TOKENS,
        prefill_s=prefill_s,
        first_s=first_s or TYPICAL_PROMPT_TOKENS * prefill_s,
        error_ratio=decode.sigma_ratio,
        source=decode.source,
    )


def loaded_bytes(variant: VariantSpec, resident: Mapping[str, int]) -> int:
    """Memory of a worker that has just loaded the variant: measured, else from the manifest."""
    measured = resident.get(variant.name)
    return measured if measured is not None else WORKER_BYTES + variant.weights_bytes


def beside_bytes(draft: VariantSpec, resident: Mapping[str, int]) -> int:
    """Memory of a draft in its target's process, which has the same KV: its weights alone.

    Never less than its files: a small model's worker holds less beside its weights than is assumed.
    """
    files = min(draft.disk_bytes, draft.weights_bytes)
    return max(files, loaded_bytes(draft, resident) - WORKER_BYTES)


@dataclass(frozen=True, slots=True)
class Basis:
    """What all points of a variant, a thread count and a mode of drafting have in common.

    Attributes:
        variant: Its name; None for nothing.
        loaded_bytes: What the worker holds without any KV.
        kv_bytes_per_token: What one token adds.
        speed: As it was known before; None without a variant.
        quality_ratio: 0 to 1.
        doubt_bytes: How much more the worker may hold than predicted.
        memory: How the worker's memory was found.
        draft_bytes: What of `loaded_bytes` is its draft's.
        draft_doubt_bytes: What of `doubt_bytes` is.
        drafts_pay: False if its draft is expected to gain nothing over n-grams.
    """

    variant: str | None
    loaded_bytes: int
    kv_bytes_per_token: int
    speed: Speed | None
    quality_ratio: float
    doubt_bytes: int = 0
    memory: Source = Source.ASSUMED
    draft_bytes: int = 0
    draft_doubt_bytes: int = 0
    drafts_pay: bool = True


NOTHING: Final = Basis(None, 0, 0, None, 0.0)


def basis(point: OperatingPoint, model: ModelSpec, facts: Facts) -> Basis:
    """The basis of a point; `NOTHING` without a variant."""
    spec = model.variant(point.variant) if point.variant is not None else None
    if spec is None:
        return NOTHING
    draft = model.variant(draft_of(point.speculation) or "")
    device = facts.device or known_device(model)
    held, doubt = estimates(model, facts.resident), facts.doubt
    weights = loaded_bytes(spec, held)
    margin = weights * doubt.margin_ratio(spec.name, measured=spec.name in facts.resident)
    speed = known_speed(device, spec, draft, point.threads, point.speculation)
    more, more_margin, pays = 0, 0.0, True
    if draft is not None:
        more = beside_bytes(draft, held)
        more_margin = more * doubt.margin_ratio(draft.name, measured=draft.name in facts.resident)
        ngrams = known_speed(device, spec, None, point.threads, SPECULATION_NGRAM)
        pays = speed.decode_s < ngrams.decode_s
    return Basis(
        spec.name,
        weights + more + facts.working.get(spec.name, 0),
        spec.kv_bytes_per_token,
        speed,
        spec.quality,
        int(margin + more_margin),
        _memory_source(spec.name, facts),
        more,
        int(more_margin),
        pays,
    )


def _memory_source(variant: str, facts: Facts) -> Source:
    if variant in facts.resident:
        return Source.MEASURED
    return Source.BYTES if facts.resident else Source.ASSUMED


def predict_from(known: Basis, context: int, pace_ratio: float, here: Situation) -> Prediction:
    """The prediction for one context and pace.

    Memory is weights + KV bytes/token × cached tokens + the worker's own; the reserve adds the KV
    of one conversation that fills the whole context. Memory available afterwards is what is
    available now, plus what the present worker gives back, less what the new one takes. Speeds are
    what was known, times what has been observed of it.
    """
    tokens = here.kv_tokens
    memory = known.loaded_bytes + known.kv_bytes_per_token * tokens
    reserved = known.loaded_bytes + known.kv_bytes_per_token * max(context, tokens)
    speed, available = known.speed, here.available_bytes
    left = None if available is None else available + here.held_bytes - memory
    if speed is None or known.variant is None:
        return Prediction(memory, reserved, left, None, None, known.quality_ratio)
    seen = here.speeds.factor(known.variant)
    full_s = speed.decode_s + speed.cached_s * (context - TYPICAL_CACHED_TOKENS)
    error = here.speeds.error_ratio(known.variant, speed.error_ratio)
    return Prediction(
        memory,
        reserved,
        left,
        seen * pace_ratio / speed.decode_s,
        speed.first_s / (seen * pace_ratio),
        known.quality_ratio,
        known.doubt_bytes,
        seen * pace_ratio / max(full_s, speed.decode_s / TYPICAL_CACHED_TOKENS),
        Grounds(speed.source, error, seen, known.memory),
    )


def predict(
    point: OperatingPoint, model: ModelSpec, situation: Situation, facts: Facts
) -> Prediction:
    """What ``point`` would hold and do now."""
    known = basis(point, model, facts)
    if known is NOTHING:
        situation = replace(situation, kv_tokens=0)
    return predict_from(known, point.context, point.pace_ratio, situation)
