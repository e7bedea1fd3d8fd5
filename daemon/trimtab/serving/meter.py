"""Measures what streams feel: totals for status, and latency over a window for rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trimtab.domain.readings import Reading
from trimtab.policy.compiled import Slo
from trimtab.serving.claims import Ledger
from trimtab.serving.requests import FinishReason
from trimtab.serving.stream import Stream
from trimtab.signals.latency import LatencyWindow

RATE_SIGNAL: Final = "throughput.tokens_per_s"


def kv_readings(ledger: Ledger, at_s: float) -> list[Reading]:
    """What the KV pool holds, as signals."""
    return [
        Reading("kv.leased", float(ledger.leased), at_s),
        Reading("kv.idle", float(ledger.idle), at_s),
        Reading("kv.stored", float(ledger.stored), at_s),
    ]


class Meter:
    """The observer of all streams. On the hot path: some microseconds for each token."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self._latency = LatencyWindow()

    def configure(self, slo: Slo) -> None:
        """Judge goodput by this policy's objectives."""
        self._latency.configure(slo.window_s, slo.ttft_p95_s, slo.tpot_p95_s)

    def serves(self, variant: str | None) -> None:
        """Another variant's figures begin afresh."""
        self._latency.switched(variant)

    def readings(self, at_s: float) -> Iterator[Reading]:
        """The latency signals of a tick."""
        yield from self._latency.readings(at_s)

    # ------------------------------------------------------------ StreamObserver

    def arrived(self, stream: Stream, at_s: float) -> None:
        """A request is in the queue."""
        self.requests += 1
        self._latency.arrived(str(stream.id), stream.arrived_s)

    def started(self, stream: Stream, at_s: float) -> None:
        """A worker has it."""
        self._latency.started(str(stream.id), at_s)

    def produced(self, stream: Stream, tokens: int, at_s: float) -> None:
        """It has new tokens."""
        self.tokens += tokens
        request, variant = str(stream.id), stream.variants[-1]
        for position in range(len(stream.generated) - tokens, len(stream.generated)):
            if position == 0:
                self._latency.first_token(request, at_s, variant)
            else:
                self._latency.token(request, at_s, variant)

    def ended(self, stream: Stream, at_s: float) -> None:
        """It is done."""
        if stream.reason is FinishReason.CANCELLED:
            self._latency.forgotten(str(stream.id))
        else:
            served = stream.reason is not None
            self._latency.finished(str(stream.id), at_s, served=served, engine=stream.engine)
