"""Compiled policies, made by hand, so that tests of the core need no YAML."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trimtab.domain.knobs import KvPlacement
from trimtab.policy.compiled import (
    Admission,
    Carry,
    Corner,
    Floor,
    Handover,
    KnobBounds,
    KvPolicy,
    MemoryLimit,
    Policy,
    Share,
    Slo,
    Stability,
    TemperatureLimit,
    Window,
)

MIB = 1024 * 1024

PLAIN = Policy(
    name="plain",
    revision="000000000001",
    description="",
    protect=(Corner.LATENCY, Corner.MEMORY),
    sacrifice=Corner.ACCURACY,
    slo=Slo(None, None, 60.0),
    memory=MemoryLimit(512 * MIB, 768 * MIB),
    temperature=TemperatureLimit(80.0, 72.0),
    floor=Floor(0.0, 256),
    knobs=KnobBounds(
        variants=(),
        context_min=256,
        context_max=2048,
        window=Window(shift=False, keep=None),
        speculation=("off",),
        kv_placement=(KvPlacement.MEMORY,),
        threads_min=1,
        threads_max=None,
        pace_min_ratio=0.4,
        pace_max_ratio=1.0,
    ),
    rules=(),
    stability=Stability(dwell_s=30.0, cooldown_s=10.0, switches_per_hour=20),
    handover=Handover(Carry.REPLAY, Carry.REPLAY, 60.0),
    admission=Admission(8, 20.0, 4, (("interactive", 1.0), ("background", 0.2))),
    kv=KvPolicy(None, 0, 0, Share.USER),
)


def policy(**changes: Any) -> Policy:
    """The plain policy with some fields replaced."""
    return replace(PLAIN, **changes)
