"""The running daemon without its API: sensors, core, workers and streams, wired together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from trimtab.domain.clock import Clock
from trimtab.domain.decisions import Decision
from trimtab.domain.events import (
    ActionEnded,
    Demand,
    DraftFailed,
    Event,
    ModelChanged,
    PolicyChanged,
    RequestWaiting,
    Tick,
    WorkerLost,
)
from trimtab.domain.knobs import KvPlacement, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Reading, Snapshot, Unit
from trimtab.domain.scheduling import Schedule
from trimtab.errors import ServingError, WorkerError
from trimtab.planner import State
from trimtab.planner.calm import calm
from trimtab.planner.device import DeviceModel
from trimtab.planner.requests import Queue
from trimtab.planner.speeds import Speeds
from trimtab.policy.compiled import Policy
from trimtab.runtime.controller import Controller
from trimtab.runtime.dispatch import Dispatcher, Settings
from trimtab.runtime.process_memory import anonymous_bytes
from trimtab.runtime.tasks import spawn
from trimtab.runtime.ticks import Sensors, TickLoop
from trimtab.serving.carrier import Carrier
from trimtab.serving.claims import Ledger
from trimtab.serving.disk import KvDisk
from trimtab.serving.gateway import Gateway
from trimtab.serving.meter import Meter, kv_readings
from trimtab.serving.observers import Observers
from trimtab.serving.pool import Pool
from trimtab.serving.refusals import shutting_down
from trimtab.serving.reports import Reports
from trimtab.serving.stream import StreamState
from trimtab.serving.streams import Streams
from trimtab.workers.protocol import DraftLost, FromWorker
from trimtab.workers.supervisor import Supervisor, falters_after_s
from trimtab.workers.worker import Worker

DRAIN_POLL_S: Final = 0.05
FURTHER: Final = 0.4
"""What each further conversation is taken to add to a step of the engine, until it is seen."""


class SensorSuite(Sensors, Protocol):
    """The sensors, which are also told whose memory is ours."""

    def watch_processes(self, pids: list[int]) -> None:
        """The workers' process numbers."""

    def push(
        self,
        name: str,
        value: float,
        unit: Unit,
        *,
        at_s: float,
        ttl_s: float,
        low: float | None = None,
        high: float | None = None,
    ) -> Reading:
        """Take in a value that someone pushed."""

    def unit_of(self, signal: str) -> Unit | None:
        """The unit of a signal, an owner's own included."""


class Records(Protocol):
    """Where decisions go."""

    def decided(self, decision: Decision, wall_s: float) -> None:
        """A decision was made."""

    def concluded(self, decision: Decision, wall_s: float) -> None:
        """An earlier decision's outcome is known."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the daemon needs of the configuration.

    Attributes:
        threads: Engine threads.
        decoder: ``auto``, ``generator`` or ``kv``.
        tick_s: Time between two full looks at the sensors.
        proc_root: Where processes are seen.
        first_decision: Number of the next decision record.
        kv_disk: Where KV may go; None: nowhere.
        resident: Anonymous bytes of a loaded worker, by variant, if a profile has them.
        load_s: Load times, by variant, likewise.
        working: What a worker holds beyond `resident` once it serves, likewise.
        device: The model of the device that was fitted to the profile; None without one.
        last_point: What was in force before a restart: tried first, if it still fits.
    """

    threads: int
    decoder: str
    tick_s: float
    proc_root: Path
    first_decision: int = 1
    kv_disk: KvDisk | None = None
    resident: Mapping[str, int] = field(default_factory=dict)
    load_s: Mapping[str, float] = field(default_factory=dict)
    working: Mapping[str, int] = field(default_factory=dict)
    device: DeviceModel | None = None
    last_point: OperatingPoint | None = None


