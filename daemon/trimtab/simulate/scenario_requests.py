"""Requests in simulated time: who waits, who runs, and the latency that comes of it.

The engine's time is shared evenly between what runs; a prompt is read before its answer begins.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import Final

from trimtab.policy.compiled import Admission

_P95: Final = 0.95


@dataclass(frozen=True, slots=True)
class Engine:
    """The serving worker: its speeds at its pace, and the context that it admits."""

    decode_tps: float
    prefill_tps: float
    context: int


@dataclass(slots=True)
class _Stream:
    """One request from arrival to the last token."""

    arrived_s: float
    prompt: int
    answer: int
    read: float = 0.0
    made: float = 0.0
    first_s: float | None = None
    done_s: float | None = None

    @property
    def tokens(self) -> int:
        return int(self.read + self.made)


class Requests:
    """The workload of a scenario.

    Args:
        admission: How many may wait and run.
        window_s: Over how long latencies are taken.
    """

    def __init__(self, admission: Admission, window_s: float) -> None:
        self.admission = admission
        self._window_s = window_s
        self._queue: deque[_Stream] = deque()
        self._running: list[_Stream] = []
        self._ttft: deque[tuple[float, float]] = deque()
        self._tpot: deque[tuple[float, float]] = deque()
        self._every: tuple[float, int, int] | None = None
        self.next_arrival: float | None = None
        self.refused = 0
        self.answered = 0

    @property
    def running(self) -> int:
        """Streams that have begun."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that haven't."""
        return len(self._queue)

    @property
    def kv_tokens(self) -> int:
        """Tokens in the cache."""
        return sum(stream.tokens for stream in self._running)

    def repeat(self, now: float, every_s: float, prompt: int, answer: int) -> None:
        """A request now, and another each time."""
        self._every = (every_s, prompt, answer)
        self.next_arrival = now + every_s
        self.arrive(now, prompt, answer)

    def stop(self) -> None:
        """No more requests."""
        self._every = self.next_arrival = None

    def arrive(self, now: float, prompt: int, answer: int) -> None:
        """One request; refused if the queue is full."""
        if len(self._queue) >= self.admission.queue + self.admission.conversations:
            self.refused += 1
        else:
            self._queue.append(_Stream(now, prompt, answer))

    def advance(self, now: float, elapsed_s: float, engine: Engine | None) -> float:
        """Let the engine work up to now.

        Returns:
            The share of the time that it worked.
        """
        at_s, used_s = now - elapsed_s, 0.0
        while True:
            arrival = self.next_arrival
            until_s = now if arrival is None else min(now, max(arrival, at_s))
            used_s += self._serve(until_s, until_s - at_s, engine)
            at_s = until_s
            if arrival is None or arrival > now:
                break
            self._next_arrives()
        self._admit(now, engine)
        return min(1.0, used_s / elapsed_s) if elapsed_s > 0 else 0.0

    def _serve(self, until_s: float, elapsed_s: float, engine: Engine | None) -> float:
        """Work on what runs; the seconds of it in which the engine worked."""
        self._admit(until_s - elapsed_s, engine)
        if engine is None or not self._running or elapsed_s <= 0:
            return 0.0
        share_s = elapsed_s / len(self._running)
        used_s = sum(self._work(stream, until_s, share_s, engine) for stream in self._running)
        for stream in [stream for stream in self._running if stream.done_s is not None]:
            self._finish(stream, until_s)
        return used_s

    def signals(self, now: float) -> dict[str, float | None]:
        """What the latency sensors would say; nothing about what hasn't happened lately."""
        for window in (self._ttft, self._tpot):
            while window and window[0][0] < now - self._window_s:
                window.popleft()
        oldest = self._queue[0].arrived_s if self._queue else now
        return {
            "latency.ttft_p95": _quantile(self._ttft),
            "latency.tpot_p95": _quantile(self._tpot),
            "queue.depth": float(len(self._queue)),
            "queue.oldest": now - oldest,
            "requests.running": float(len(self._running)),
        }

    def _next_arrives(self) -> None:
        """The next of the repeated requests is here."""
        if self._every is not None and self.next_arrival is not None:
            every_s, prompt, answer = self._every
            self.arrive(self.next_arrival, prompt, answer)
            self.next_arrival += every_s

    def _admit(self, now: float, engine: Engine | None) -> None:
        while self._queue and now - self._queue[0].arrived_s > self.admission.max_wait_s:
            self._queue.popleft()
            self.refused += 1
        if engine is None:
            return
        while self._queue and len(self._running) < self.admission.conversations:
            stream = self._queue.popleft()
            if stream.prompt + stream.answer > engine.context:
                self.refused += 1
            else:
                self._running.append(stream)

    def _work(self, stream: _Stream, now: float, share_s: float, engine: Engine) -> float:
        """Give a stream its share of the engine; how much of it was used."""
        left_s = share_s
        if stream.read < stream.prompt:
            able = min(stream.prompt - stream.read, left_s * engine.prefill_tps)
            stream.read += able
            left_s -= able / engine.prefill_tps
        if stream.read >= stream.prompt and left_s > 0:
            if stream.first_s is None:
                stream.first_s = now - left_s
                self._ttft.append((now, max(0.0, stream.first_s - stream.arrived_s)))
            able = min(stream.answer - stream.made, left_s * engine.decode_tps)
            stream.made += able
            left_s -= able / engine.decode_tps
            if stream.made >= stream.answer:
                stream.done_s = now - left_s
        return share_s - left_s

    def _finish(self, stream: _Stream, now: float) -> None:
        self._running.remove(stream)
        self.answered += 1
        if stream.first_s is not None and stream.done_s is not None and stream.answer > 1:
            self._tpot.append((now, (stream.done_s - stream.first_s) / (stream.answer - 1)))


def _quantile(window: deque[tuple[float, float]]) -> float | None:
    """The nearest-rank 95 % quantile; None of nothing."""
    if not window:
        return None
    values = sorted(value for _, value in window)
    return values[ceil(_P95 * len(values)) - 1]
