"""``trimtab bench prediction``: how far predictions are from what is measured.

The model of the device is fitted to what a quick profile measures: two context lengths at one
thread count, and one at another for a single variant. Everything else is held out: other lengths,
and the other variants' other thread counts. Both are measured in the same sessions, in turn, and in
several rounds, so that what drifts on the machine hits both alike. Times are without the time in
which other programs had the core; `waited_ratio_p50` says how much that was.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from trimtab.bench.subject import bench_model
from trimtab.catalog.proof import evaluation_text
from trimtab.domain.clock import Clock
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import Kind, Measurement, Profile
from trimtab.planner.device import DeviceModel
from trimtab.planner.device_fit import fit
from trimtab.profile.here import signature, this_device, versions
from trimtab.profile.measure import Bench
from trimtab.profile.schedule import FREE, QUICK, SessionPlan, Step, plan, thread_counts
from trimtab.profile.session import Session
from trimtab.profile.store import merged
from trimtab.runtime.clock import SystemClock
from trimtab.workers.worker import Launch

ROUNDS: Final = 5
HELD_OUT_TOKENS: Final = (192, 768)
_QUICK_TOKENS: Final = (192,)
_TIMES: Final = (Kind.TTFT, Kind.DECODE)

Key = tuple[str, str, int, int, str]


@dataclass(frozen=True, slots=True)
class Error:
    """One held-out point.

    Attributes:
        quantity: `memory`, `decode` or `ttft`.
        variant: Of which variant.
        threads: At how many threads.
        tokens: At which length.
        predicted: By the model.
        measured: Here.
        source: How the prediction was found.
    """

    quantity: str
    variant: str
    threads: int
    tokens: int
    predicted: float
    measured: float
    source: str

    @property
    def ratio(self) -> float:
        """Absolute relative error."""
        return abs(self.predicted - self.measured) / self.measured


def run(quick: bool) -> dict[str, Any]:
    """Measure, fit, predict and compare.

    Args:
        quick: One round, one variant, one held-out length: shows that it works.

    Raises:
        NoModelError: The model isn't there.
    """
    model = bench_model(quick)
    rounds = 1 if quick else ROUNDS
    lengths = _QUICK_TOKENS if quick else HELD_OUT_TOKENS
    cores = len(os.sched_getaffinity(0))
    fitted = {step.key for one in plan(model, QUICK, cores, 1) for step in one.steps}
    sessions = _sessions(model, cores, lengths, quick)
    found = asyncio.run(_measure(model, sessions, rounds))
    profile = _profile(model, [one for one in found.values() if _for_fit(one, fitted)])
    held_out = [one for one in found.values() if not _for_fit(one, fitted)]
    errors = list(_errors(model, fit(profile), held_out))
    return {**_summary(errors), "runs": rounds, **_waits(found.values())}


def _sessions(
    model: ModelSpec, cores: int, lengths: Sequence[int], quick: bool
) -> list[SessionPlan]:
    """Every variant at every thread count, at the fitted lengths and the held-out ones in turn."""
    variants = model.variants[-1:] if quick else model.variants
    counts = thread_counts(cores)[:1] if quick else thread_counts(cores)
    return [
        SessionPlan(variant, count, _steps(variant, count, lengths))
        for variant in variants
        for count in counts
    ]


def _steps(variant: VariantSpec, threads: int, lengths: Sequence[int]) -> tuple[Step, ...]:
    sizes = sorted({*QUICK.tokens, *lengths})
    sizes = [size for size in sizes if size + FREE <= variant.context_length]
    name = variant.name
    return (
        Step(Kind.RESIDENT, name, threads),
        *(Step(Kind.TTFT, name, threads, size) for size in sizes),
        *(Step(Kind.DECODE, name, threads, size) for size in reversed(sizes)),
    )


async def _measure(
    model: ModelSpec, sessions: Sequence[SessionPlan], rounds: int
) -> dict[Key, Measurement]:
    """All sessions, in every round; every other round backwards."""
    clock = SystemClock()
    found: dict[Key, Measurement] = {}
    text = evaluation_text().read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        for number in range(rounds):
            for session in sessions if number % 2 == 0 else reversed(sessions):
                for one in await _run_session(model, session, text, Path(folder), clock):
                    found[one.key] = merged(found.get(one.key), one)
    return found


async def _run_session(
    model: ModelSpec, session: SessionPlan, text: str, folder: Path, clock: Clock
) -> list[Measurement]:
    assert session.variant is not None
    context = min(session.variant.context_length, max(HELD_OUT_TOKENS) + 2 * FREE)
    found: list[Measurement] = []
    async with Session(Launch(session.variant, session.threads, context), clock) as worker:
        bench = Bench(model, worker, text, QUICK.decode_tokens, folder, clock)
        try:
            for step in session.steps:
                found += await bench.make(step)
        finally:
            bench.close()
    return found


def _for_fit(one: Measurement, fitted: set[Key]) -> bool:
    """Whether a quick profile would have measured it; IN_USE comes with TTFT."""
    kind = Kind.TTFT if one.kind is Kind.IN_USE else one.kind
    return (kind.value, *one.key[1:]) in fitted


def _profile(model: ModelSpec, measurements: list[Measurement]) -> Profile:
    return Profile(
        device=this_device(Path("/proc"), ""),
        versions=versions(),
        model_id=model.model_id,
        variants={variant.name: signature(variant) for variant in model.variants},
        mode="quick",
        started_s=0.0,
        measurements=tuple(measurements),
    )


def _errors(
    model: ModelSpec, device: DeviceModel, held_out: Iterable[Measurement]
) -> Iterable[Error]:
    by_key = {one.key: one for one in held_out}
    for one in by_key.values():
        variant = model.variant(one.variant)
        if variant is None:
            continue
        match one.kind:
            case Kind.DECODE:
                estimate = device.decode_s(variant, one.tokens, one.threads)
                measured = one.value
            case Kind.TTFT:
                estimate = device.first_token_s(variant, one.tokens, one.threads)
                measured = one.value
            case Kind.IN_USE:
                kv = by_key.get((Kind.KV.value, *one.key[1:]))
                estimate = device.memory_bytes(variant, one.tokens)
                measured = one.value + (kv.value if kv is not None else 0.0)
            case _:
                continue
        if estimate is not None:
            quantity = "memory" if one.kind is Kind.IN_USE else one.kind.value
            place = (one.variant, one.threads, one.tokens)
            yield Error(quantity, *place, estimate.value, measured, estimate.source.value)


def _summary(errors: Sequence[Error]) -> dict[str, Any]:
    """The medians, by quantity and by how the prediction was found."""
    result: dict[str, Any] = {}
    by_source: dict[str, dict[str, float]] = {}
    for quantity in ("memory", "decode", "ttft"):
        of_it = [one for one in errors if one.quantity == quantity]
        ratios = [one.ratio for one in of_it]
        result[f"{quantity}_error"] = round(median(ratios), 4) if ratios else None
        result[f"{quantity}_error_max"] = round(max(ratios), 4) if ratios else None
        sources = {one.source for one in of_it}
        by_source[quantity] = {
            source: round(median(one.ratio for one in of_it if one.source == source), 4)
            for source in sorted(sources)
        }
    result["points"] = len(errors)
    result["by_source"] = by_source
    result["held_out"] = [
        {
            "quantity": one.quantity,
            "variant": one.variant,
            "threads": one.threads,
            "tokens": one.tokens,
            "predicted": one.predicted,
            "measured": one.measured,
            "error": round(one.ratio, 4),
        }
        for one in errors
    ]
    return result


def _waits(found: Iterable[Measurement]) -> dict[str, Any]:
    """How disturbed the samples were."""
    waits = [wait for one in found if one.kind in _TIMES for wait in one.wait_ratios]
    return {"waited_ratio_p50": round(median(waits), 3) if waits else None}
