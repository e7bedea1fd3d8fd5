"""A span for each request, made when it has ended. Never with text of anybody's.

Names are those of OpenTelemetry's conventions for generative AI where there are any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trimtab.telemetry.metrics import RequestFigures
from trimtab.telemetry.otlp_metrics import PROVIDER


class RequestSpans(SpanProcessor):
    """Makes spans; the SDK gives them back one by one as they end.

    Args:
        resource: Whose they are.
        scope: What makes them.
    """

    def __init__(self, resource: Resource, scope: InstrumentationScope) -> None:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self)
        self._tracer = provider.get_tracer(scope.name, scope.version)
        self._parents = TraceContextTextMapPropagator()
        self._ended: list[ReadableSpan] = []

    def spans(self, requests: Iterable[tuple[RequestFigures, float]]) -> list[ReadableSpan]:
        """The spans of requests.

        Args:
            requests: What is known of each, and when it ended in seconds since the epoch.
        """
        for figures, ended_s in requests:
            self._make(figures, ended_s)
        made, self._ended = self._ended, []
        return made

    def on_end(self, span: ReadableSpan) -> None:
        """Keep it."""
        self._ended.append(span)

    def _make(self, figures: RequestFigures, wall_s: float) -> None:
        begun_s = wall_s - figures.duration_s
        span = self._tracer.start_span(
            f"{figures.operation} {figures.model}",
            self._parents.extract({"traceparent": figures.traceparent}),
            SpanKind.SERVER,
            _attributes(figures),
            start_time=_nanoseconds(begun_s),
        )
        if figures.ttft_s is not None:
            span.add_event("first token", timestamp=_nanoseconds(begun_s + figures.ttft_s))
        if figures.failed:
            span.set_attribute("error.type", figures.outcome)
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(wall_s))


def _attributes(figures: RequestFigures) -> dict[str, Any]:
    told: dict[str, Any] = {
        **PROVIDER,
        "gen_ai.operation.name": figures.operation,
        "gen_ai.request.model": figures.model,
        "gen_ai.response.finish_reasons": (figures.outcome,),
        "gen_ai.usage.input_tokens": figures.prompt_tokens,
        "gen_ai.usage.output_tokens": figures.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": figures.cached_tokens,
    }
    return told | {f"trimtab.{name}": value for name, value in figures.disclosed.items()}


def _nanoseconds(wall_s: float) -> int:
    return round(wall_s * 1e9)
