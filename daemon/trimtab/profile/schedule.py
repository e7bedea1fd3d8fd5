"""What a profile measures, in which order, and about how long each part takes. Pure.

Steps are grouped by session: one worker process with one variant and one number of threads. The
most telling come first, so that a quick profile, or one that is interrupted, has what matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import STOLEN, Kind, Profile
from trimtab.profile.texts import TEXTS

FREE: Final = 40
"""Tokens of the context that stay free for what is generated."""

_FALLBACK_BYTES_S: Final = 4e9  # what a slow board reads from memory
_FALLBACK_LOAD_BYTES_S: Final = 200e6
_FALLBACK_PREFILL_RATIO: Final = 6.0  # tokens read ÷ tokens written, in a second
_START_S: Final = 0.7


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement to be made.

    Attributes:
        kind: Of what.
        variant: Of which variant; empty for the device's own.
        threads: With how many engine threads.
        tokens: At which context or prompt length.
        detail: Text, target, or `STOLEN`.
        repeats: How many samples.
        cost_s: About how long it takes.
    """

    kind: Kind
    variant: str
    threads: int
    tokens: int = 0
    detail: str = ""
    repeats: int = 1
    cost_s: float = 1.0

    @property
    def key(self) -> tuple[str, str, int, int, str]:
        """The key of the measurement that it makes."""
        return (self.kind.value, self.variant, self.threads, self.tokens, self.detail)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One worker and what is measured with it.

    Attributes:
        variant: What it loads; None for what needs no worker.
        threads: Engine threads.
        steps: In order.
    """

    variant: VariantSpec | None
    threads: int
    steps: tuple[Step, ...]

    @property
    def cost_s(self) -> float:
        """About how long it takes."""
        start_s = 0.0 if self.variant is None else load_s(self.variant)
        return start_s + sum(step.cost_s for step in self.steps)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        mode: `quick` or `full`.
        tokens: Contexts and prompt lengths, ascending.
        repeats: Samples of each.
        decode_tokens: Tokens of one sample of decoding.
    """

    mode: str
    tokens: tuple[int, ...]
    repeats: int
    decode_tokens: int


QUICK: Final = Extent("quick", (64, 384), 1, 16)
FULL: Final = Extent("full", (64, 512, 2048), 3, 24)


