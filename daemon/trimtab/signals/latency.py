"""What requests feel: first token, gaps, waiting, throughput and goodput, over a window.

Fed with the life of each request as it happens; asked for readings once a tick. Times are measured
where the client sees them (arrival, tokens going out); what the engine itself reports is kept
apart, so that waiting and our own overhead can be told from computing.

A variant's figures say nothing about another one. The headline signals are those of the variant
that serves now and start afresh when it changes, and a request that has crossed a change counts
for no variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.signals.estimators import Window
from trimtab.signals.histogram import SlidingHistogram

_P95: Final = 0.95
_MOST_REQUESTS: Final = 4096
_RATE_SPAN_S: Final = 10.0
VARIANT_PREFIX: Final = "latency.variant."


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """What a worker computed for one request, waiting and sending left out.

    Attributes:
        prefill_s: Until its first token.
        decode_s: For all further ones.
    """

    prefill_s: float
    decode_s: float


@dataclass(slots=True)
class _Request:
    """A request that hasn't ended."""

    arrived_s: float
    started_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    variant: str | None = None
    crossed: bool = False  # it was served by more than one variant


@dataclass(slots=True)
class _VariantFigures:
    """The figures of one variant."""

    window_s: float
    ttft: Window = field(init=False)
    tpot: Window = field(init=False)
    engine_ttft: Window = field(init=False)
    engine_tpot: Window = field(init=False)
    itl: SlidingHistogram = field(init=False)

    def __post_init__(self) -> None:
        self.ttft = Window(self.window_s)
        self.tpot = Window(self.window_s)
        self.engine_ttft = Window(self.window_s)
        self.engine_tpot = Window(self.window_s)
        self.itl = SlidingHistogram(self.window_s)

    def p95s(self, at_s: float) -> Iterator[tuple[str, float | None]]:
        """Each figure's p95 by its short name."""
        for name, window in (
            ("ttft_p95", self.ttft),
            ("tpot_p95", self.tpot),
            ("engine_ttft_p95", self.engine_ttft),
            ("engine_tpot_p95", self.engine_tpot),
        ):
            window.forget(at_s)
            yield name, window.quantile(_P95)
        self.itl.forget(at_s)
        yield "itl_p95", self.itl.quantile(_P95)


