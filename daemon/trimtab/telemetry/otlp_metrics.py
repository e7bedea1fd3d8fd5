"""Prometheus' families as OpenTelemetry's metrics: counted once, told in two ways. No I/O.

Everything is cumulative since the daemon's start, so an export that is lost loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

# What OpenTelemetry's conventions for generative AI name otherwise than Prometheus can.
_NAMES: Final = {
    "gen_ai_server_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "gen_ai_server_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
    "gen_ai_server_request_duration_seconds": "gen_ai.server.request.duration",
}
_LABELS: Final = {"gen_ai_operation_name": "gen_ai.operation.name"}
_UNITS: Final = {
    "bytes": "By",
    "seconds": "s",
    "ratio": "1",
    "celsius": "Cel",
    "tokens": "{token}",
}
_CUMULATIVE: Final = otel.AggregationTemporality.CUMULATIVE
_NOT_KEPT: Final[dict[str, Any]] = {"min": None, "max": None}
PROVIDER: Final = {"gen_ai.provider.name": "trimtab"}

Interval: TypeAlias = tuple[int, int]
"""Begin and end, in nanoseconds since the epoch."""


def metrics_data(
    families: Iterable[Metric], resource: Resource, scope: InstrumentationScope, time: Interval
) -> otel.MetricsData:
    """All families, as an exporter takes them.

    Args:
        families: What a Prometheus registry collects.
        resource: Whose they are.
        scope: What made them.
        time: From when they count, and until when.
    """
    metrics = [_metric(family, time) for family in families if family.samples]
    scoped = otel.ScopeMetrics(scope, metrics, "")
    return otel.MetricsData([otel.ResourceMetrics(resource, [scoped], "")])


def _metric(family: Metric, time: Interval) -> otel.Metric:
    unit = _UNITS.get(family.name.rpartition("_")[2], "")
    data: otel.Histogram | otel.Sum | otel.Gauge
    match family.type:
        case "histogram":
            data = otel.Histogram(_histogram_points(family, time), _CUMULATIVE)
        case "counter":
            data = otel.Sum(_number_points(family, time), _CUMULATIVE, is_monotonic=True)
        case _:
            data = otel.Gauge(_number_points(family, time))
    name = _NAMES.get(family.name, family.name)
    return otel.Metric(name, family.documentation, unit, data)


def _attributes(family: Metric, labels: Mapping[str, str]) -> dict[str, str]:
    named = {_LABELS.get(name, name): value for name, value in labels.items()}
    return named | PROVIDER if family.name in _NAMES else named


def _number_points(family: Metric, time: Interval) -> list[otel.NumberDataPoint]:
    begun_ns, now_ns = time
    return [
        otel.NumberDataPoint(_attributes(family, one.labels), begun_ns, now_ns, float(one.value))
        for one in family.samples
    ]


def _histogram_points(family: Metric, time: Interval) -> list[otel.HistogramDataPoint]:
    """Prometheus' buckets count all that is smaller; OpenTelemetry's each count their own."""
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        series.setdefault(tuple(labels.items()), []).append(sample)
    return [_histogram_point(family, dict(labels), one, time) for labels, one in series.items()]


def _histogram_point(
    family: Metric, labels: Mapping[str, str], samples: list[Sample], time: Interval
) -> otel.HistogramDataPoint:
    buckets = {
        float(one.labels["le"]): int(one.value) for one in samples if one.name.endswith("_bucket")
    }
    total_s = next((one.value for one in samples if one.name.endswith("_sum")), 0.0)
    bounds = sorted(buckets)
    counts = [0, *(buckets[bound] for bound in bounds)]
    return otel.HistogramDataPoint(
        attributes=_attributes(family, labels),
        start_time_unix_nano=time[0],
        time_unix_nano=time[1],
        count=counts[-1],
        sum=total_s,
        bucket_counts=[upto - below for below, upto in pairwise(counts)],
        explicit_bounds=bounds[:-1],  # the last one is infinity, which isn't told
        **_NOT_KEPT,
    )
