"""Devices on paper: what memory they have, how fast they read it, how fast they compute.

`bandwidth` is what decoding really gets, which is less than the data sheet's peak. Where somebody
has published measurements (size of the weights × tokens/s), that figure is taken; elsewhere a share
of the peak, and the source says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.models import ModelSpec
from trimtab.domain.profile import Kind, Profile
from trimtab.planner.device_fit import fit
from trimtab.profile.known_models import KNOWN

GIB: Final = 2**30
RESERVE_BYTES: Final = GIB // 2
"""What a lean system and its services hold."""

USABLE_PEAK_RATIO: Final = 0.6
"""Share of the peak bandwidth that decoding gets on a CPU where nobody has published more."""

USABLE_COMPUTE_RATIO: Final = 0.85
"""Share of the float peak that reading a prompt gets, assumed: int8 dot products make up for what
is lost. Cores without them (Cortex-A72) get less than half of that."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device.

    Attributes:
        name: For people.
        memory_bytes: All of it.
        reserve_bytes: What the system holds.
        bandwidth: Bytes/s that decoding reads.
        compute: Operations/s (a multiplication and an addition are two) that prefill gets; None if
            it isn't known.
        by_precision: Bytes/s of weights that decoding reads, by precision, where it was measured
            here: small weights are limited by computing, not by memory.
        source: Where the figures are from.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    compute: float | None
    source: str
    reserve_bytes: int = RESERVE_BYTES
    by_precision: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable_bytes(self) -> int:
        """Memory beside the system's."""
        return max(0, self.memory_bytes - self.reserve_bytes)

    def weights_bandwidth(self, precision: str) -> float:
        """Bytes/s of weights of a precision: measured, else as of the measured one next to it."""
        if not self.by_precision:
            return self.bandwidth
        near = min(self.by_precision, key=lambda name: abs(BITS[name] - BITS[precision]))
        return self.by_precision[near]


def _board(
    name: str,
    memory_gib: int,
    peak: float,
    compute: float,
    source: str,
    *,
    bandwidth: float = 0.0,
    compute_ratio: float = USABLE_COMPUTE_RATIO,
) -> Target:
    return Target(
        name,
        memory_gib * GIB,
        bandwidth or peak * USABLE_PEAK_RATIO,
        compute * compute_ratio,
        source + ("" if bandwidth else f"; {USABLE_PEAK_RATIO:.0%} of the peak is assumed"),
    )


# Peak operations: cores × clock × operations per cycle of the SIMD units, from the cores' manuals.
BOARDS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        _board(
            "raspberry-pi-4",
            8,
            12.8e9,
            4 * 1.8e9 * 8,
            "32-bit LPDDR4-3200, 12.8 GB/s peak; public llama.cpp runs read 5–7 GB/s",
            bandwidth=6e9,
            compute_ratio=0.35,
        ),
        _board(
            "raspberry-pi-5",
            8,
            17.1e9,
            4 * 2.4e9 * 16,
            "32-bit LPDDR4X-4267, 17.1 GB/s peak; public llama.cpp runs read about 10 GB/s",
            bandwidth=10e9,
        ),
        _board(
            "jetson-orin-nano",
            8,
            68e9,
            6 * 1.5e9 * 16,
            "NVIDIA's data sheet: 68 GB/s peak (102 GB/s in Super mode); CPU cores only",
        ),
        _board(
            "jetson-orin-nx",
            16,
            102.4e9,
            8 * 2.0e9 * 16,
            "NVIDIA's data sheet: 102.4 GB/s peak; CPU cores only",
        ),
        _board(
            "jetson-agx-orin",
            32,
            204.8e9,
            12 * 2.2e9 * 16,
            "NVIDIA's data sheet: 204.8 GB/s peak; CPU cores only",
        ),
        _board(
            "rk3588", 8, 33.8e9, 4 * 2.4e9 * 16, "64-bit LPDDR4X-4224, 33.8 GB/s peak; big cores"
        ),
        _board("n100", 16, 38.4e9, 4 * 3.4e9 * 16, "one channel of DDR5-4800, 38.4 GB/s peak"),
    )
}


def from_profile(profile: Profile, model: ModelSpec) -> Target | None:
    """This device, as its profile shows it; None if too little was measured.

    What decoding reads is known for each precision, from a model whose size is known.
    """
    device = fit(profile)
    threads = min((count for _, count in device.decode), default=0)
    shape = KNOWN.get(model.model_id)
    rates: dict[str, float] = {}
    computes: list[float] = []
    for variant in model.variants:
        decode = device.decode.get((variant.name, threads))
        prefill = device.first_token.get((variant.name, threads))
        bits = BITS.get(variant.name)
        if decode is None or decode.base <= 0 or shape is None or bits is None:
            continue
        rates[variant.name] = shape.active_parameters * bits / 8 / decode.base
        if prefill is not None and prefill.base > 0:
            computes.append(2 * shape.active_parameters / prefill.base)
    bandwidth = max([one.value for one in profile.all(Kind.BANDWIDTH)], default=0.0)
    if not rates or not bandwidth:
        return None
    return Target(
        "this device",
        profile.device.memory_bytes,
        bandwidth,
        sorted(computes)[len(computes) // 2] if computes else None,
        f"measured by trimtab profile with {threads} engine thread(s) on {model.model_id}",
        by_precision=rates,
    )


BITS: Final[dict[str, float]] = {
    "fp32": 32,
    "fp16": 16,
    "int8": 8,
    "int4_mixed": 5,
    "int4": 4,
    "int3": 3,
    "int2": 2,
}
"""Bits of a weight by precision, scales not counted; int4_mixed keeps some matrices at 6 or 8."""
