"""All streams: the queue, who runs where, and the crossing from worker to worker.

One owner, one thread: every method runs in the event loop and none of them awaits, so that no
decision is made on a state that has changed meanwhile. A stream is in exactly one place: the queue,
a worker, held (it had begun and has no worker) or done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from trimtab.domain.clock import Clock
from trimtab.errors import EngineError, ServingError, TrimtabError, WorkerError
from trimtab.policy.compiled import Policy
from trimtab.serving.requests import FinishReason
from trimtab.serving.stream import Stream, StreamState
from trimtab.workers.protocol import (
    Cancel,
    Detach,
    Detached,
    Failed,
    Finished,
    FromWorker,
    Progress,
    Tokens,
)
from trimtab.workers.worker import Worker


class StreamObserver(Protocol):
    """Who measures: called at each step of a stream's life, on the hot path."""

    def arrived(self, stream: Stream, at_s: float) -> None:
        """It is in the queue."""

    def started(self, stream: Stream, at_s: float) -> None:
        """A worker has it (again)."""

    def produced(self, stream: Stream, tokens: int, at_s: float) -> None:
        """It has new tokens."""

    def ended(self, stream: Stream, at_s: float) -> None:
        """It is done."""


class Streams:
    """The owner of all streams.

    Args:
        clock: For waiting and hold times.
        observer: Measures.
        protocol_broken: Told when a worker loses or doubles tokens; it is to be ended.
    """

    def __init__(
        self,
        clock: Clock,
        observer: StreamObserver,
        protocol_broken: Callable[[Worker, str], None],
    ) -> None:
        self._clock = clock
        self._observer = observer
        self._protocol_broken = protocol_broken
        self._streams: dict[int, Stream] = {}
        self._active: Worker | None = None
        self._policy: Policy | None = None
        self._emptied = asyncio.Event()
        self._attached = asyncio.Event()

    # ------------------------------------------------------------ what is where

    @property
    def active(self) -> Worker | None:
        """The worker that new and held streams go to; None while there is none."""
        return self._active

    def count(self, state: StreamState) -> int:
        """How many streams are in a state."""
        return sum(1 for stream in self._streams.values() if stream.state is state)

    def on(self, worker: Worker) -> list[Stream]:
        """The streams that a worker has, detaching ones included."""
        return [stream for stream in self._streams.values() if stream.worker is worker]

    def tokens_held(self) -> int:
        """Tokens in the KV caches of all running streams."""
        return sum(
            len(stream.prompt) + len(stream.generated)
            for stream in self._streams.values()
            if stream.state is StreamState.RUNNING
        )

    def busy(self) -> bool:
        """True if any stream waits for or has a worker."""
        return bool(self._streams)

    # ------------------------------------------------------------ coming and going

    def configure(self, policy: Policy) -> None:
        """Another policy's admission and hold times apply from now on."""
        self._policy = policy
        self._pump()

    def full(self, rendering: int) -> bool:
        """True if the queue can't take another request besides those being tokenized."""
        policy = self._policy
        if policy is None:
            return True
        free_slots = max(0, policy.admission.conversations - self.count(StreamState.RUNNING))
        waiting = self.count(StreamState.WAITING) + rendering
        return waiting >= policy.admission.queue + free_slots

    def add(self, stream: Stream) -> None:
        """Queue a stream, and start it if there is room."""
        self._streams[stream.id] = stream
        self._observer.arrived(stream, self._clock.monotonic_s())
        self._pump()

    def cancel(self, stream: Stream) -> None:
        """The client is gone."""
        worker = stream.worker
        if stream.done:
            return
        if worker is not None and worker.alive:
            try:
                worker.send(Cancel(stream=stream.id))
            except WorkerError:
                pass  # it is gone, and so is what it had of the stream
        stream.finish(FinishReason.CANCELLED, "", self._clock.monotonic_s())
        self._forget(stream)

    def fail_all(self, error: Callable[[], TrimtabError]) -> None:
        """End every stream, each with an error of its own (a shutdown's deadline has passed)."""
        for stream in list(self._streams.values()):
            worker = stream.worker
            if worker is not None and worker.alive:
                try:
                    worker.send(Cancel(stream=stream.id))
                except WorkerError:
                    pass
            self._fail(stream, error())

    def expire(self) -> None:
        """End what has waited or been held too long; called on each tick."""
        if self._policy is None:
            return
        now = self._clock.monotonic_s()
        max_wait_s = self._policy.admission.max_wait_s
        hold_max_s = self._policy.handover.hold_max_s
        for stream in list(self._streams.values()):
            age_s = now - stream.since_s
            if stream.state is StreamState.WAITING and age_s > max_wait_s:
                error = ServingError(
                    f"the request waited {max_wait_s:.0f} s and its turn did not come",
                    code="wait_exceeded",
                    retry_after_s=max_wait_s,
                )
                self._fail(stream, error)
            elif stream.state is StreamState.HELD and age_s > hold_max_s:
                error = ServingError(
                    f"no worker could take the stream over within {hold_max_s:.0f} s",
                    code="held_too_long",
                    retry_after_s=hold_max_s,
                )
                self._fail(stream, error)

    # ------------------------------------------------------------ crossing over

    def attach(self, worker: Worker) -> None:
        """New, held and waiting streams go to this worker from now on."""
        self._active = worker
        self._attached.set()
        self._pump()

    def release(self, worker: Worker) -> None:
        """Ask a worker to hand back all its streams at the next token boundary.

        They go on at once if another worker is active, else they are held.
        """
        if self._active is worker:
            self._active = None
            self._attached.clear()
        for stream in self.on(worker):
            if not stream.detaching:
                stream.detaching = True
                try:
                    worker.send(Detach(stream=stream.id))
                except WorkerError:
                    self._orphan([stream])
        self._check_empty(worker)

    async def released(self, worker: Worker, timeout_s: float) -> bool:
        """Wait until a worker has no streams; False if it takes longer than ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.on(worker):
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    def lost(self, worker: Worker) -> None:
        """A worker is gone: its streams go on elsewhere from what was acknowledged."""
        if self._active is worker:
            self._active = None
            self._attached.clear()
        orphans = self.on(worker)
        for stream in orphans:
            stream.resumed += 1
        self._orphan(orphans)
        self._check_empty(worker)

    async def wait_for_worker(self, timeout_s: float) -> Worker | None:
        """The active worker, as soon as there is one."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._active is None:
                    await self._attached.wait()
        except TimeoutError:
            return None
        return self._active

    # ------------------------------------------------------------ what workers say

    def said(self, worker: Worker, message: FromWorker) -> None:
        """A worker's message about one of its streams; others' and late ones are ignored."""
        if not isinstance(message, (Tokens, Finished, Failed, Detached, Progress)):
            return
        stream = self._streams.get(message.stream)
        if stream is None or stream.worker is not worker:
            return
        now = self._clock.monotonic_s()
        match message:
            case Tokens():
                if message.first != len(stream.generated):
                    self._protocol_broken(
                        worker, f"token {message.first} came after {len(stream.generated) - 1}"
                    )
                    return
                stream.take_tokens(message, now)
                self._observer.produced(stream, len(message.tokens), now)
            case Finished():
                stream.cached_tokens = max(stream.cached_tokens, message.cached_tokens)
                stream.finish(FinishReason(message.reason), message.text, now)
                self._forget(stream)
            case Failed():
                self._fail(stream, EngineError(message.message, code=message.code))
            case Detached():
                if message.produced != len(stream.generated):
                    self._protocol_broken(worker, "a stream was handed back with tokens missing")
                    return
                self._orphan([stream])
                self._check_empty(worker)
            case Progress():
                pass

    # ------------------------------------------------------------ inside

    def _orphan(self, streams: Iterable[Stream]) -> None:
        now = self._clock.monotonic_s()
        for stream in streams:
            stream.worker = None
            stream.detaching = False
            stream.enter(StreamState.HELD, now)
        self._pump()

    def _fail(self, stream: Stream, error: TrimtabError) -> None:
        stream.fail(error, self._clock.monotonic_s())
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)
        self._observer.ended(stream, self._clock.monotonic_s())
        self._emptied.set()
        self._pump()

    def _check_empty(self, worker: Worker) -> None:
        if not self.on(worker):
            self._emptied.set()

    def _pump(self) -> None:
        """Start held streams, then waiting ones, as far as there is room."""
        worker, policy = self._active, self._policy
        if worker is None or policy is None:
            return
        for stream in self._in_state(StreamState.HELD):
            if not self._start(stream, worker):
                return
        weights = dict(policy.admission.priorities)
        waiting = self._in_state(StreamState.WAITING)
        waiting.sort(key=lambda stream: -weights.get(stream.request.priority, 1.0))
        room = policy.admission.conversations - self.count(StreamState.RUNNING)
        for stream in waiting[: max(0, room)]:
            if not self._start(stream, worker):
                return

    def _in_state(self, state: StreamState) -> list[Stream]:
        return [stream for stream in self._streams.values() if stream.state is state]

    def _start(self, stream: Stream, worker: Worker) -> bool:
        try:
            worker.send(stream.start_message())
        except WorkerError:
            return False  # its loss is about to be reported, and another will be attached
        now = self._clock.monotonic_s()
        stream.served_by(worker, now)
        self._observer.started(stream, now)
        return True