class LatencyWindow:
    """Collects the life of requests and yields latency readings.

    Every call is O(1) amortised but `readings`, which is called once a tick. Unknown and ended
    requests are ignored, so that late events do no harm.

    Args:
        window_s: How far the figures look back.
        ttft_slo_s: A request's first token must come within this to count for goodput; None: any.
        tpot_slo_s: And its mean time per token afterwards must be within this; None: any.
    """

    def __init__(
        self,
        window_s: float = 60.0,
        ttft_slo_s: float | None = None,
        tpot_slo_s: float | None = None,
    ) -> None:
        self._requests: dict[str, _Request] = {}
        self._variant: str | None = None
        self.configure(window_s, ttft_slo_s, tpot_slo_s)

    def configure(
        self, window_s: float, ttft_slo_s: float | None, tpot_slo_s: float | None
    ) -> None:
        """Takes over a policy's objectives; another window starts all figures afresh."""
        self._ttft_slo_s = ttft_slo_s
        self._tpot_slo_s = tpot_slo_s
        if getattr(self, "_window_s", None) == window_s:
            return
        self._window_s = window_s
        self._figures: dict[str, _VariantFigures] = {}
        self._wait = Window(window_s)
        self._met = Window(window_s, most=_MOST_REQUESTS)  # 1 for each request that met its SLOs
        self._tokens = SlidingHistogram(_RATE_SPAN_S, slices=10)
        self._begun_s: float | None = None

    def arrived(self, request: str, at_s: float) -> None:
        """A request has been received."""
        if len(self._requests) < _MOST_REQUESTS:
            self._requests[request] = _Request(at_s)
            if self._begun_s is None:
                self._begun_s = at_s

    def started(self, request: str, at_s: float) -> None:
        """It has left the queue: a worker has begun on it."""
        state = self._requests.get(request)
        if state is not None and state.started_s is None:
            state.started_s = at_s
            self._wait.add(at_s, max(0.0, at_s - state.arrived_s))

    def first_token(self, request: str, at_s: float, variant: str) -> None:
        """Its first token has gone out to the client, made by this variant."""
        state = self._requests.get(request)
        if state is None or state.first_s is not None:
            return
        self.started(request, at_s)
        state.first_s = state.last_s = at_s
        state.variant = variant
        state.tokens = 1
        self._tokens.add(at_s, 1.0)
        self._of(variant).ttft.add(at_s, max(0.0, at_s - state.arrived_s))

    def token(self, request: str, at_s: float, variant: str) -> None:
        """Another token has gone out to the client, made by this variant."""
        state = self._requests.get(request)
        if state is None or state.last_s is None:
            return
        gap_s = max(0.0, at_s - state.last_s)
        state.last_s = at_s
        state.tokens += 1
        self._tokens.add(at_s, 1.0)
        if variant != state.variant:  # this gap holds the switch, and belongs to neither
            state.crossed = True
            state.variant = variant
            return
        self._of(variant).itl.add(at_s, gap_s)

    def finished(
        self,
        request: str,
        at_s: float,
        *,
        served: bool = True,
        engine: EngineTimes | None = None,
    ) -> None:
        """It has ended.

        Args:
            request: Its id.
            at_s: When.
            served: False if it was refused, failed or cancelled by us: its SLOs are missed. One
                that the client gave up is told by `forgotten` instead.
            engine: What the worker says that it computed; None if it said nothing.
        """
        state = self._requests.pop(request, None)
        if state is None:
            return
        tpot_s = _tpot(state)
        if served and not state.crossed and state.variant is not None:
            self._count(self._of(state.variant), state, at_s, engine)
        self._met.add(at_s, float(served and self._meets(state, tpot_s)))

    def _count(
        self, figures: _VariantFigures, state: _Request, at_s: float, engine: EngineTimes | None
    ) -> None:
        """Adds an ended request that one variant served from beginning to end."""
        tpot_s = _tpot(state)
        if tpot_s is not None:
            figures.tpot.add(at_s, tpot_s)
        if engine is None:
            return
        figures.engine_ttft.add(at_s, engine.prefill_s)
        if state.tokens > 1:
            figures.engine_tpot.add(at_s, engine.decode_s / (state.tokens - 1))

    def forgotten(self, request: str) -> None:
        """The client went away; the request counts for nothing."""
        self._requests.pop(request, None)

    def switched(self, variant: str | None) -> None:
        """Another variant serves from now on; its figures and the queue's start afresh."""
        if variant == self._variant:
            return
        self._variant = variant
        if variant is not None:
            self._figures.pop(variant, None)
        self._wait.clear()

    def _meets(self, state: _Request, tpot_s: float | None) -> bool:
        if state.first_s is None:
            return False
        ttft_ok = self._ttft_slo_s is None or state.first_s - state.arrived_s <= self._ttft_slo_s
        return ttft_ok and (self._tpot_slo_s is None or (tpot_s or 0.0) <= self._tpot_slo_s)

    def _of(self, variant: str) -> _VariantFigures:
        if self._variant is None:
            self._variant = variant
        figures = self._figures.get(variant)
        if figures is None:
            figures = self._figures[variant] = _VariantFigures(self._window_s)
        return figures

    def readings(self, at_s: float) -> list[Reading]:
        """All latency signals at a tick."""
        readings = self._headline(at_s)
        for variant, figures in list(self._figures.items()):
            empty = True
            for name, value in figures.p95s(at_s):
                if value is not None:
                    empty = False
                    readings.append(Reading(f"{VARIANT_PREFIX}{variant}.{name}", value, at_s))
            if empty:
                del self._figures[variant]
        return readings + self._load(at_s)

    def _headline(self, at_s: float) -> list[Reading]:
        """The figures of the variant that serves now."""
        variant = self._variant
        figures = self._figures.get(variant) if variant is not None else None
        figures = figures or _VariantFigures(self._window_s)
        self._wait.forget(at_s)
        named = [(f"latency.{name}", value) for name, value in figures.p95s(at_s)]
        named.append(("queue.wait_p95", self._wait.quantile(_P95)))
        reason = f"nothing in the last {self._window_s:g} s"
        if variant is not None:
            reason += f" on {variant}"
        return [
            Reading(signal, value, at_s)
            if value is not None
            else Reading(signal, None, at_s, Quality.ABSENT, reason)
            for signal, value in named
        ]

    def _load(self, at_s: float) -> list[Reading]:
        """Counts and rates, which no variant owns."""
        waiting = [r for r in self._requests.values() if r.started_s is None]
        silent = [at_s - r.last_s for r in self._requests.values() if r.last_s is not None]
        oldest_s = max((at_s - r.arrived_s for r in waiting), default=0.0)
        self._met.forget(at_s)
        self._tokens.forget(at_s)
        met = self._met.values()
        share = (
            Reading("requests.slo_met", sum(met) / len(met), at_s)
            if met
            else Reading("requests.slo_met", None, at_s, Quality.ABSENT, "no request has ended")
        )
        return [
            Reading("queue.depth", float(len(waiting)), at_s),
            Reading("queue.oldest", max(0.0, oldest_s), at_s),
            Reading("requests.running", float(len(self._requests) - len(waiting)), at_s),
            Reading("requests.silent", max(0.0, max(silent, default=0.0)), at_s),
            Reading(
                "throughput.tokens_per_s",
                self._tokens.count / self._span(at_s, _RATE_SPAN_S),
                at_s,
            ),
            Reading("throughput.goodput", sum(met) / self._span(at_s, self._window_s), at_s),
            share,
        ]

    def _span(self, at_s: float, longest_s: float) -> float:
        """The time that a rate is taken over: the window, or less while it is young."""
        if self._begun_s is None:
            return longest_s
        return min(longest_s, max(1.0, at_s - self._begun_s))


def _tpot(state: _Request) -> float | None:
    """Mean time per token after the first; None with fewer than two tokens."""
    if state.first_s is None or state.last_s is None or state.tokens < 2:
        return None
    return (state.last_s - state.first_s) / (state.tokens - 1)
