"""The daemon's state as Prometheus metrics, read when somebody asks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trimtab.serving.control import Control, SignalView, StatusView

STATES: Final = ("ready", "loading", "parked", "no_model", "degraded", "draining")

_UNIT_NAMES: Final[dict[str, str]] = {
    "bytes/s": "bytes_per_second",
    "celsius/s": "celsius_per_second",
    "1/s": "per_second",
    "tokens/s": "tokens_per_second",
}


class StatusCollector(Collector):
    """State, operating point, streams, workers and signals.

    Args:
        control: The daemon.
    """

    def __init__(self, control: Control) -> None:
        self._control = control

    def describe(self) -> Iterator[Metric]:
        """Nothing up front: names depend on the machine's signals."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All of it, as of the last tick."""
        status = self._control.status()
        yield from _state(status)
        yield from _counts(status)
        yield from _workers(status)
        yield from _signals(self._control.signals())


def _state(status: StatusView) -> Iterator[Metric]:
    states = GaugeMetricFamily("trimtab_state", "1 for the state it is in.", labels=["state"])
    for state in STATES:
        states.add_metric([state], float(state == status.state))
    yield states
    point = GaugeMetricFamily(
        "trimtab_point_info",
        "The operating point in force.",
        labels=["variant", "speculation", "kv_placement"],
    )
    now = status.point
    point.add_metric([now.variant or "", now.speculation, now.kv_placement], 1)
    yield point
    policy = GaugeMetricFamily(
        "trimtab_policy_info", "The policy in force.", labels=["name", "revision"]
    )
    policy.add_metric([status.policy.name, status.policy.revision], 1)
    yield policy
    for name, told, value in (
        ("trimtab_ready", "1 if tokens can flow.", status.tokens_can_flow),
        ("trimtab_point_context_tokens", "Effective context.", now.context),
        ("trimtab_point_threads", "Engine threads.", now.threads),
        ("trimtab_point_pace_ratio", "Share of time that the engine may run.", now.pace_ratio),
        (
            "trimtab_policy_stale",
            "1 if its file is bad and an older one holds.",
            status.policy.stale,
        ),
        ("trimtab_paused", "1 if a person has stopped steps.", status.paused),
        ("trimtab_pinned_knobs", "Knobs that a person has fixed.", len(status.pinned)),
        ("trimtab_uptime_seconds", "Since the start.", status.uptime_s),
    ):
        yield GaugeMetricFamily(name, told, value=float(value))


def _counts(status: StatusView) -> Iterator[Metric]:
    for name, told, value in (
        ("trimtab_streams_running", "Answers that are generated now.", status.running),
        ("trimtab_streams_waiting_turn", "Of those, paused by the schedule.", status.waiting_turn),
        ("trimtab_queue_depth", "Requests that wait.", status.queued),
        ("trimtab_streams_held", "Answers that wait for a switch.", status.held),
        ("trimtab_tokens_per_second", "Tokens generated a second.", status.tokens_per_s),
    ):
        yield GaugeMetricFamily(name, told, value=float(value))
    for name, told, value in (
        ("trimtab_tokens", "Tokens generated.", status.tokens_total),
        ("trimtab_requests", "Requests taken.", status.requests_total),
        ("trimtab_requests_shed", "Requests that the schedule refused.", status.shed_total),
        (
            "trimtab_kv_gave_way",
            "Times that a conversation waited for room, and its KV was computed again.",
            status.gave_way_total,
        ),
        ("trimtab_switches", "Variant switches.", status.switches_total),
        (
            "trimtab_window_shifts",
            "Times that a conversation went on past its context.",
            status.window.shifts_total,
        ),
        (
            "trimtab_window_dropped_tokens",
            "Tokens that were forgotten by that.",
            status.window.dropped_tokens_total,
        ),
        ("trimtab_worker_restarts", "Workers started again after a fault.", status.restarts_total),
    ):
        yield CounterMetricFamily(name, told, value=float(value))


def _workers(status: StatusView) -> Iterator[Metric]:
    resident = GaugeMetricFamily(
        "trimtab_worker_resident_bytes",
        "Resident memory of a worker.",
        labels=["variant", "state"],
    )
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for worker in status.workers:
        totals[worker.variant, worker.state] += worker.resident_bytes or 0
    for (variant, state), value in totals.items():
        resident.add_metric([variant, state], float(value))
    yield resident


def _signals(signals: Sequence[SignalView]) -> Iterator[Metric]:
    by_unit: dict[str, GaugeMetricFamily] = {}
    usable = GaugeMetricFamily(
        "trimtab_signal_usable", "1 if rules may decide on the signal.", labels=["signal"]
    )
    for signal in signals:
        usable.add_metric([signal.name], float(signal.quality == "good"))
        if signal.value is None:
            continue
        unit = _UNIT_NAMES.get(signal.unit, signal.unit)
        family = by_unit.setdefault(
            unit,
            GaugeMetricFamily(f"trimtab_signal_{unit}", f"Signals in {unit}.", labels=["signal"]),
        )
        family.add_metric([signal.name], signal.value)
    yield usable
    yield from by_unit.values()
