"""Carries out actions, one after the other, and posts how each ended.

A newer plan supersedes one that is still running: the running action is cut at its next safe point
and cleans up after itself (a half-loaded worker is ended and reaped) before the next one begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trimtab.domain.actions import (
    Action,
    GiveWay,
    HandoverMode,
    Park,
    PlaceIdleKv,
    ReleaseIdleKv,
    SetContext,
    SetPace,
    SetSpeculation,
    SwitchWorker,
    carried_out,
)
from trimtab.domain.clock import Clock
from trimtab.domain.events import ActionEnded, DraftFailed, Event, OutcomeKind, WorkerMeasured
from trimtab.domain.knobs import (
    PARKED,
    SPECULATION_NGRAM,
    SPECULATION_OFF,
    KvPlacement,
    OperatingPoint,
)
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.errors import (
    DraftError,
    HangingWorkerError,
    LateLoadError,
    LoadError,
    ServingError,
    TrimtabError,
    WorkerError,
)
from trimtab.planner.points import draft_of
from trimtab.runtime.process_memory import anonymous_bytes
from trimtab.runtime.tasks import spawn
from trimtab.serving.claims import Idle
from trimtab.serving.pool import Pool
from trimtab.serving.running_kv import RunningKv
from trimtab.serving.stream import StreamState
from trimtab.serving.streams import Streams
from trimtab.workers.protocol import Pace, Speculate
from trimtab.workers.supervisor import Supervisor, draft_timeout_s, wedged_after_s
from trimtab.workers.worker import Launch, Worker

RELEASE_DEADLINE_S: Final = 5.0
RECOVERY_DEADLINE_S: Final = 2.0
RECOVERY_POLL_S: Final = 0.01
RECOVERED_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """What the dispatcher needs of the configuration."""

    decoder: str
    proc_root: Path


class Dispatcher:
    """Executes plans.

    Args:
        supervisor: Starts and ends workers.
        streams: Hands streams over.
        pool: Gives idle KV back, and has the disk.
        clock: Measures how long actions take.
        post: Takes outcomes; called in the event loop.
        available: Reads the memory that is available now, in bytes; None if it can't be known.
        context_changed: Told the context for new conversations.
        settings: From the configuration.
        report: Told of a fault in here, by name.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        streams: Streams,
        pool: Pool,
        clock: Clock,
        post: Callable[[Event], None],
        available: Callable[[], int | None],
        context_changed: Callable[[int], None],
        settings: Settings,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._supervisor = supervisor
        self._streams = streams
        self._pool = pool
        self._clock = clock
        self._post = post
        self._available = available
        self._context_changed = context_changed
        self._settings = settings
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._model: ModelSpec | None = None
        self._load_s: dict[tuple[str, str], float] = {}  # of variants and their drafts
        self.point: OperatingPoint = PARKED
        self.running_kv = RunningKv(streams, pool, clock)

    @property
    def loading(self) -> bool:
        """True while a plan is being carried out."""
        return self._task is not None and not self._task.done()

    async def finished(self) -> None:
        """Wait until no plan is being carried out."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def configure(self, model: ModelSpec | None) -> None:
        """The model whose variants are loaded from now on."""
        self._model = model

    def execute(self, actions: Sequence[Action]) -> None:
        """Carry out a plan; one that is under way is superseded.

        KV that nobody uses is given back beside a plan, which goes on.
        """
        if self._closed:
            return
        if self.loading and all(isinstance(action, ReleaseIdleKv) for action in actions):
            spawn(self._run(tuple(actions), None), "relief", self._report)
            return
        before = self._task
        self._task = spawn(self._run(tuple(actions), before), "plan", self._report)

    def lost(self, worker: Worker) -> None:
        """The serving worker is gone."""
        if self._streams.active is worker or self._streams.active is None:
            self.point = PARKED

    def draft_lost(self, worker: Worker, draft: VariantSpec, reason: str) -> None:
        """A worker's draft can't be used; if that worker serves, it has n-grams left."""
        worker.lose_draft(reason)
        if self._streams.active is worker:
            self.point = _with_what_drafts(self.point, worker)
        self._post(DraftFailed(self._clock.monotonic_s(), draft.name, reason, worker.variant.name))

    async def close(self) -> None:
        """Give up what is under way, end all workers, and carry out nothing more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._supervisor.retire_all()
        self.point = PARKED

    # ------------------------------------------------------------ one plan

    async def _run(self, actions: tuple[Action, ...], before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
            await self._retire_strays()
        failed = ""
        for position, action in enumerate(actions):
            started_s = self._clock.monotonic_s()
            if failed:
                self._end(action, OutcomeKind.SUPERSEDED, started_s, failed)
                continue
            try:
                await self._carry_out(action)
            except asyncio.CancelledError:
                for rest in actions[position:]:
                    self._end(rest, OutcomeKind.SUPERSEDED, started_s, "a newer plan came")
                raise
            except TrimtabError as error:
                failed = error.message
                self._end(action, OutcomeKind.FAILED, started_s, failed, error)
            except Exception as error:  # the supervising loop of actions: the core must hear of it
                failed = f"{type(error).__name__}: {error}"
                self._end(action, OutcomeKind.FAILED, started_s, failed)
                self._report("action", error)
            else:
                self._end(action, OutcomeKind.DONE, started_s, self._lacking(action))

    def _end(
        self,
        action: Action,
        kind: OutcomeKind,
        started_s: float,
        reason: str = "",
        error: TrimtabError | None = None,
    ) -> None:
        now = self._clock.monotonic_s()
        variant = None if error is None else _at_fault(action, error)
        lost = isinstance(error, WorkerError | LateLoadError)
        took_s = now - started_s
        self._post(ActionEnded(now, action.id, kind, self.point, took_s, reason, variant, lost))

    def _lacking(self, action: Action) -> str:
        """What of an action couldn't be had though it is done; empty if nothing."""
        if not isinstance(action, SwitchWorker | SetSpeculation):
            return ""
        wanted = carried_out(self.point, action).speculation
        draft, worker = draft_of(wanted), self._streams.active
        if draft is None or worker is None or not worker.draft_lost:
            return ""
        return f"without its draft {draft}: {worker.draft_lost}"

    async def _carry_out(self, action: Action) -> None:
        match action:
            case SwitchWorker():
                await self._switch(action)
            case SetContext():
                self._set_context(action)
            case SetPace():
                self._set_pace(action)
            case Park():
                await self._park()
            case ReleaseIdleKv(wanted_bytes=wanted):
                self._pool.release(wanted)
            case GiveWay(wanted_bytes=wanted):
                await self._give_way(wanted)
            case SetSpeculation():
                await self._set_speculation(action)
            case PlaceIdleKv():
                await self._place_kv(action)

    def _set_context(self, action: SetContext) -> None:
        self._context_changed(action.tokens)
        self.point = carried_out(self.point, action)

    def _set_pace(self, action: SetPace) -> None:
        worker = self._streams.active
        if worker is not None:
            worker.send(Pace(ratio=action.ratio))
        self.point = carried_out(self.point, action)

    async def _set_speculation(self, action: SetSpeculation) -> None:
        """Another mode; a draft is let go, or loaded beside the streams, in the worker that serves.

        Raises:
            WorkerError: The worker is gone. If that was while it loaded a draft, the draft may be
                why, and is left out.
        """
        worker, draft = self._streams.active, draft_of(action.speculation)
        if worker is None or (draft or "") == _beside(worker):
            self._set_mode(action)
        elif (wanted := self._variant_called(draft)) is None:
            self._set_mode(action)  # whatever comes now, the draft won't be asked again
            await worker.draft_with(None, wedged_after_s(worker.variant))
        elif self._takes_another(worker):
            point = carried_out(self.point, action)
            await self._switch(SwitchWorker(action.id, point, HandoverMode.BREAK_BEFORE_MAKE))
        else:
            await self._add_draft(worker, wanted, action)

    def _set_mode(self, action: SetSpeculation) -> None:
        point = carried_out(self.point, action)
        if self._streams.active is not None:
            _speculate(self._streams.active, point.speculation)
        self.point = point

    def _takes_another(self, worker: Worker) -> bool:
        """True if this worker's decoder takes no draft, and one that is started with it would."""
        return self._settings.decoder == "generator" and worker.speculation == (SPECULATION_OFF,)

    async def _add_draft(self, worker: Worker, draft: VariantSpec, action: SetSpeculation) -> None:
        if worker.draft is not None:
            self._set_mode(replace(action, speculation=SPECULATION_NGRAM))  # it goes first
        try:
            reason = await worker.draft_with(draft, draft_timeout_s(draft))
        except WorkerError as error:
            told = "the worker died while it loaded"
            self.draft_lost(worker, draft, told)
            raise DraftError(f"{told} {draft.name} to draft") from error
        if reason:
            self.draft_lost(worker, draft, reason)
            self._set_mode(replace(action, speculation=SPECULATION_NGRAM))
        else:
            self._set_mode(action)

    async def _give_way(self, wanted_bytes: int) -> None:
        """The youngest conversations wait, and the memory of their KV comes back.

        Raises:
            ServingError: A worker doesn't let go of them in time.
        """
        before = self._available()
        expected = min(wanted_bytes, sum(one.kv_bytes for one in self._streams.could_give_way()))
        chosen = self._streams.give_way(wanted_bytes)
        deadline_s = self._clock.monotonic_s() + RELEASE_DEADLINE_S
        while any(stream.worker and stream.waits_for_room for stream in chosen):
            if self._clock.monotonic_s() >= deadline_s:
                told = f"the worker has not let go of them within {RELEASE_DEADLINE_S:.0f} s"
                raise ServingError(told, code="kv_not_given_back")
            await self._clock.sleep(RECOVERY_POLL_S)
        if before is not None:
            await self._recovered(before + int(expected * RECOVERED_RATIO))

    async def _place_kv(self, action: PlaceIdleKv) -> None:
        """Running conversations' KV goes to files now; it is written beside whatever comes.

        What a disk has to write may take it half a minute, in which memory can run short, and one
        that hangs never has it.

        Raises:
            ServingError: Running conversations' can't be moved.
        """
        self.point = carried_out(self.point, action)
        if self._pool.disk is not None:
            self._pool.disk.try_again()  # a plan counts on it: else everything may be parked
        if action.placement is not KvPlacement.DISK_ALL:
            return
        if reason := await self.running_kv.to_disk():
            raise ServingError(reason, code="kv_not_moved")

    async def follow_placement(self, room_bytes: Callable[[], float]) -> None:
        """Bring KV to where it belongs: idle conversations', the oldest first, then others'.

        Args:
            room_bytes: Memory that may be taken for that, now.

        Raises:
            ServingError: Not all can go there: the disk is full, or the quota or the daily budget
                is used up, or there is no memory.
        """
        reason = await self._seal_ended()
        if self.point.kv_placement is not KvPlacement.MEMORY:
            reason = await self._offload_idle() or reason
        if self.point.kv_placement is KvPlacement.DISK_ALL:
            reason = await self.running_kv.to_disk() or reason
        elif self.running_kv.on_disk:
            home = self.running_kv.to_memory(self._belongs_home, room_bytes)
            reason = await home or reason
        if reason:
            raise ServingError(reason, code="kv_not_moved")

    async def _seal_ended(self) -> str:
        reason = ""
        while (left := self._pool.to_seal()) is not None:
            reason = await self._pool.seal(left, self._clock.monotonic_s()) or reason
        return reason

    def _belongs_home(self) -> bool:
        """Whether running conversations' KV belongs in memory, and no plan is about to take it."""
        return self.point.kv_placement is not KvPlacement.DISK_ALL and not self.loading

    async def _offload_idle(self) -> str:
        """The oldest first; what is too large for the quota or the budget stops no other."""
        pool, refused, told = self._pool, list[Idle](), ""
        while (idle := pool.to_offload(refused)) is not None:
            now = self._clock.monotonic_s()
            if reason := await pool.offload(idle, now):
                refused.append(idle)
                told = reason
            if pool.disk is None or pool.disk.forbids(0, now):
                break
        return told

    # ------------------------------------------------------------ hand-over

    async def _switch(self, action: SwitchWorker) -> None:
        point, old = action.point, self._streams.active
        variant = self._variant(point)
        if old is not None and _serves(old, point):
            self._arrive(point, old)
            return
        breaks = old is not None and action.mode is HandoverMode.BREAK_BEFORE_MAKE
        new = self._supervisor.begin(self._launch(variant, point, held=breaks))
        try:
            if old is not None and breaks:
                # The new process starts meanwhile; what takes memory waits until it has come back.
                await self._retire(old, wait_for_memory=True)
                self.point = PARKED
                if old.hangs:
                    told = f"process {old.pid} of {old.variant.name} keeps its memory: it hangs"
                    raise HangingWorkerError(told)
                old = None
            await self._load(new)
        except BaseException:
            await self._supervisor.kill(new)
            raise
        self._arrive(point, new)
        if old is not None and old.alive:
            await self._retire(old, wait_for_memory=False)

    def _launch(self, variant: VariantSpec, point: OperatingPoint, *, held: bool) -> Launch:
        model = self._model
        assert model is not None
        return Launch(
            variant,
            point.threads,
            model.context_length,
            self._settings.decoder,
            self._variant_called(draft_of(point.speculation)),
            model.rope,
            self._streams.guided(),
            held=held or self._streams.count(StreamState.HELD) > 0,
        )

    async def _load(self, worker: Worker) -> None:
        name = worker.variant.name
        alone_s = self._load_s.get((name, ""))
        try:
            await self._supervisor.load(worker, self._load_s.get((name, _beside(worker)), alone_s))
        except (WorkerError, LateLoadError) as error:
            if (draft := worker.draft) is None:
                raise
            self.draft_lost(worker, draft, error.message)
            told = f"{error.message}; it is tried again without its draft {draft.name}"
            raise DraftError(told) from error
        assert worker.ready is not None
        beside = _beside(worker)  # its draft may be lost by now
        took_s = self._load_s[name, beside] = worker.ready.load_s
        held = anonymous_bytes(worker.pid or 0, self._settings.proc_root)
        if held is not None:
            self._post(WorkerMeasured(self._clock.monotonic_s(), name, held, took_s, beside))

    def _arrive(self, point: OperatingPoint, worker: Worker) -> None:
        """The point is in force: pace and context first, then the streams."""
        if point.pace_ratio < 1 or self.point.pace_ratio < 1:
            worker.send(Pace(ratio=point.pace_ratio))
        in_force = _with_what_drafts(point, worker)
        _speculate(worker, in_force.speculation)
        self.point = in_force
        self._context_changed(point.context)
        if self._streams.active is not worker:
            self._streams.attach(worker)

    async def _retire(self, worker: Worker, *, wait_for_memory: bool) -> None:
        """Take the streams off a worker, end it, and see its memory come back."""
        before = self._available()
        held = anonymous_bytes(worker.pid or 0, self._settings.proc_root) or 0
        self._streams.release(worker)
        if not await self._streams.released(worker, RELEASE_DEADLINE_S):
            # It does not answer. What it was sent for is in the records: nothing is lost.
            await worker.kill()
        await self._supervisor.retire(worker)
        self._streams.lost(worker)  # what it never let go of, too
        if wait_for_memory and before is not None:
            await self._recovered(before + int(held * RECOVERED_RATIO))

    async def _retire_strays(self) -> None:
        """End what a superseded plan had started or was about to end."""
        for worker in self._supervisor.workers:
            if worker is not self._streams.active:
                await self._retire(worker, wait_for_memory=False)
        if self._streams.active is None:
            self.point = PARKED

    async def _recovered(self, wanted_bytes: int) -> None:
        """Wait until the memory of an ended worker has really come back, up to a deadline."""
        deadline_s = self._clock.monotonic_s() + RECOVERY_DEADLINE_S
        while self._clock.monotonic_s() < deadline_s:
            available = self._available()
            if available is None or available >= wanted_bytes:
                return
            await self._clock.sleep(RECOVERY_POLL_S)

    async def _park(self) -> None:
        worker = self._streams.active
        if worker is not None:
            await self._retire(worker, wait_for_memory=True)
        self.point = PARKED

    def _variant_called(self, name: str | None) -> VariantSpec | None:
        return self._model.variant(name or "") if self._model is not None else None

    def _variant(self, point: OperatingPoint) -> VariantSpec:
        variant = self._variant_called(point.variant)
        if variant is None:
            raise LoadError(f"the model has no variant {point.variant}")
        return variant


def _beside(worker: Worker) -> str:
    """The draft that it loads or has loaded beside its variant; empty if none."""
    return worker.draft.name if worker.draft is not None else ""


def _serves(worker: Worker, point: OperatingPoint) -> bool:
    launch, draft = worker.launch, worker.draft.name if worker.draft is not None else None
    return (launch.variant.name, launch.threads, draft) == (
        point.variant,
        point.threads,
        draft_of(point.speculation),
    )


def _at_fault(action: Action, error: TrimtabError) -> str | None:
    """The variant that didn't load; None if it may be whole."""
    if not isinstance(action, SwitchWorker) or isinstance(error, DraftError | HangingWorkerError):
        return None
    return action.point.variant


def _with_what_drafts(point: OperatingPoint, worker: Worker) -> OperatingPoint:
    """The point with the mode that is left in this worker: a lost draft leaves n-grams."""
    if draft_of(point.speculation) is None or worker.draft is not None:
        return point
    return replace(point, speculation=SPECULATION_NGRAM)


def _speculate(worker: Worker, speculation: str) -> None:
    """Tell a worker which drafts it may use; one that can't draft stays as it is."""
    mode = "draft" if draft_of(speculation) is not None else speculation
    if mode in worker.speculation:
        worker.send(Speculate(mode=mode))