class Daemon:
    """Everything that serves, but no sockets.

    Args:
        options: From the configuration.
        policy: In force at the start.
        sensors: Read once a tick.
        clock: Time.
        records: Take decisions.
        log: A structlog logger.
    """

    def __init__(
        self,
        options: Options,
        policy: Policy,
        sensors: SensorSuite,
        clock: Clock,
        records: Records,
        log: Any,
    ) -> None:
        self.clock = clock
        self.started_s = clock.monotonic_s()
        self.meter = Meter()
        self.on_tick: Callable[[float], None] | None = None
        self._log = log
        self._options = options
        self.sensors = sensors
        self._watched: list[int] = []
        self._draining = False
        state = State(
            threads=options.threads,
            next_decision=options.first_decision,
            resident=options.resident,
            load_s=options.load_s,
            working=options.working,
            device=options.device,
            lost_point=options.last_point,
            queue=Queue(speeds=Speeds(further=FURTHER)),
        )
        self.controller = Controller(state, policy, clock, records.decided, records.concluded)
        self.pool = Pool(options.kv_disk)
        self._carrier = Carrier(self.pool, clock)
        self._reports = Reports(self.controller.post, _soon)
        observers = Observers(self.meter, self._reports)
        self.streams = Streams(clock, observers, self._carrier, self._protocol_broken)
        self.streams.room.memory_bytes = self._room_for_running
        self.supervisor = Supervisor(clock, self._said, self._lost, self._wrote)
        self.gateway = Gateway(self.streams, self._carrier, clock, self._request_waits)
        self.dispatcher = Dispatcher(
            self.supervisor,
            self.streams,
            self.pool,
            clock,
            self._outcome,
            self._available,
            self._context_changed,
            Settings(options.decoder, options.proc_root),
            self.report,
        )
        self.controller.connect(self.dispatcher, self._follow)
        self._ticks = TickLoop(
            sensors,
            clock,
            options.tick_s,
            self._limit_bytes,
            self._tick,
            self._calm,
            self.report,
        )
        self.controller.on_event = self._ticks.wake
        self.gateway.on_request = self._ticks.wake
        self._offloading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._kv_not_moved = ""
        self._loop_task: asyncio.Task[None] | None = None
        self._reports.configure(policy.admission.priorities)
        self.streams.configure(policy)
        self.meter.configure(policy.slo)

    # ------------------------------------------------------------ orders

    def start(self, model: ModelSpec | None) -> None:
        """Take a first look, load what fits, and go on ticking."""
        self._ticks.tick(self.clock.monotonic_s())
        self.serve(model)
        self._loop_task = spawn(self._ticks.run(), "ticks", self.report)

    def serve(self, model: ModelSpec | None) -> None:
        """Serve this model from now on."""
        self.dispatcher.configure(model)
        self._carrier.serve(model)
        self.gateway.configure(model=model, policy=self.controller.policy)
        self.gateway.admit(self.dispatcher.point.context)
        self.controller.post(ModelChanged(self.clock.monotonic_s(), model))

    def put_in_force(self, policy: Policy) -> None:
        """Apply another policy between two ticks."""
        self.controller.policy = policy
        self._reports.configure(policy.admission.priorities)
        self.streams.configure(policy)
        self.meter.configure(policy.slo)
        self.gateway.configure(model=self.gateway.model(), policy=policy)
        self.controller.post(PolicyChanged(self.clock.monotonic_s(), policy.revision))

    async def drain(self, deadline_s: float) -> None:
        """Admit nothing more and let end what was admitted; what doesn't gets one error."""
        self._draining = True
        self.gateway.drain()
        until_s = self.clock.monotonic_s() + deadline_s
        while self._at_work() and self.clock.monotonic_s() < until_s:
            await self.clock.sleep(DRAIN_POLL_S)
        self.gateway.close()
        self.streams.fail_all(shutting_down)

    def _at_work(self) -> bool:
        """True while any request hasn't had its answer."""
        return self.streams.busy() or self.gateway.rendering > 0

    async def stop(self) -> None:
        """End the loop and all workers; what a disk is at work on is not waited for."""
        for task in (self._loop_task, self._offloading, self._writing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.dispatcher.close()
        self.pool.close()

    # ------------------------------------------------------------ what is seen

    @property
    def draining(self) -> bool:
        """True once nothing more is admitted."""
        return self._draining

    def demand(self, ledger: Ledger) -> Demand:
        """The workload now, with what the pool holds."""
        worker, count = self.streams.active, self.streams.count
        held = None
        if worker is not None and worker.pid is not None:
            held = anonymous_bytes(worker.pid, self._options.proc_root)
        return Demand(
            running=count(StreamState.RUNNING),
            waiting=count(StreamState.WAITING) + self.gateway.rendering,
            held=count(StreamState.HELD),
            kv_tokens=self.streams.tokens_held(),
            idle_bytes=ledger.idle,
            worker_bytes=held,
            running_bytes=ledger.leased,
            yielding_bytes=sum(stream.kv_bytes for stream in self.streams.could_give_way()),
            filed_bytes=ledger.filed,
            unwritten_bytes=ledger.unwritten,
            point=self.dispatcher.point,
        )

    def look(self) -> None:
        """One full look at the sensors now, besides those of the tick loop."""
        self._guarded(lambda: self._ticks.tick(self.clock.monotonic_s()))

    def look_again(self) -> None:
        """Somebody looks at the readings: they are to be no older than a tick."""
        self._guarded(self._ticks.fresh)

    def _guarded(self, look: Callable[[], None]) -> None:
        """As in the tick loop: one bad look must not end anything."""
        try:
            look()
        except Exception as error:
            self.report("look", error)

    def report(self, name: str, error: BaseException) -> None:
        """A part failed in a way that nobody foresaw: say so, with the place."""
        self._log.error("part_failed", part=name, error=repr(error), exc_info=error)

    # ------------------------------------------------------------ what happens

    def _outcome(self, event: Event) -> None:
        """What came of an action; what is there now is seen at once, not at the next tick."""
        self.controller.post(event)
        if isinstance(event, DraftFailed):
            told = {"variant": event.variant, "draft": event.draft, "reason": event.reason}
            self._log.warning("draft_failed", **told)
        if isinstance(event, ActionEnded):
            self.look()

    def _follow(self, schedule: Schedule) -> None:
        self._reports.follow(schedule)
        self.streams.follow(schedule)

    def _tick(self, snapshot: Snapshot) -> None:
        self.streams.expire()
        self._watch_workers()
        workers = (*self.supervisor.workers, *self.supervisor.hanging)
        pids = [worker.pid for worker in workers if worker.pid is not None]
        if pids != self._watched:
            self._watched = pids
            self.sensors.watch_processes(pids)
        local = time.localtime(snapshot.wall_s)
        minute = local.tm_hour * 60 + local.tm_min
        self.meter.serves(self.dispatcher.point.variant)
        self._reports.progress(snapshot.at_s)
        ledger = self.pool.ledger()  # each segment is measured: once a tick
        own = [*self.meter.readings(snapshot.at_s), *kv_readings(ledger, snapshot.at_s)]
        readings = {**snapshot.readings, **{reading.signal: reading for reading in own}}
        snapshot = replace(snapshot, readings=readings)
        event = Tick(snapshot.at_s, snapshot, self.demand(ledger), minute)
        self.controller.post(event)
        self._say_why_not()
        self._offload()
        if self.on_tick is not None:
            self.on_tick(snapshot.at_s)

    def _watch_workers(self) -> None:
        """End workers that are silent for too long, or towards one of their streams.

        Idle ones are asked whether they live, so that one that hangs is found before the next
        request comes.
        """
        awake_s = self._ticks.awake_s
        self.supervisor.shoot_wedged(self.streams.has_work, awake_s)
        for worker, reason in self.streams.stalled(awake_s):
            if not self.supervisor.falters(worker):  # else it is silent towards everybody
                worker.shoot(reason)
        for worker in self.supervisor.unheard():
            spawn(self._ask_for_life(worker), "ping", self.report)

    async def _ask_for_life(self, worker: Worker) -> None:
        """Without an answer it is watched from now on like one that has work."""
        try:
            await worker.ping(falters_after_s(worker.variant))
        except WorkerError:
            self._ticks.wake()

    def _calm(self) -> bool:
        """True if nothing is lost by looking at the sensors less often for now.

        What the disk has refused before is tried again at each look, and is no work for it.
        """
        moving = not _over(self._offloading) and not self._kv_not_moved
        offloading = moving or not _over(self._writing)
        busy = self.streams.busy() or self.supervisor.busy
        at_work = self.dispatcher.loading or busy or offloading
        return not at_work and calm(self.controller.state, self.controller.policy)

    def _offload(self) -> None:
        """Conversations that end, or begin, while KV belongs on disk follow the others there.

        What runs there is written beside plans: they count on its memory.
        """
        dispatcher = self.dispatcher
        placement, running = dispatcher.point.kv_placement, dispatcher.running_kv
        if running.to_write and _over(self._writing):
            self._writing = spawn(self._write_back(), "write_back", self.report)
        astray = running.in_memory if placement is KvPlacement.DISK_ALL else running.on_disk
        due = (
            bool(astray)
            or self.pool.to_seal() is not None
            or (placement is not KvPlacement.MEMORY and self.pool.to_offload() is not None)
        )
        if due and _over(self._offloading) and not dispatcher.loading:
            self._offloading = spawn(self._follow_placement(), "offload", self.report)

    async def _write_back(self) -> None:
        if reason := await self.dispatcher.running_kv.write_back():
            self._say_not_moved(reason)

    async def _follow_placement(self) -> None:
        reason = ""
        try:
            await self.dispatcher.follow_placement(self._room_bytes)
        except ServingError as error:
            reason = error.message
        self._say_not_moved(reason)

    def _say_not_moved(self, reason: str) -> None:
        """Once, until KV could be moved again."""
        if reason and reason != self._kv_not_moved:
            self._log.warning("kv_not_moved", reason=reason)
        self._kv_not_moved = reason

    def _room_bytes(self) -> float:
        """Memory that may be taken without coming near the limit.

        What the disk hasn't taken yet isn't there, though the kernel says so.
        """
        limit, available = self.controller.policy.memory, self._available()
        if limit is None:
            return math.inf
        if available is None:
            return 0
        return available - self.pool.ledger().unwritten - limit.leave_bytes

    def _room_for_running(self) -> float:
        """The same for running conversations: ended ones' KV makes way for theirs."""
        return self._room_bytes() + self.pool.idle_bytes()

    def _say_why_not(self) -> None:
        """What a request is told that waits for a variant in vain."""
        if not self.dispatcher.point.parked or self.dispatcher.loading:
            self.gateway.why_not_loaded = ""
        else:
            self.gateway.why_not_loaded = "no variant fits in memory as the policy wants it"

    def _lost(self, worker: Worker, reason: str) -> None:
        name = worker.variant.name
        self._log.warning("worker_lost", variant=name, pid=worker.pid, reason=reason)
        serving = self.streams.active is worker
        self.streams.lost(worker)
        if serving:
            self.dispatcher.lost(worker)
            if worker.hangs:
                self.look()  # what it holds doesn't come back as it does from one that has ended
            now = self.clock.monotonic_s()
            self.controller.post(WorkerLost(now, name, reason, worker.tokens))

    def _said(self, worker: Worker, message: FromWorker) -> None:
        if not isinstance(message, DraftLost):
            self.streams.said(worker, message)
            return
        if worker.draft is not None:  # else it has been told to do without by now
            self.dispatcher.draft_lost(worker, worker.draft, message.reason)

    def _protocol_broken(self, worker: Worker, reason: str) -> None:
        worker.shoot(f"it broke the protocol: {reason}")

    def _wrote(self, worker: Worker, line: str) -> None:
        self._log.warning("worker_stderr", variant=worker.variant.name, line=line)

    def _request_waits(self) -> None:
        self.controller.post(RequestWaiting(self.clock.monotonic_s()))

    def _available(self) -> int | None:
        reading = self.sensors.memory_available(self.clock.monotonic_s())
        return int(reading.value) if reading.usable and reading.value is not None else None

    def _limit_bytes(self) -> int | None:
        limit = self.controller.policy.memory
        return None if limit is None else limit.headroom_bytes

    def _context_changed(self, tokens: int) -> None:
        self.gateway.admit(tokens)
        self.pool.limit(tokens)


def _soon(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


def _over(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()
