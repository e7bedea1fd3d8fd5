"""A worker without a process, for tests of what the controller does with what workers say."""

from __future__ import annotations

from typing import Any

from trimtab.domain.models import VariantSpec
from trimtab.errors import WorkerError
from trimtab.serving.stream import Stream
from trimtab.workers.protocol import Ready, ToWorker, encode
from trimtab.workers.worker import WorkerState


class FakeClock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic_s(self) -> float:
        return self.now

    def wall_s(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeWorker:
    """Keeps what it is sent; says nothing by itself.

    Args:
        variant: What it has loaded.
        decoder: ``generator`` or ``kv``.
    """

    def __init__(self, variant: VariantSpec, decoder: str = "generator") -> None:
        self.variant = variant
        self.ready = Ready(0.1, decoder, "", 1, 2048, 512, [0])
        self.sent: list[ToWorker] = []
        self.descriptors: list[int] = []
        self.alive = True
        self.state = WorkerState.READY
        self.hangs = False
        self.tokens = 0
        self.renders: list[Exception | list[int]] = []

    def send(self, message: ToWorker, descriptors: Any = ()) -> None:
        if not self.alive:
            raise WorkerError("the worker is gone")
        encode(message, len(descriptors))
        self.sent.append(message)
        self.descriptors += descriptors

    async def render(self, **_: Any) -> list[int]:
        answer = self.renders.pop(0) if self.renders else [1, 2, 3]
        if isinstance(answer, WorkerError):
            self.state = WorkerState.FAILED
        if isinstance(answer, Exception):
            raise answer
        return answer

    def of(self, kind: type) -> list[Any]:
        """What it was sent of one kind."""
        return [message for message in self.sent if isinstance(message, kind)]


class Observer:
    """Counts the steps of streams' lives."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []

    def arrived(self, stream: Stream, at_s: float) -> None:
        self.steps.append(("arrived", stream.id))

    def started(self, stream: Stream, at_s: float) -> None:
        self.steps.append(("started", stream.id))

    def produced(self, stream: Stream, tokens: int, at_s: float) -> None:
        self.steps.append(("produced", stream.id))

    def ended(self, stream: Stream, at_s: float) -> None:
        self.steps.append(("ended", stream.id))
