"""TTFT, ITL, TPOT, waiting and goodput from the life of requests."""

from __future__ import annotations

import pytest

from trimtab.domain.readings import Quality, Reading
from trimtab.signals.latency import EngineTimes, LatencyWindow
from trimtab.signals.registry import SIGNALS


def by_name(window: LatencyWindow, at_s: float) -> dict[str, Reading]:
    return {reading.signal: reading for reading in window.readings(at_s)}


def serve(
    window: LatencyWindow,
    request: str,
    at_s: float,
    *,
    variant: str = "int8",
    wait_s: float = 0.0,
    prefill_s: float = 0.2,
    gap_s: float = 0.02,
    tokens: int = 11,
) -> float:
    """Lets a request run; returns when it ended."""
    window.arrived(request, at_s)
    window.started(request, at_s + wait_s)
    at_s += wait_s + prefill_s
    window.first_token(request, at_s, variant)
    for _ in range(tokens - 1):
        at_s += gap_s
        window.token(request, at_s, variant)
    engine = EngineTimes(prefill_s * 0.9, gap_s * 0.8 * (tokens - 1))
    window.finished(request, at_s, engine=engine)
    return at_s


def test_a_requests_figures_are_those_that_the_client_saw() -> None:
    window = LatencyWindow()

    end_s = serve(window, "a", 100.0, wait_s=0.3, prefill_s=0.2, gap_s=0.02)
    readings = by_name(window, end_s)

    assert readings["latency.ttft_p95"].value == pytest.approx(0.5)
    assert readings["latency.tpot_p95"].value == pytest.approx(0.02)
    assert readings["latency.itl_p95"].value == pytest.approx(0.02, rel=0.051)
    assert readings["queue.wait_p95"].value == pytest.approx(0.3)


def test_the_engines_own_time_is_told_apart_from_what_the_client_waits() -> None:
    window = LatencyWindow()

    end_s = serve(window, "a", 100.0, wait_s=0.3, prefill_s=0.2, gap_s=0.02)
    readings = by_name(window, end_s)

    assert readings["latency.engine_ttft_p95"].value == pytest.approx(0.18)
    assert readings["latency.engine_tpot_p95"].value == pytest.approx(0.016)


def test_without_requests_the_latency_is_absent_and_not_zero() -> None:
    readings = by_name(LatencyWindow(), 5.0)

    assert readings["latency.ttft_p95"].quality is Quality.ABSENT
    assert readings["queue.depth"].value == 0.0
    assert readings["throughput.tokens_per_s"].value == 0.0


def test_at_a_switch_the_headline_starts_afresh_and_the_old_variant_keeps_its_own() -> None:
    window = LatencyWindow()
    window.switched("int8")
    end_s = serve(window, "a", 100.0, gap_s=0.05)

    window.switched("int4")
    switched = by_name(window, end_s)
    end_s = serve(window, "b", end_s, variant="int4", gap_s=0.01)
    served = by_name(window, end_s)

    assert switched["latency.itl_p95"].quality is Quality.ABSENT
    assert "int4" in switched["latency.itl_p95"].reason
    assert switched["latency.variant.int8.itl_p95"].value == pytest.approx(0.05, rel=0.051)
    assert served["latency.itl_p95"].value == pytest.approx(0.01, rel=0.051)
    assert served["latency.variant.int8.itl_p95"].value == pytest.approx(0.05, rel=0.051)


def test_a_request_that_crosses_a_switch_counts_for_no_variant() -> None:
    window = LatencyWindow()
    window.switched("int8")
    window.arrived("a", 0.0)
    window.first_token("a", 0.1, "int8")
    window.token("a", 0.2, "int8")
    window.switched("int4")

    window.token("a", 5.2, "int4")  # the pause of the switch
    window.token("a", 5.3, "int4")
    window.finished("a", 5.3)
    readings = by_name(window, 5.3)

    assert readings["latency.tpot_p95"].quality is Quality.ABSENT
    assert readings["latency.itl_p95"].value == pytest.approx(0.1, rel=0.051)
    assert readings["requests.slo_met"].value == 1.0


def test_goodput_counts_requests_that_met_every_objective() -> None:
    window = LatencyWindow(window_s=60.0, ttft_slo_s=0.4, tpot_slo_s=0.03)
    serve(window, "good", 0.0)
    serve(window, "late", 1.0, wait_s=0.5)
    serve(window, "slow", 2.0, gap_s=0.05)
    window.arrived("shed", 3.0)
    window.finished("shed", 3.0, served=False)
    window.arrived("gone", 3.0)
    window.forgotten("gone")

    readings = by_name(window, 60.0)

    assert readings["requests.slo_met"].value == pytest.approx(1 / 4)
    assert readings["throughput.goodput"].value == pytest.approx(1 / 60)


def test_waiting_and_silent_requests_show_before_they_have_any_figure() -> None:
    window = LatencyWindow()
    window.arrived("w1", 0.0)
    window.arrived("w2", 5.0)
    window.arrived("r", 0.0)
    window.first_token("r", 1.0, "int8")

    readings = by_name(window, 9.0)

    assert readings["queue.depth"].value == 2.0
    assert readings["queue.oldest"].value == 9.0
    assert readings["requests.running"].value == 1.0
    assert readings["requests.silent"].value == 8.0


def test_old_samples_leave_the_window() -> None:
    window = LatencyWindow(window_s=10.0)
    end_s = serve(window, "a", 0.0)

    readings = by_name(window, end_s + 11.0)

    assert readings["latency.ttft_p95"].quality is Quality.ABSENT
    assert "latency.variant.int8.ttft_p95" not in readings


def test_tokens_per_second_are_those_of_all_streams() -> None:
    window = LatencyWindow()
    window.arrived("a", 0.0)
    window.arrived("b", 0.0)
    window.first_token("a", 0.1, "int8")
    window.first_token("b", 0.1, "int8")
    for step in range(1, 400):
        window.token("ab"[step % 2], 0.1 + step * 0.025, "int8")

    assert by_name(window, 10.1)["throughput.tokens_per_s"].value == pytest.approx(40, rel=0.11)


def test_late_and_unknown_events_do_no_harm() -> None:
    window = LatencyWindow()
    window.token("never", 1.0, "int8")
    window.first_token("never", 1.0, "int8")
    window.finished("never", 1.0)
    window.forgotten("never")
    window.arrived("a", 5.0)
    window.token("a", 6.0, "int8")
    window.first_token("a", 4.0, "int8")  # a clock that was read in another order
    window.first_token("a", 9.0, "int8")

    readings = by_name(window, 9.0)

    assert readings["latency.ttft_p95"].value == 0.0


def test_requests_are_bounded_in_number() -> None:
    window = LatencyWindow()
    for number in range(10_000):
        window.arrived(str(number), 0.0)

    assert by_name(window, 1.0)["queue.depth"].value == 4096.0


def test_other_objectives_keep_the_figures_and_another_window_does_not() -> None:
    window = LatencyWindow(window_s=60.0)
    end_s = serve(window, "a", 0.0)

    window.configure(60.0, 1.0, None)
    kept = by_name(window, end_s)["latency.ttft_p95"]
    window.configure(30.0, 1.0, None)
    fresh = by_name(window, end_s)["latency.ttft_p95"]

    assert kept.value == pytest.approx(0.2)
    assert fresh.quality is Quality.ABSENT


def test_every_latency_signal_is_in_the_registry() -> None:
    window = LatencyWindow()
    end_s = serve(window, "a", 0.0)

    names = {name for name in by_name(window, end_s) if not name.startswith("latency.variant.")}

    assert names <= SIGNALS.keys()
