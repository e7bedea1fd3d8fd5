"""`trimtab bench api` on the tiny model, for seconds instead of minutes."""

from __future__ import annotations

from pathlib import Path

from trimtab.bench.api import growth, measure
from trimtab.catalog.load import load_catalog

TESTS = Path(__file__).parent.parent


async def test_a_short_soak_serves_everybody_and_has_its_fields() -> None:
    model = load_catalog([TESTS]).model("tiny")
    result = await measure(model, [TESTS], soak_s=5)

    assert result["streams"] > 5
    assert result["streams_broken"] == 0
    assert result["clients_left"] > 2
    assert 0 < result["status_p50_ms"] <= result["status_p99_ms"]
    assert result["request_added_ms_p50"] > 0
    assert {"rss_growth_mb", "fd_growth"} <= set(result)


def test_growth_leaves_out_the_warm_up() -> None:
    warming = [*range(0, 100, 5), *[100] * 80]
    leaking = list(range(100))

    assert growth(warming) == 0
    assert growth(leaking) == 60