def thread_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4 … and all cores."""
    counts = []
    count = 1
    while count < cores:
        counts.append(count)
        count *= 2
    return (*counts, cores)


def plan(model: ModelSpec, extent: Extent, cores: int, usual_threads: int) -> list[SessionPlan]:
    """Everything that a profile of this extent measures.

    Args:
        model: The model.
        extent: How much.
        cores: Cores that we may use.
        usual_threads: The count that the daemon would use: it comes first.
    """
    full = extent is FULL
    others = [count for count in thread_counts(cores) if count != usual_threads]
    device = [_device_step(count) for count in thread_counts(cores)]
    sessions = [SessionPlan(None, 0, tuple(device))]
    # The smallest first: they take the least time, and a quick profile may run out of it.
    sessions += [
        _session(variant, usual_threads, extent, extent.tokens)
        for variant in reversed(model.variants)
    ]
    for count in others:
        for variant in model.variants if full else model.variants[-1:]:
            tokens = extent.tokens if full else extent.tokens[:1]
            sessions.append(_session(variant, count, extent, tokens, others=True))
    if full:
        sessions += [_stolen(model.variants[-1], count) for count in thread_counts(cores)]
        sessions += _handovers(model, usual_threads)
    return sessions


def missing(
    sessions: Iterable[SessionPlan], profile: Profile, *, disturbed: bool = False
) -> list[SessionPlan]:
    """What is left to do, given what has been measured already.

    Args:
        sessions: Everything.
        profile: What there is.
        disturbed: What was measured beside other work is left to do too.
    """
    known = {one.key for one in profile.measurements if not (disturbed and one.disturbed)}
    left = []
    for session in sessions:
        steps = tuple(step for step in session.steps if step.key not in known)
        if steps:
            left.append(SessionPlan(session.variant, session.threads, steps))
    return left


def cost_s(sessions: Sequence[SessionPlan]) -> float:
    """About how long all of it takes."""
    return sum(session.cost_s for session in sessions)


def load_s(variant: VariantSpec) -> float:
    """About how long loading takes."""
    return _START_S + (variant.load_s or variant.disk_bytes / _FALLBACK_LOAD_BYTES_S)


def decode_s(variant: VariantSpec) -> float:
    """About how long a token takes."""
    if variant.decode_tps:
        return 1 / variant.decode_tps
    return max(0.002, variant.weights_bytes / _FALLBACK_BYTES_S)


def prefill_s(variant: VariantSpec) -> float:
    """About how long a token of a prompt takes."""
    if variant.prefill_tps:
        return 1 / variant.prefill_tps
    return decode_s(variant) / _FALLBACK_PREFILL_RATIO


def _device_step(threads: int) -> Step:
    return Step(Kind.BANDWIDTH, "", threads, repeats=5, cost_s=0.4)


def _session(
    variant: VariantSpec,
    threads: int,
    extent: Extent,
    tokens: Sequence[int],
    *,
    others: bool = False,
) -> SessionPlan:
    """Loading, then prompts up to the longest, then decoding from the longest context down.

    In that order the longest prompt leaves its KV in the segment for all decoding after it.
    """
    name = variant.name
    full = extent is FULL
    sizes = [size for size in tokens if size + FREE <= variant.context_length]
    sizes = sizes or [max(1, variant.context_length - FREE)]
    steps = []
    if full and not others:
        steps.append(Step(Kind.LOAD_COLD, name, threads, cost_s=2 * load_s(variant)))
    repeats = 2 if full else 1
    again_s = load_s(variant) * (repeats - 1)
    steps.append(Step(Kind.LOAD_WARM, name, threads, repeats=repeats, cost_s=again_s))
    steps.append(Step(Kind.RESIDENT, name, threads, cost_s=0.3))
    for size in sizes:
        times = extent.repeats if size <= 512 else 1
        cost = times * size * prefill_s(variant)
        steps.append(Step(Kind.TTFT, name, threads, size, repeats=times, cost_s=cost))
    for size in reversed(sizes):
        cost = extent.repeats * extent.decode_tokens * decode_s(variant)
        steps.append(Step(Kind.DECODE, name, threads, size, repeats=extent.repeats, cost_s=cost))
    if full and not others:
        steps += [_speculation(variant, threads, text) for text in TEXTS]
        steps.append(Step(Kind.OFFLOAD, name, threads, sizes[-1], cost_s=0.5))
    return SessionPlan(variant, threads, tuple(steps))


def _speculation(variant: VariantSpec, threads: int, text: str) -> Step:
    cost = 4 * (64 * decode_s(variant) + 150 * prefill_s(variant))
    return Step(Kind.SPECULATION, variant.name, threads, detail=text, repeats=2, cost_s=cost)


def _stolen(variant: VariantSpec, threads: int) -> SessionPlan:
    cost = 3 * 2 * 32 * decode_s(variant)
    step = Step(Kind.DECODE, variant.name, threads, 64, STOLEN, repeats=3, cost_s=cost)
    return SessionPlan(variant, threads, (step,))


def _handovers(model: ModelSpec, threads: int) -> list[SessionPlan]:
    """Between neighbours that share a KV cache, down and up."""
    sessions = []
    for better, worse in zip(model.variants, model.variants[1:], strict=False):
        if better.fingerprint != worse.fingerprint:
            continue
        for source, target in ((better, worse), (worse, better)):
            cost = load_s(target) + 512 * prefill_s(source) + 1.0
            step = Step(
                Kind.HANDOVER, source.name, threads, 512, target.name, repeats=3, cost_s=cost
            )
            sessions.append(SessionPlan(source, threads, (step,)))
    return sessions
