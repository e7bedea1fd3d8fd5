"""The policy of the scenario set, with ordinary stability, and the same with a limit to heat."""

from __future__ import annotations

from dataclasses import replace

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
from trimtab.simulate.ladder import CONTEXT

GIB = 1024**3
HEAT_LIMIT = TemperatureLimit(80.0, 72.0)


def simulated_policy(only: str | None = None) -> Policy:
    """Latency and memory hold, accuracy gives.

    Headroom is what the simulated device keeps beyond its cap; the leave threshold is a hundredth
    of a GiB above it, so that a step up has a band to keep. Stability is the default of policies.

    Args:
        only: The one variant that may be taken; None for all.
    """
    return Policy(
        name="simulated",
        revision="simulated",
        description="The scenario set's policy.",
        protect=(Corner.LATENCY, Corner.MEMORY),
        sacrifice=Corner.ACCURACY,
        slo=Slo(None, None, 60.0),
        memory=MemoryLimit(GIB, GIB + GIB // 100),
        temperature=None,
        floor=Floor(0.0, CONTEXT),
        knobs=KnobBounds(
            variants=() if only is None else (only,),
            context_min=CONTEXT,
            context_max=CONTEXT,
            window=Window(shift=False, keep=None),
            speculation=("off",),
            kv_placement=(KvPlacement.MEMORY,),
            threads_min=1,
            threads_max=1,
            pace_min_ratio=1.0,
            pace_max_ratio=1.0,
        ),
        rules=(),
        stability=Stability(dwell_s=30.0, cooldown_s=10.0, switches_per_hour=20),
        handover=Handover(Carry.KV, Carry.KV, 60.0),
        # The simulated engine serves one at a time.
        admission=Admission(64, 2.0, 1, (("interactive", 1.0), ("background", 0.2))),
        kv=KvPolicy(None, 0, 0, Share.USER),
    )


def heat_policy(threads: int) -> Policy:
    """The same with a temperature limit, and the knobs that answer heat: pace and threads.

    Args:
        threads: Engine threads at most.
    """
    policy = simulated_policy()
    knobs = replace(policy.knobs, threads_max=threads, pace_min_ratio=0.2)
    return replace(policy, name="simulated heat", temperature=HEAT_LIMIT, knobs=knobs)
