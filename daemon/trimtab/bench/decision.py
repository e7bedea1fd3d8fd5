"""How long `step` takes over hundreds of operating points: ticks, requests, squeezes."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import quantiles
from typing import Any, Final

from trimtab.domain.actions import SwitchWorker
from trimtab.domain.events import (
    ActionEnded,
    Demand,
    Event,
    ModelChanged,
    OutcomeKind,
    RequestArrived,
    Tick,
)
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.readings import Reading, Snapshot
from trimtab.planner import State, step
from trimtab.planner.points import candidates
from trimtab.policy.compiled import KnobBounds, Policy
from trimtab.simulate.policy import simulated_policy

VARIANTS: Final = 16
CONTEXTS: Final = 16
POINTS: Final = 512
MIB: Final = 1024 * 1024
FREE_BYTES: Final = 6000 * MIB
SQUEEZE_EVERY: Final = 20
REQUEST_EVERY: Final = 4
ACTION_S: Final = 0.5


def run(quick: bool) -> dict[str, Any]:
    """Ticks over 512 points, with a squeeze every twenty and a request every fourth.

    By processor time, so that other programs don't count; by the clock it is given beside.
    """
    own_s, clock_s, switches = _timings(200 if quick else 3000)
    own, clock = quantiles(own_s, n=100), quantiles(clock_s, n=100)
    return {
        "p50_ms": own[49] * 1e3,
        "p99_ms": own[98] * 1e3,
        "p50_clock_ms": clock[49] * 1e3,
        "p99_clock_ms": clock[98] * 1e3,
        "points": points(),
        "switches": switches,
        "runs": len(own_s),
    }


def points() -> int:
    """Operating points that the model and the policy span."""
    return len(
        candidates(
            model(),
            policy().knobs,
            wanted_threads=1,
            pace_ratio=1.0,
            kv_placement=policy().knobs.kv_placement[0],
            pinned={},
        )
    )


def model() -> ModelSpec:
    """Sixteen variants from 300 MiB to 2.5 GiB."""
    variants = tuple(
        VariantSpec(
            name=f"v{number}",
            precision="int8",
            folder="",
            weights_bytes=(2500 - 140 * number) * MIB,
            disk_bytes=0,
            kv_bytes_per_token=4096,
            quality=1.0 - 0.03 * number,
            fingerprint="f",
            context_length=2**20,
            decode_tps=20.0 + 5 * number,
            prefill_tps=200.0,
        )
        for number in range(VARIANTS)
    )
    return ModelSpec("m", "M", "llama", 2**20, 16, 4, 64, "t", True, variants)


def policy() -> Policy:
    """Sixteen contexts and two modes of speculation for each variant."""
    base = simulated_policy()
    knobs: KnobBounds = replace(
        base.knobs,
        context_min=2 ** (20 - CONTEXTS + 1),
        context_max=2**20,
        speculation=("off", "ngram"),
    )
    return replace(base, knobs=knobs, floor=replace(base.floor, context=32))


def _timings(ticks: int) -> tuple[list[float], list[float], int]:
    state, in_force, now = State(), policy(), 0.0
    own_s: list[float] = []
    clock_s: list[float] = []
    switches = 0

    def post(event: Event) -> None:
        nonlocal state, switches
        began, began_own = time.perf_counter(), time.process_time()
        result = step(state, event, in_force)
        own_s.append(time.process_time() - began_own)
        clock_s.append(time.perf_counter() - began)
        state = result.state
        target = result.decision.target if result.decision is not None else state.point
        switches += any(isinstance(action, SwitchWorker) for action in result.actions)
        for action in result.actions:  # done before the next tick, which sees what came of it
            post(ActionEnded(now + ACTION_S, action.id, OutcomeKind.DONE, target))

    post(ModelChanged(now, model()))
    for turn in range(ticks):
        now += 1.0
        squeezed = turn % (2 * SQUEEZE_EVERY) >= SQUEEZE_EVERY
        held = 0
        if state.model is not None and (here := state.model.variant(state.point.variant or "")):
            held = here.weights_bytes
        available = (FREE_BYTES / 2 if squeezed else FREE_BYTES) - held
        reading = Reading("memory.available", available, now)
        post(Tick(now, Snapshot(now, {reading.signal: reading}), Demand(worker_bytes=held)))
        if turn % REQUEST_EVERY == 0:
            post(RequestArrived(now, turn, 200 + turn % 90, 256))
    return own_s, clock_s, switches
