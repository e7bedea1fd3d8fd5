"""The export to an OpenTelemetry collector: a real receiver on loopback, and misbehaving ones."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from real_daemon import RealDaemon
from trimtab.config.schema import OtlpConfig
from trimtab.telemetry.metrics import Metrics, RequestFigures
from trimtab.telemetry.otlp import LAST_SEND_S, MOST_REQUESTS, OtlpExport, begin

TRACE = "0af7651916cd43dd8448eb211c80319c"
FIGURES = RequestFigures(
    operation="chat",
    outcome="stop",
    variant="int8",
    duration_s=1.0,
    ttft_s=0.25,
    prompt_tokens=7,
    completion_tokens=4,
    cached_tokens=3,
    model="tiny",
    traceparent=f"00-{TRACE}-b7ad6b7169203331-01",
    disclosed={"variant": "int8", "variants": ("fp32", "int8"), "switches": 1, "context": 2048},
)


class Collector(http.server.ThreadingHTTPServer):
    """Takes what is sent, and answers as the test says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.metrics: list[Any] = []
        self.traces: list[Any] = []
        self.status = 200
        self.asked = 0
        self.silent = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Any]:
        return [
            span
            for one in self.traces
            for resource in one.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def last(self) -> dict[str, Any]:
        """The metrics of the last export by name."""
        (resource,) = self.metrics[-1].resource_metrics
        return {one.name: one for scope in resource.scope_metrics for one in scope.metrics}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.asked += 1
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.server.silent.is_set():
            time.sleep(30)
            return
        if self.server.status == 200:
            if self.path == "/v1/metrics":
                self.server.metrics.append(ExportMetricsServiceRequest.FromString(body))
            else:
                self.server.traces.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *told: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.shutdown()
    running.server_close()


class QuickClock:
    """Real time, but nobody sleeps longer than a moment."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return 1_764_000_000.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.02))


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(event)

    info = warning


@asynccontextmanager
async def exporting(endpoint: str, metrics: Metrics, log: Log) -> AsyncIterator[OtlpExport]:
    export = begin(OtlpConfig(endpoint=endpoint), metrics, QuickClock(), log)
    task = asyncio.ensure_future(export.run())
    try:
        yield export
    finally:
        task.cancel()


async def until(happened: Any) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.01)


def attributes(found: Any) -> dict[str, Any]:
    told = {}
    for one in found.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        told[one.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return told


async def test_metrics_arrive_under_the_names_of_the_conventions(collector: Collector) -> None:
    metrics = Metrics(process=False)
    metrics.request_ended(FIGURES)
    metrics.request_ended(FIGURES)
    async with exporting(collector.endpoint, metrics, Log()):
        await until(lambda: collector.metrics)

    told = collector.last()
    (ttft,) = told["gen_ai.server.time_to_first_token"].histogram.data_points
    (tokens,) = [
        one
        for one in told["trimtab_request_tokens"].sum.data_points
        if attributes(one)["kind"] == "completion"
    ]
    resource = collector.metrics[-1].resource_metrics[0].resource
    assert attributes(resource)["service.name"] == "trimtab"
    assert told["gen_ai.server.time_to_first_token"].unit == "s"
    assert attributes(ttft) == {
        "gen_ai.operation.name": "chat",
        "variant": "int8",
        "gen_ai.provider.name": "trimtab",
    }
    assert (ttft.count, ttft.sum) == (2, 0.5)
    assert len(ttft.bucket_counts) == len(ttft.explicit_bounds) + 1
    assert sum(ttft.bucket_counts) == 2
    assert ttft.bucket_counts[list(ttft.explicit_bounds).index(0.3)] == 2
    assert told["gen_ai.server.time_to_first_token"].histogram.aggregation_temporality == 2
    assert (tokens.as_double, told["trimtab_request_tokens"].sum.is_monotonic) == (8.0, True)


async def test_a_request_is_a_span_in_its_clients_trace(collector: Collector) -> None:
    metrics = Metrics(process=False)
    async with exporting(collector.endpoint, metrics, Log()):
        metrics.request_ended(FIGURES)
        await until(lambda: collector.traces)

    (span,) = collector.spans()
    told = attributes(span)
    assert span.name == "chat tiny"
    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == "b7ad6b7169203331"
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1_000_000_000
    first_ns = span.events[0].time_unix_nano - span.start_time_unix_nano
    assert first_ns == pytest.approx(250_000_000, rel=1e-3)
    assert told["gen_ai.usage.input_tokens"] == 7
    assert told["gen_ai.usage.output_tokens"] == 4
    assert told["gen_ai.response.finish_reasons"] == ["stop"]
    assert told["trimtab.variants"] == ["fp32", "int8"]
    assert span.status.code == 0


async def test_a_failed_request_is_an_error_and_a_bad_traceparent_begins_a_trace(
    collector: Collector,
) -> None:
    metrics = Metrics(process=False)
    async with exporting(collector.endpoint, metrics, Log()):
        metrics.request_ended(
            RequestFigures(
                "chat", "queue_full", "", 0.1, None, failed=True, traceparent="00-\x00-zz"
            )
        )
        await until(lambda: collector.traces)

    (span,) = collector.spans()
    assert span.parent_span_id == b""
    assert attributes(span)["error.type"] == "queue_full"
    assert span.status.code == 2


async def test_without_spans_there_are_only_metrics(collector: Collector) -> None:
    metrics = Metrics(process=False)
    config = OtlpConfig(endpoint=collector.endpoint, spans=False)
    export = begin(config, metrics, QuickClock(), Log())
    metrics.request_ended(FIGURES)
    await export.close()

    assert len(collector.metrics) == 1
    assert collector.traces == []


async def test_a_collector_that_refuses_is_told_once_and_nothing_waits(
    collector: Collector,
) -> None:
    collector.status = 400
    log, metrics = Log(), Metrics(process=False)
    async with exporting(collector.endpoint, metrics, log):
        await until(lambda: collector.asked >= 5)
        failing = list(log.lines)
        collector.status = 200
        await until(lambda: len(log.lines) == 2)

    assert failing == ["otlp_failed"]
    assert log.lines[1] == "otlp_goes_through_again"


async def test_a_collector_that_isnt_there_is_told_once(
    collector: Collector, capfd: pytest.CaptureFixture[str]
) -> None:
    log = Log()
    endpoint = collector.endpoint
    collector.shutdown()
    collector.server_close()
    async with exporting(endpoint, Metrics(process=False), log):
        await until(lambda: log.lines)

    assert log.lines == ["otlp_failed"]
    assert capfd.readouterr().err == ""


async def test_a_collector_that_says_nothing_holds_up_neither_serving_nor_the_end(
    collector: Collector,
) -> None:
    collector.silent.set()
    metrics = Metrics(process=False)
    async with exporting(collector.endpoint, metrics, Log()) as export:
        await until(lambda: collector.asked)
        begun_s = time.perf_counter()
        for _ in range(5000):
            metrics.request_ended(FIGURES)
        counted_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        await export.close()
        closed_s = time.perf_counter() - begun_s

    assert counted_s < 3
    assert closed_s < LAST_SEND_S + 1


async def test_requests_that_wait_are_bounded_and_the_newest_are_told(
    collector: Collector,
) -> None:
    metrics = Metrics(process=False)
    export = begin(OtlpConfig(endpoint=collector.endpoint), metrics, QuickClock(), Log())
    for number in range(MOST_REQUESTS + 10):
        metrics.request_ended(replace(FIGURES, completion_tokens=number))
    await export.close()

    told = [attributes(span)["gen_ai.usage.output_tokens"] for span in collector.spans()]
    assert told == list(range(10, MOST_REQUESTS + 10))


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("127.0.0.1:4318", "must be a URL"),
        ("ftp://somewhere", "must be a URL"),
        ("http://me:secret@collector:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
    ],
)
def test_an_endpoint_that_cant_be_is_refused(endpoint: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OtlpConfig(endpoint=endpoint)


def test_without_a_collector_nothing_of_opentelemetry_is_imported() -> None:
    code = "import sys, trimtab.app; print([n for n in sys.modules if n.startswith('opentel')])"

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout == "[]\n"


def test_the_daemon_exports_what_it_serves(tmp_path: Path, collector: Collector) -> None:
    daemon = RealDaemon(tmp_path, OTLP_ENDPOINT=collector.endpoint, OTLP_PERIOD="60s").start()
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(daemon.sockets / "inference.sock")),
        base_url="http://trimtab",
        timeout=20,
    ) as client:
        answer = client.post(
            "/v1/chat/completions",
            json={
                "model": "tiny",
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 4,
            },
            headers={"traceparent": FIGURES.traceparent},
        )
    daemon.end()

    (span,) = collector.spans()
    assert answer.status_code == 200
    assert span.trace_id.hex() == TRACE
    assert attributes(span)["gen_ai.usage.output_tokens"] == 4
    assert attributes(span)["trimtab.variant"] == answer.json()["trimtab"]["variant"]
    assert collector.last()["trimtab_requests"].sum.data_points[0].as_double == 1


def test_without_the_extra_the_daemon_serves_and_says_what_is_missing(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "opentelemetry"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ImportError('there is no opentelemetry')\n")
    daemon = RealDaemon(tmp_path, OTLP_ENDPOINT="http://127.0.0.1:9")
    daemon.environ["PYTHONPATH"] = str(missing.parent)

    daemon.start()
    status, said = daemon.end()

    assert status == 0
    assert "otlp_not_installed" in said
    assert "pip install 'trimtab[otel]'" in said
    assert "Traceback" not in said
