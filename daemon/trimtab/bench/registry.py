"""The benchmarks by name, with what they measure and what is to be reached."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one field: ``at least`` or ``at most`` a number."""

    field: str
    at_least: float | None = None
    at_most: float | None = None

    def reached(self, result: Mapping[str, Any]) -> bool | None:
        """Whether it is; None if the field has no number."""
        value = result.get(self.field)
        if not isinstance(value, int | float):
            return None
        low = self.at_least is None or value >= self.at_least
        high = self.at_most is None or value <= self.at_most
        return low and high

    def describe(self) -> str:
        """For people: ``≥ 0.97``."""
        parts = []
        if self.at_least is not None:
            parts.append(f"≥ {self.at_least:g}")
        if self.at_most is not None:
            parts.append(f"≤ {self.at_most:g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark.

    Attributes:
        module: Below `trimtab.bench`; it has ``run(quick: bool) -> dict``.
        measures: In a line.
        targets: What is to be reached, in the order of the table.
    """

    module: str
    measures: str
    targets: tuple[Target, ...]

    def load(self) -> Callable[[bool], dict[str, Any]]:
        """Its function, imported now."""
        run: Callable[[bool], dict[str, Any]] = importlib.import_module(
            f"trimtab.bench.{self.module}"
        ).run
        return run


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "overhead": Benchmark(
        "overhead",
        "tokens through the daemon's socket against the engine's bare loop",
        (
            Target("tps_ratio_int4", at_least=0.97),
            Target("tps_ratio_int8", at_least=0.97),
            Target("ttft_added_ms_p50", at_most=5),
        ),
    ),
    "footprint": Benchmark(
        "footprint",
        "the idle controller over a minute",
        (
            Target("rss_mb", at_most=55),
            Target("idle_cpu_percent", at_most=0.5),
            Target("wakeups_per_s", at_most=5),
        ),
    ),
    "decoder": Benchmark(
        "decoder",
        "the decoder that owns its KV cache against the engine's Generator",
        (
            Target("tps_ratio_min", at_least=0.98),
            Target("ttft_ratio_max", at_most=1.05),
            Target("rss_ratio"),
            Target("tokens_equal", at_least=1),
        ),
    ),
    "batch": Benchmark(
        "batch",
        "conversations decoded together against one after the other",
        (
            Target("ratio_b2_min", at_least=1.6),
            Target("ratio_b4_min", at_least=1.9),
            Target("ratio_b2_long_min"),
            Target("ratio_b4_long_min"),
            Target("tokens_equal", at_least=1),
        ),
    ),
    "speculation": Benchmark(
        "speculation",
        "drafting when it pays against always and never",
        (
            Target("min_ratio", at_least=0.97),
            Target("fp32_shared_draft_ratio", at_least=1.2),
        ),
    ),
    "api": Benchmark(
        "api",
        "the API while tokens flow, and whether anything grows in half an hour",
        (
            Target("status_p50_ms", at_most=2),
            Target("request_added_ms_p50"),
            Target("rss_growth_mb", at_most=1),
            Target("fd_growth", at_most=0),
        ),
    ),
    "sensors": Benchmark(
        "sensors",
        "a full look at all sensors, a million of them, and 10 ms polling",
        (
            Target("p50_ms", at_most=1),
            Target("p99_ms", at_most=3),
            Target("rss_growth_kb"),
            Target("cpu_percent_at_10ms", at_most=2),
        ),
    ),
    "handover": Benchmark(
        "handover",
        "the pause that a client sees when its stream changes the variant",
        (
            Target("pause_ms_kv", at_most=60),
            Target("pause_ms_replay"),
            Target("pause_ratio", at_most=0.05),
            Target("pause_ms_cold"),
            Target("load_ms"),
            Target("cold_over_load_ms", at_most=60),
        ),
    ),
    "crash": Benchmark(
        "crash",
        "a hundred kills -9 under four streams",
        (
            Target("kills"),
            Target("streams"),
            Target("complete"),
            Target("equal"),
            Target("extra_ms_median"),
            Target("load_ms"),
            Target("extra_over_load_ms", at_most=150),
        ),
    ),
    "reload": Benchmark(
        "reload",
        "policies written under load, half of them bad",
        (
            Target("in_force_ms_p50"),
            Target("in_force_ms_p99", at_most=1000),
            Target("reloads"),
            Target("streams"),
            Target("streams_broken", at_most=0),
        ),
    ),
    "prediction": Benchmark(
        "prediction",
        "predictions of the device's model on points held out of its fit",
        (
            Target("memory_error", at_most=0.03),
            Target("decode_error", at_most=0.10),
            Target("ttft_error", at_most=0.15),
            Target("points"),
        ),
    ),
    "kv": Benchmark(
        "kv",
        "conversations to disk and back, and the memory that this gives back",
        (
            Target("restore_ratio", at_most=0.05),
            Target("returned_ratio", at_least=0.95, at_most=1.05),
            Target("shrink_returned_ratio", at_least=0.95),
            Target("segment_tps_ratio", at_least=0.98),
        ),
    ),
    "controller": Benchmark(
        "controller",
        "the controller against fixed choices and the clairvoyant, on the scenario set",
        (
            Target("oracle_ratio_chat", at_least=1.10),
            Target("oracle_ratio_code", at_least=0.87),
            Target("static_fifo_geomean_chat", at_least=1.26),
            Target("static_fifo_geomean_code", at_least=1.16),
            Target("same_scheduler_static_min", at_least=0.99),
            Target("days_piecewise_geomean", at_least=0.97),
            Target("days_static_geomean_smollm2", at_least=1.10),
            Target("days_static_min", at_least=0.99),
            Target("days_best_quality_geomean", at_least=1.5),
            Target("switches_per_disturbance_max", at_most=2),
            Target("limit_cycles", at_most=0),
            Target("heat_limit_cycles", at_most=0),
            Target("heat_over_limit_share"),
            Target("switch_time_share", at_most=0.01),
        ),
    ),
    "reaction": Benchmark(
        "reaction",
        "memory filled fast: from crossing the limit to the first relief, beside earlyoom",
        (
            Target("p50_ms"),
            Target("p99_ms", at_most=100),
            Target("earlyoom_p50_ms"),
            Target("speedup_p50", at_least=4),
            Target("squeezes"),
            Target("oom_kills", at_most=0),
        ),
    ),
    "live": Benchmark(
        "live",
        "a real daemon against each fixed variant while memory and a core are taken",
        (
            Target("score_ratio_best_static", at_least=1.0),
            Target("score_ratio_best_quality", at_least=1.3),
            Target("violations_controller"),
            Target("violations_best_quality"),
        ),
    ),
    "decision": Benchmark(
        "decision",
        "one step of the core over 512 operating points",
        (
            Target("p50_ms"),
            Target("p99_ms", at_most=2),
            Target("points"),
        ),
    ),
    "simulate": Benchmark(
        "simulate",
        "simulated requests a second through the core, on one core",
        (Target("requests_per_s", at_least=3000),),
    ),
}
