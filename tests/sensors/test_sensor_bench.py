"""The benchmark runs in its quick form and has the fields of the contract."""

from __future__ import annotations

from trimtab.bench.sensors import run


def test_the_sensor_benchmark_has_its_fields() -> None:
    result = run(quick=True)

    assert {"p50_ms", "p99_ms", "rss_growth_kb", "cpu_percent_at_10ms", "runs"} <= result.keys()
    assert 0 < result["p50_ms"] <= result["p99_ms"]
    assert result["signals"] > 50
