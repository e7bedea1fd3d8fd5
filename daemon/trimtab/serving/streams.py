"""All streams: the queue, who runs where, and the crossing from worker to worker.

One owner, one thread: every method runs in the event loop and none of them awaits, so that no
decision is made on a state that has changed meanwhile. A stream is in exactly one place: the queue,
a worker, held (it had begun and has no worker) or done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from trimtab.domain.clock import Clock
from trimtab.domain.scheduling import Schedule
from trimtab.errors import EngineError, ServingError, TrimtabError, WorkerError
from trimtab.policy.compiled import Policy
from trimtab.serving.carrier import Carrier
from trimtab.serving.losses import LOSSES_MAX, blames_kv, is_suspect, suspicion, was_at_work_for
from trimtab.serving.observers import StreamObserver
from trimtab.serving.pool import TOO_LARGE
from trimtab.serving.refusals import overdue, refused
from trimtab.serving.requests import FinishReason
from trimtab.serving.stalls import stalled
from trimtab.serving.stream import Stream, StreamState
from trimtab.serving.turns import Turns, may_begin
from trimtab.signals.latency import EngineTimes
from trimtab.workers.protocol import (
    Cancel,
    Detach,
    Detached,
    Failed,
    Finished,
    FromWorker,
    Full,
    Grow,
    Moved,
    Pause,
    Progress,
    Resume,
    Stayed,
    Tokens,
)
from trimtab.workers.worker import Worker

AboutStream: TypeAlias = (
    Tokens | Finished | Failed | Detached | Progress | Grow | Full | Moved | Stayed
)
COMING_MAX_S: Final = 10.0
"""So long those that are held wait for what is about to make way, and not for a disk that hangs."""

STARVED_MAX_S: Final = 30.0
"""A disk that hangs gives nothing back: then a stream gives way after all."""


class Streams:
    """The owner of all streams.

    Args:
        clock: For waiting and hold times.
        observer: Told of each step of a stream's life.
        carrier: Gives each stream its KV for the worker that it goes to.
        protocol_broken: Told when a worker loses or doubles tokens; it is to be ended.
    """

    def __init__(
        self,
        clock: Clock,
        observer: StreamObserver,
        carrier: Carrier,
        protocol_broken: Callable[[Worker, str], None],
    ) -> None:
        self._clock = clock
        self._observer = observer
        self._carrier = carrier
        self.room = carrier.room
        self._prefixes = carrier.prefixes
        self._prefixes.on_change = self._pump
        self._protocol_broken = protocol_broken
        self._streams: dict[int, Stream] = {}
        self._closing: dict[int, tuple[Stream, Worker]] = {}
        self._starved_s: float | None = None  # since when no stream can go on for want of room
        self._coming_s: float | None = None  # since when some KV is about to make way
        self._active: Worker | None = None
        self._broken: set[Worker] = set()  # they have broken the protocol, and aren't gone yet
        self._policy: Policy | None = None
        self._turns = Turns()
        self.shed = 0
        self.gave_way = 0
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

    def paused(self) -> int:
        """How many streams a worker has that aren't to be computed now."""
        return sum(1 for stream in self._streams.values() if stream.worker and stream.paused)

    def all(self) -> list[Stream]:
        """All streams, and those that have ended while their worker still had them."""
        return [*self._streams.values(), *(stream for stream, _ in self._closing.values())]

    def on(self, worker: Worker) -> list[Stream]:
        """The streams that a worker has, detaching ones included."""
        return [stream for stream in self._streams.values() if stream.worker is worker]

    def tokens_held(self) -> int:
        """Tokens whose KV lies within workers and goes with them: streams without a segment.

        While there is no worker, those of the eldest that is held if it has no KV: the next worker
        computes it at once.
        """
        if self._active is None:
            those = self._in_state(StreamState.HELD)[:1]
        else:
            those = self._in_state(StreamState.RUNNING)
        return sum(stream.positions for stream in those if stream.lease is None)

    def guided(self) -> bool:
        """True if any stream is held to a form."""
        return any(stream.request.guide is not None for stream in self._streams.values())

    def has_work(self, worker: Worker) -> bool:
        """True if a worker has something to compute, or hasn't let go of what was taken back."""
        return any(closing is worker for _, closing in self._closing.values()) or any(
            stream.doubtful or not (stream.detaching or stream.starved or stream.paused)
            for stream in self.on(worker)
        )

    def busy(self) -> bool:
        """True if any stream waits for or has a worker."""
        return bool(self._streams)

    # ------------------------------------------------------------ coming and going

    def configure(self, policy: Policy) -> None:
        """Another policy's admission, hold times and KV budget apply from now on."""
        self._policy = policy
        self._carrier.configure(policy)
        self._pump()

    def follow(self, schedule: Schedule) -> None:
        """Refuse, start, pause and resume as the schedule has it."""
        self._turns.follow(schedule)
        for shed in schedule.shed:
            stream = self._streams.get(shed.request)
            if stream is not None and not stream.generated:
                self.shed += 1
                self._take_back(stream)
                self._fail(stream, refused(shed))
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
        if stream.done:
            return
        self._take_back(stream)
        stream.finish(FinishReason.CANCELLED, "", self._clock.monotonic_s())
        self._forget(stream)

    def fail_all(self, error: Callable[[], TrimtabError]) -> None:
        """End every stream, each with an error of its own (a shutdown's deadline has passed)."""
        for stream in list(self._streams.values()):
            self._take_back(stream)
            self._fail(stream, error())

    def expire(self) -> None:
        """End what has waited or been held too long; called on each tick."""
        if self._policy is None:
            return
        self._notice_waiting()
        self._feed_starved()
        self._feed_held()
        if self._streams:
            self._pump()  # room may have come from somewhere that tells nobody
        now = self._clock.monotonic_s()
        running = self._in_state(StreamState.RUNNING)
        for stream in list(self._streams.values()):
            if running and stream.state is StreamState.HELD and not self._may_go_on(stream):
                stream.since_s = now  # its turn comes
            if (error := overdue(stream, self._policy, now)) is not None:
                self._fail(stream, error)

    def stalled(self, awake_s: float = float("-inf")) -> list[tuple[Worker, str]]:
        """Workers that have done nothing for one of their streams for too long, and how long.

        To be asked on each tick.

        Args:
            awake_s: Since when the caller has been there without a break.
        """
        now = self._clock.monotonic_s()
        return [
            (worker, f"it has done nothing for stream {stream.id} for {silent_s:.0f} s")
            for worker in {one.worker for one in self._in_state(StreamState.RUNNING) if one.worker}
            for stream, silent_s in stalled(self.on(worker), worker.variant, now, awake_s)
        ]

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
            self._detach(stream, worker)
        self._check_empty(worker)

    def could_give_way(self) -> list[Stream]:
        """Those whose KV in memory could make room, as they can wait; the eldest goes on.

        That is the first that runs. While none does it is the first that is held: what it gave
        back the next worker would take again at once.
        """
        running, held = self._in_state(StreamState.RUNNING), self._in_state(StreamState.HELD)
        eldest = next((one for one in (*running, *held) if one.lease is not None), None)
        return [one for one in self._streams.values() if one is not eldest and one.kv_bytes]

    def give_way(self, wanted_bytes: int) -> list[Stream]:
        """The youngest wait, and their KV makes room; it is computed again once there is some.

        Before them those that haven't begun give up what they would begin with. While none runs
        the eldest is among them, if the others don't have as much.

        Args:
            wanted_bytes: How much of it at least, if there is as much.

        Returns:
            Those that do; a worker hands them back at the next token boundary.
        """
        chosen: list[Stream] = []
        could = self.could_give_way()
        if not self.count(StreamState.RUNNING):
            could = list(self._streams.values())
        could.sort(key=lambda one: (one.state is StreamState.WAITING, one.id), reverse=True)
        for stream in could:
            if wanted_bytes > 0 and stream.kv_bytes:
                wanted_bytes -= stream.kv_bytes
                chosen.append(stream)
        for stream in chosen:
            self._give_way(stream)
        return chosen

    def doubt(self, stream: Stream) -> None:
        """A stream's KV may be wrong from now on: it goes on once it has been computed again.

        What its worker makes until the next token boundary still counts.
        """
        if stream.done:
            return
        stream.doubtful = True
        if stream.lease is not None:
            stream.lease.distrust()
        if stream.worker is not None:
            self._detach(stream, stream.worker)

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
        """A worker is gone: its streams go on elsewhere from what was acknowledged.

        Where it hangs, the disk that some of them have their KV on may be why: that is computed
        again.
        """
        self._broken.discard(worker)
        if worker.hangs:
            ended = [stream for stream, one in self._closing.values() if one is worker]
            self._carrier.leave_disk([*self.on(worker), *ended])
        if self._active is worker:
            self._active = None
            self._attached.clear()
        for number, (stream, closing) in list(self._closing.items()):
            if closing is worker:
                del self._closing[number]
                self._carrier.ended(stream)
        orphans = []
        for stream in self.on(worker):
            stream.resumed += 1
            stream.losses += was_at_work_for(stream)
            if blames_kv(stream):
                self._carrier.distrust(stream)
            if stream.losses > LOSSES_MAX:
                error = EngineError(
                    f"{stream.losses} workers died on this request one after the other",
                    code="worker_failed",
                )
                stream.worker = None
                self._fail(stream, error)
            else:
                orphans.append(stream)
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
        """A worker's message about one of its streams; others' and late ones are ignored.

        So is all that a worker says after it has broken the protocol: what is missing before it
        isn't known.
        """
        if not isinstance(message, AboutStream) or worker in self._broken:
            return
        stream = self._streams.get(message.stream)
        if stream is None or stream.worker is not worker:
            self._late(worker, message)
            return
        now = self._clock.monotonic_s()
        stream.heard(message, now)
        match message:
            case Tokens():
                self._take_tokens(stream, worker, message, now)
            case Progress():
                self._prefilled(stream, message)
            case Grow() | Full() | Moved() | Stayed():
                if problem := self.room.said(stream, worker, message):
                    self._break_off(worker, problem)
            case Finished():
                worker.tokens += 1
                stream.computed(EngineTimes(message.prefill_s, message.decode_s))
                stream.finish(FinishReason(message.reason), message.text, now)
                self._forget(stream)
            case Failed():
                self._carrier.distrust(stream)
                self._fail(stream, EngineError(message.message, code=message.code))
            case Detached():
                self._take_over(stream, worker, message)

    # ------------------------------------------------------------ inside

    def _give_way(self, stream: Stream) -> None:
        """It waits for room, without its KV as soon as no worker has it any more."""
        if stream.state is StreamState.WAITING:
            self._carrier.set_aside(stream)
            return
        if stream.waits_for_room and stream.worker is not None:
            return  # it is about to
        stream.waits_for_room = True
        stream.gave_way += 1
        self.gave_way += 1
        if stream.worker is not None:
            self._detach(stream, stream.worker)
        else:
            self._carrier.set_aside(stream)

    def _detach(self, stream: Stream, worker: Worker) -> None:
        """Have it handed back at the next token boundary."""
        if stream.detaching:
            return
        stream.detaching = True
        try:
            worker.send(Detach(stream=stream.id))
        except WorkerError:
            self._orphan([stream])

    def _break_off(self, worker: Worker, problem: str) -> None:
        """A worker loses or doubles something: its streams go on once it is gone."""
        self._broken.add(worker)
        self._protocol_broken(worker, problem)

    def _prefilled(self, stream: Stream, message: Progress) -> None:
        stream.prefilled(message)
        if self._prefixes.reached(stream, self._in_state(StreamState.WAITING)):
            self._pump()

    def _take_tokens(self, stream: Stream, worker: Worker, message: Tokens, at_s: float) -> None:
        if message.first != len(stream.generated):
            problem = f"token {message.first} came after {len(stream.generated) - 1}"
            self._break_off(worker, problem)
            return
        suspected = is_suspect(stream)
        worker.tokens += 0 if stream.reading else len(message.tokens)
        stream.take_tokens(message, at_s)
        self._observer.produced(stream, len(message.tokens), at_s)
        if suspected and not is_suspect(stream):
            self._pump()  # it isn't why workers died: the next one is tried

    def _take_over(self, stream: Stream, worker: Worker, message: Detached) -> None:
        if message.produced != len(stream.generated):
            self._break_off(worker, "a stream was handed back with tokens missing")
            return
        self._orphan([stream])
        self._check_empty(worker)

    def _late(self, worker: Worker, message: AboutStream) -> None:
        """The last word on a stream that was taken back: its KV is nobody's now."""
        entry = self._closing.get(message.stream)
        over = isinstance(message, Finished | Failed | Detached)
        if entry is not None and entry[1] is worker and over:
            del self._closing[message.stream]
            if isinstance(message, Failed):
                self._carrier.distrust(entry[0])
            self._carrier.ended(entry[0])
            self._pump()  # what it held may be what others wait for

    def _take_back(self, stream: Stream) -> None:
        """Tell the worker to stop. Until it has, it may still write to the stream's segment."""
        worker = stream.worker
        if worker is None or not worker.alive:
            return
        try:
            worker.send(Cancel(stream=stream.id))
        except WorkerError:
            return  # it is gone, and so is what it had of the stream
        self._closing[stream.id] = (stream, worker)

    def _feed_starved(self) -> None:
        """Streams that wait for room in the KV pool get it, or the youngest gives way.

        Before that, those that haven't begun give up what they would begin with, and what is about
        to be given back is awaited for a while. A lone one has what it was admitted with, though
        the pool may have become smaller since.
        """
        stream = self.room.feed(self._in_state(StreamState.RUNNING))
        now = self._clock.monotonic_s()
        if stream is None:
            self._starved_s = None
            return
        if self._starved_s is None:
            self._starved_s = now
        waited = now - self._starved_s >= STARVED_MAX_S
        if not waited and (self._closing or self._carrier.on_its_way):
            return
        while stream is not None and self._carrier.let_go(self._in_state(StreamState.WAITING)):
            stream = self.room.feed(self._in_state(StreamState.RUNNING))
        if stream is None or stream.worker is None:
            return
        if self.count(StreamState.RUNNING) > 1:
            self._give_way(stream)
        else:
            self.room.grow(stream, stream.worker, stream.wanted_tokens, beyond=True)

    def _feed_held(self) -> None:
        """While none runs, those that haven't begun give up what they would begin with."""
        if self._active is None or self.count(StreamState.RUNNING) or self._room_is_coming:
            return
        if self.count(StreamState.HELD):
            while self._carrier.let_go(self._in_state(StreamState.WAITING)):
                pass  # those that had begun are started right after this

    def _orphan(self, streams: Iterable[Stream]) -> None:
        now = self._clock.monotonic_s()
        for stream in streams:
            stream.worker = None
            stream.detaching = False
            self.room.given_up(stream)
            stream.enter(StreamState.HELD, now)
            if stream.waits_for_room:
                self._carrier.set_aside(stream)
        self._pump()

    def _fail(self, stream: Stream, error: TrimtabError) -> None:
        stream.fail(error, self._clock.monotonic_s())
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)
        if stream.id not in self._closing:
            self._carrier.ended(stream)
        self._observer.ended(stream, self._clock.monotonic_s())
        self._emptied.set()
        self._pump()

    def _check_empty(self, worker: Worker) -> None:
        if not self.on(worker):
            self._emptied.set()

    def _pump(self) -> None:
        """Start held streams, then let those run whose turn it is, as far as there is room."""
        worker, policy = self._active, self._policy
        if worker is None or policy is None:
            return
        self.room.feed(self._in_state(StreamState.RUNNING))  # who runs goes before who had begun
        for stream in sorted(self._in_state(StreamState.HELD), key=suspicion):
            # One's failure pumps, too.
            if stream.state is StreamState.HELD and self._may_go_on(stream):
                self._start(stream, worker)
        starving = any(stream.starved for stream in self._in_state(StreamState.RUNNING))
        free = self._turns.at_once(self._streams.values(), policy)
        for stream in self._turns.ranked(self._streams.values(), policy):
            if stream.state is StreamState.HELD:
                starving = True  # whose turn is after its own doesn't overtake it
            elif stream.state is StreamState.WAITING and free:
                if not starving and self._may_begin(stream, worker, policy):
                    free -= self._begin(stream, worker)
            elif stream.state is StreamState.RUNNING:
                self._pause(stream, paused=free == 0)
                free -= free > 0 and not stream.starved

    def _may_go_on(self, stream: Stream) -> bool:
        """Whether a held stream has the room that it waits for, if it does, and may be tried."""
        running = self._in_state(StreamState.RUNNING)
        if is_suspect(stream) and any(is_suspect(one) for one in running):
            return False
        return not stream.waits_for_room or self.room.suffices(stream, running)

    def _may_begin(self, stream: Stream, worker: Worker, policy: Policy) -> bool:
        if not may_begin(self._streams.values(), worker, policy):
            return False
        return self.room.suffices(stream, self._in_state(StreamState.RUNNING))

    def _pause(self, stream: Stream, *, paused: bool) -> None:
        if stream.paused is paused or stream.worker is None:
            return
        stream.paused = paused
        stream.heard_s = self._clock.monotonic_s()
        try:
            stream.worker.send(Pause(stream.id) if paused else Resume(stream.id))
        except WorkerError:
            pass  # its loss is about to be reported

    def _in_state(self, state: StreamState) -> list[Stream]:
        return [stream for stream in self._streams.values() if stream.state is state]

    def _begin(self, stream: Stream, worker: Worker) -> bool:
        """Its turn has come: start it, unless it is worth its while to wait for its prefix."""
        if self._prefixes.waits(stream, worker, self._streams.values()):
            return False
        return self._start(stream, worker)

    def _start(self, stream: Stream, worker: Worker) -> bool:
        """Give a stream to the worker; False if it stays where it is, or is over."""
        try:
            alone = bool(stream.variants) and not self._room_may_come(stream)
            self._carrier.bring(stream, worker, beyond=alone)
            descriptors = [] if stream.lease is None else [stream.lease.segment.descriptor]
            worker.send(stream.start_message(), descriptors)
        except WorkerError:
            return False  # its loss is about to be reported, and another will be attached
        except ServingError as error:
            if self._room_may_come(stream) and (stream.variants or error.code != TOO_LARGE):
                stream.waits_for_room = bool(stream.variants)
            else:
                self._fail(stream, error)
            return False
        except Exception as error:  # whatever it is, the others' turns must come
            reason = f"the request can't be given to a worker: {error}"
            self._fail(stream, TrimtabError(reason, code="internal_error"))
            return False
        now = self._clock.monotonic_s()
        stream.served_by(worker, now)
        self._observer.started(stream, now)
        return True

    def _room_may_come(self, stream: Stream) -> bool:
        """Whether somebody else holds some of the KV pool's room, and will give it back."""
        others = (one for one in self._streams.values() if one is not stream)
        holding = any(one.lease is not None or one.worker is not None for one in others)
        return holding or bool(self._closing) or self._room_is_coming

    def _notice_waiting(self) -> None:
        """Since when KV that soon can make way hasn't."""
        if not self._carrier.on_its_way:
            self._coming_s = None
        elif self._coming_s is None:
            self._coming_s = self._clock.monotonic_s()

    @property
    def _room_is_coming(self) -> bool:
        """Whether KV that can't make way now soon can; a disk that hangs may take it for ever."""
        since_s = self._coming_s
        late = since_s is not None and self._clock.monotonic_s() - since_s >= COMING_MAX_S
        return self._carrier.on_its_way and not late
