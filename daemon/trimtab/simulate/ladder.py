"""Ladders of variants as the scenario set gives them, and a request's objectives on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.simulate.conditions import GIB
from trimtab.simulate.traces import Floats, Ints, Trace

CONTEXT: Final = 8192
BYTES_PER_GB: Final = 1.0737e9


@dataclass(frozen=True, slots=True)
class Rung:
    """One variant.

    Attributes:
        name: Its name.
        size_bytes: What a loaded worker holds.
        quality: 0 to 1.
        decode_tps: Tokens a second at nominal speed.
        prefill_tps: Prompt tokens a second at nominal speed.
    """

    name: str
    size_bytes: float
    quality: float
    decode_tps: float
    prefill_tps: float


@dataclass(frozen=True, slots=True)
class Ladder:
    """Variants, best first.

    Attributes:
        name: Of the ladder.
        rungs: The variants.
    """

    name: str
    rungs: tuple[Rung, ...]

    @property
    def best(self) -> Rung:
        """The first variant: objectives and load are stated on it, at nominal speed."""
        return self.rungs[0]

    def cap_bytes(self, fits: str) -> float:
        """A cap in the ladder's own units.

        Args:
            fits: ``best`` (all fit), ``second`` (all but the largest) or ``least`` (the smallest
                alone, with a tenth to spare).
        """
        sizes = sorted((rung.size_bytes for rung in self.rungs), reverse=True)
        match fits:
            case "best":
                return sizes[0] * 1.1
            case "second":
                return (sizes[0] + sizes[1]) / 2
            case "least":
                return min(sizes[-1] * 1.1, (sizes[-1] + sizes[-2]) / 2)
            case _:
                raise ValueError(f"a cap fits best, second or least, not {fits!r}")

    def work_s(self, trace: Trace) -> Floats:
        """Seconds of each request on the best variant at nominal speed."""
        work: Floats = trace.prompt / self.best.prefill_tps + trace.output / self.best.decode_tps
        return work

    def model(self, threads: int = 1) -> ModelSpec:
        """The ladder as the planner sees models; its KV costs nothing, as in the scenarios.

        Args:
            threads: With which its speeds are.
        """
        variants = tuple(
            VariantSpec(
                name=rung.name,
                precision=rung.name,
                folder=f"/simulated/{rung.name}",
                weights_bytes=int(rung.size_bytes),
                disk_bytes=int(rung.size_bytes),
                kv_bytes_per_token=0,
                quality=rung.quality,
                fingerprint="simulated",
                context_length=CONTEXT,
                decode_tps=rung.decode_tps,
                prefill_tps=rung.prefill_tps,
                proof_threads=threads,
            )
            for rung in self.rungs
        )
        return ModelSpec(self.name, self.name, "llama", CONTEXT, 16, 4, 64, "", False, variants)


@dataclass(frozen=True, slots=True)
class Objectives:
    """The scenario set's SLO: both lines are base + slope × (nominal time on the best variant)."""

    ttft_base_s: float
    ttft_slope: float
    end_base_s: float
    end_slope: float

    def ttft_s(self, trace: Trace, best: Rung) -> Floats:
        """Allowed time to the first token, per request."""
        allowed = self.ttft_base_s + self.ttft_slope * trace.prompt / best.prefill_tps
        return np.asarray(allowed, dtype=np.float64)

    def end_s(self, trace: Trace, best: Rung) -> Floats:
        """Allowed time to the last token, per request."""
        work: Floats = trace.prompt / best.prefill_tps + trace.output / best.decode_tps
        return np.asarray(self.end_base_s + self.end_slope * work, dtype=np.float64)


def rung(
    name: str, entry: dict[str, float], bandwidth_bytes_s: float | None, prefill: float
) -> Rung:
    """One entry of a ladder: speeds are given, or follow from bandwidth ÷ bytes."""
    size = float(entry["size"])
    if "decode_tokens_s" in entry:
        decode = float(entry["decode_tokens_s"])
    elif bandwidth_bytes_s is not None:
        decode = bandwidth_bytes_s / (size * BYTES_PER_GB)
    else:
        raise ValueError(f"variant {name} has neither decode_tokens_s nor a bandwidth")
    return Rung(
        name,
        size * GIB,
        float(entry["quality"]),
        decode,
        float(entry.get("prefill_tokens_s", prefill)),
    )


def limits(output: Ints) -> Ints:
    """``max_tokens`` of each request: the next power of two above the true length, at least 64."""
    powers: Ints = 2 ** (np.floor(np.log2(output)).astype(np.int64) + 1)
    most: Ints = np.maximum(64, powers)
    return most
