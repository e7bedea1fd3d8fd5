"""Prometheus metrics: counted once a request or once a tick, never once a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
_TPOT_S: Final = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)
_DURATION_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What is counted of one request, once it has ended.

    Attributes:
        operation: ``chat`` or ``text_completion``, as OpenTelemetry names them.
        outcome: The finish reason, or the code of the error.
        variant: The variant that served the last token; empty if none did.
        duration_s: From its arrival to its end.
        ttft_s: To the first token; None if there was none.
        prompt_tokens: Length of the prompt.
        completion_tokens: Tokens generated.
        cached_tokens: Of the prompt, those that needed no prefill.
        model: As the client wrote it.
        failed: It ended with an error.
        traceparent: The client's trace that it belongs to, as in W3C's header; may be empty.
        disclosed: The operating point that served it, by name; empty if none did.
    """

    operation: str
    outcome: str
    variant: str
    duration_s: float
    ttft_s: float | None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    model: str = ""
    failed: bool = False
    traceparent: str = ""
    disclosed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None for fewer than two tokens."""
        if self.ttft_s is None or self.completion_tokens < 2:
            return None
        return (self.duration_s - self.ttft_s) / (self.completion_tokens - 1)


class Metrics:
    """The registry of one daemon.

    Args:
        process: Add the process's own figures (memory, CPU, descriptors).
    """

    def __init__(self, *, process: bool = True) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        self._tell: Callable[[RequestFigures], None] | None = None
        if process:
            ProcessCollector(registry=self._registry)
        self._ttft = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Request received to first token.",
            ("gen_ai_operation_name", "variant"),
            buckets=_TTFT_S,
            registry=self._registry,
        )
        self._tpot = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time of a token after the first, one observation a request.",
            ("gen_ai_operation_name", "variant"),
            buckets=_TPOT_S,
            registry=self._registry,
        )
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "Request received to its end.",
            ("gen_ai_operation_name", "outcome"),
            buckets=_DURATION_S,
            registry=self._registry,
        )
        self._tokens = Counter(
            "trimtab_request_tokens",
            "Tokens of requests that have ended.",
            ("kind", "variant"),
            registry=self._registry,
        )
        self._decisions = Counter(
            "trimtab_decisions",
            "Decisions made.",
            ("direction",),
            registry=self._registry,
        )
        self._http = Counter(
            "trimtab_api_responses",
            "Answers of the API.",
            ("socket", "status"),
            registry=self._registry,
        )

    def request_ended(self, figures: RequestFigures) -> None:
        """Count a request."""
        labels = (figures.operation, figures.variant)
        if figures.ttft_s is not None:
            self._ttft.labels(*labels).observe(figures.ttft_s)
        tpot_s = figures.tpot_s
        if tpot_s is not None:
            self._tpot.labels(*labels).observe(tpot_s)
        self._duration.labels(figures.operation, figures.outcome).observe(figures.duration_s)
        self._tokens.labels("prompt", figures.variant).inc(figures.prompt_tokens)
        self._tokens.labels("completion", figures.variant).inc(figures.completion_tokens)
        if self._tell is not None:
            self._tell(figures)

    def tell(self, each_request: Callable[[RequestFigures], None]) -> None:
        """Have somebody told of each request that has ended."""
        self._tell = each_request

    def decision_made(self, direction: str) -> None:
        """Count a decision."""
        self._decisions.labels(direction).inc()

    def answered(self, socket: str, status: int) -> None:
        """Count an HTTP answer."""
        self._http.labels(socket, str(status)).inc()

    def add(self, collector: Collector) -> None:
        """Add figures that are read when somebody asks."""
        self._registry.register(collector)

    def collect(self) -> Iterable[Metric]:
        """Everything, as Prometheus' client has it."""
        return self._registry.collect()

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)
