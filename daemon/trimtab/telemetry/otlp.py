"""Metrics and a span for each request, sent to an OpenTelemetry collector (OTLP over HTTP).

Imported only where a collector is configured. What the collector does never reaches serving: a
thread of its own makes what is sent and sends it, and while it is at it or the collector is away,
nothing waits: a request only leaves its figures in a queue with a bound.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Protocol

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric

from trimtab import __version__
from trimtab.config.schema import OtlpConfig
from trimtab.domain.clock import Clock
from trimtab.telemetry.metrics import Metrics, RequestFigures
from trimtab.telemetry.otlp_metrics import metrics_data
from trimtab.telemetry.otlp_spans import RequestSpans

SEND_S: Final = 5.0
LAST_SEND_S: Final = 2.0
_NANOSECONDS: Final = 1_000_000_000


MOST_REQUESTS: Final = 1024
"""Requests that wait to be told; older ones are let go."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes out at once.

    Attributes:
        families: All metrics.
        at_s: When they were so, in seconds since the epoch.
        requests: Those that have ended since the last batch, each with when.
    """

    families: list[Metric]
    at_s: float
    requests: list[tuple[RequestFigures, float]]


class Exporter(Protocol):
    """Where batches go. May block; called by one thread."""

    def send(self, batch: Batch) -> str:
        """Send it: empty, or why it couldn't be."""


class OtlpExporter:
    """A collector.

    Args:
        endpoint: Its base URL.
        begun_s: Since when metrics count, in seconds since the epoch.
    """

    def __init__(self, endpoint: str, begun_s: float) -> None:
        base = endpoint.rstrip("/")
        self._begun_ns = round(begun_s * _NANOSECONDS)
        self._resource = Resource.create(
            {"service.name": "trimtab", "service.version": __version__}
        )
        self._scope = InstrumentationScope("trimtab", __version__)
        self._made = RequestSpans(self._resource, self._scope)
        self._last_words = _LastWords()
        self._metrics = OTLPMetricExporter(f"{base}/v1/metrics", timeout=SEND_S)
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=SEND_S)

    def send(self, batch: Batch) -> str:
        """Send it; the SDK tries again by itself within `SEND_S`."""
        self._last_words.text = ""
        time = (self._begun_ns, round(batch.at_s * _NANOSECONDS))
        told = metrics_data(batch.families, self._resource, self._scope, time)
        sent = self._metrics.export(told) is MetricExportResult.SUCCESS
        spans = self._made.spans(batch.requests)
        if sent and spans:
            sent = self._spans.export(spans) is SpanExportResult.SUCCESS
        return "" if sent else self._last_words.text or "the collector doesn't take it"


class _LastWords(logging.Handler):
    """Keeps what the SDK complains about, which otherwise is a line on stderr each time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        sdk = logging.getLogger("opentelemetry")
        sdk.propagate = False
        sdk.handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.text = " ".join(record.getMessage().split())[:300]


@dataclass(slots=True)
class _Sending:
    """The thread that sends, and what it was given and has to say."""

    exporter: Exporter
    batches: SimpleQueue[Batch | None] = field(default_factory=SimpleQueue)
    outcomes: SimpleQueue[str] = field(default_factory=SimpleQueue)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while (batch := self.batches.get()) is not None:
            try:
                self.outcomes.put(self.exporter.send(batch))
            except Exception as error:  # the thread must outlive what nobody foresaw
                self.outcomes.put(repr(error))
        self.ended.set()


class OtlpExport:
    """Sends what the metrics hold, again and again.

    Args:
        config: How often, and whether with spans.
        exporter: Where to.
        metrics: What is sent.
        clock: Time.
        log: A structlog logger.
    """

    def __init__(
        self, config: OtlpConfig, exporter: Exporter, metrics: Metrics, clock: Clock, log: Any
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._requests: deque[tuple[RequestFigures, float]] = deque(maxlen=MOST_REQUESTS)
        self._failing = False
        self._under_way = 0
        self._sending = _Sending(exporter)
        threading.Thread(target=self._sending.run, name="trimtab-otlp", daemon=True).start()
        if config.spans:
            metrics.tell(self._request_ended)

    async def run(self) -> None:
        """Export each period until cancelled."""
        while True:
            await self._clock.sleep(self._config.period_s)
            self._look_back()
            if not self._under_way:
                self._offer()

    async def close(self) -> None:
        """Send the rest, if the collector takes it in a moment."""
        self._offer()
        self._sending.batches.put(None)
        waited_s = 0.0
        while waited_s < LAST_SEND_S and not self._sending.ended.is_set():
            await self._clock.sleep(0.02)
            waited_s += 0.02
        self._look_back()

    def _request_ended(self, figures: RequestFigures) -> None:
        self._requests.append((figures, self._clock.wall_s()))

    def _offer(self) -> None:
        """Hand a batch to the thread."""
        families, requests = list(self._metrics.collect()), list(self._requests)
        self._requests.clear()
        self._sending.batches.put(Batch(families, self._clock.wall_s(), requests))
        self._under_way += 1

    def _look_back(self) -> None:
        """Say once when exports fail, and once when they go through again."""
        while not self._sending.outcomes.empty():
            self._heard(self._sending.outcomes.get())
            self._under_way -= 1

    def _heard(self, fault: str) -> None:
        if fault and not self._failing:
            self._log.warning("otlp_failed", endpoint=self._config.endpoint, reason=fault)
        elif self._failing and not fault:
            self._log.info("otlp_goes_through_again", endpoint=self._config.endpoint)
        self._failing = bool(fault)


def begin(config: OtlpConfig, metrics: Metrics, clock: Clock, log: Any) -> OtlpExport:
    """An export to the configured collector."""
    exporter = OtlpExporter(config.endpoint or "", clock.wall_s())
    return OtlpExport(config, exporter, metrics, clock, log)
