"""All worker processes: started, watched, ended, counted. It decides nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from trimtab.domain.clock import Clock
from trimtab.domain.models import VariantSpec
from trimtab.workers.process import worker_argv
from trimtab.workers.protocol import FromWorker
from trimtab.workers.worker import Launch, Worker, WorkerState

LOAD_TIMEOUT_MIN_S: Final = 30.0
LOAD_TIMEOUT_UNMEASURED_S: Final = 120.0
"""A busy, slow board takes half a minute to import the engine alone."""

LOAD_TIMEOUT_FACTOR: Final = 10.0
SLOWEST_DISK_BYTES_S: Final = 5 * 1024 * 1024
"""A worn SD card under load: what a load that was never measured may take at least."""

WEDGED_AFTER_S: Final = 30.0
WEDGED_UNMEASURED_S: Final = 120.0
WEDGED_FACTOR: Final = 4.0
PIECE_TOKENS: Final = 64
PING_AFTER_S: Final = 20.0
"""An idle worker that hasn't been heard of for so long is asked whether it lives.

Less than the time between two looks at rest, so that each of them asks.
"""


def load_timeout_s(launch: Launch, measured_s: float | None) -> float:
    """How long a load may take: ten times what it took here, else by size on a slow disk.

    A draft's size always counts on top: it may not have been there when that was measured.
    """
    draft_s = launch.draft.disk_bytes / SLOWEST_DISK_BYTES_S if launch.draft is not None else 0.0
    if measured_s is not None:
        return max(LOAD_TIMEOUT_MIN_S, LOAD_TIMEOUT_FACTOR * measured_s) + draft_s
    variant_s = launch.variant.disk_bytes / SLOWEST_DISK_BYTES_S
    return max(LOAD_TIMEOUT_UNMEASURED_S, variant_s) + draft_s


def draft_timeout_s(draft: VariantSpec) -> float:
    """How long a draft may take to load in a worker that serves meanwhile: by size, as above."""
    return max(LOAD_TIMEOUT_UNMEASURED_S, draft.disk_bytes / SLOWEST_DISK_BYTES_S)


def wedged_after_s(variant: VariantSpec) -> float:
    """How long a worker with work may be silent.

    The longest silence of a healthy worker is one piece of a prompt: a big model on a small board
    takes half a minute for it.
    """
    if not variant.prefill_tps:
        return WEDGED_UNMEASURED_S
    return max(WEDGED_AFTER_S, WEDGED_FACTOR * PIECE_TOKENS / variant.prefill_tps)


def falters_after_s(variant: VariantSpec) -> float:
    """How long its longest piece of work takes, by the same reckoning."""
    return wedged_after_s(variant) / WEDGED_FACTOR


class Supervisor:
    """The owner of worker processes.

    Args:
        clock: For life signs.
        said: Told each message about a stream.
        lost: Told when a ready worker is gone that nobody had asked to stop.
        wrote: Told each line of a worker's standard error.
        argv: Command line of a worker whose end of the socketpair has this number.
    """

    def __init__(
        self,
        clock: Clock,
        said: Callable[[Worker, FromWorker], None],
        lost: Callable[[Worker, str], None],
        wrote: Callable[[Worker, str], None],
        argv: Callable[[int], list[str]] = worker_argv,
    ) -> None:
        self._clock = clock
        self._said = said
        self._lost = lost
        self._wrote = wrote
        self._argv = argv
        self._numbers = itertools.count(1)
        self._workers: list[Worker] = []
        self._hanging: list[Worker] = []
        self._awake_s = float("-inf")
        self.losses = 0

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Workers whose processes live, oldest first; those that hang aren't among them."""
        return tuple(self._workers)

    @property
    def hanging(self) -> tuple[Worker, ...]:
        """Workers that are gone, but for what their processes hold: SIGKILL hasn't ended them yet.

        Their memory comes back whenever the kernel can end them.
        """
        return tuple(self._hanging)

    def begin(self, launch: Launch) -> Worker:
        """Start a worker's process; it takes no memory to speak of until `load`.

        Raises:
            WorkerError: The process can't be started.
        """
        worker = Worker(next(self._numbers), launch, self._clock, self, self._argv)
        worker.begin()
        self._workers.append(worker)
        return worker

    async def load(self, worker: Worker, measured_s: float | None) -> None:
        """Load a worker's variant.

        Args:
            worker: Its process was begun here.
            measured_s: How long loading it took here before, with its draft or without any; None
                if it never was.

        Raises:
            LoadError: It does not load or not in time (`LateLoadError`); the process is gone.
            WorkerError: The process has died.
        """
        try:
            await worker.load(load_timeout_s(worker.launch, measured_s))
        except BaseException:
            self._forget(worker)
            raise

    async def start(self, launch: Launch, measured_s: float | None) -> Worker:
        """Start a worker and load its variant: `begin` and `load` in one.

        Raises:
            LoadError: It does not load or not in time; the process is gone.
            WorkerError: The process can't be started, or died.
        """
        worker = self.begin(launch)
        await self.load(worker, measured_s)
        return worker

    async def kill(self, worker: Worker) -> None:
        """End a worker that nothing was asked of; returns when it has been reaped, or hangs."""
        await worker.kill()
        self._forget(worker)

    async def retire(self, worker: Worker) -> None:
        """End a worker; returns when it has been reaped, or hangs."""
        await worker.stop()
        self._forget(worker)

    async def retire_all(self) -> None:
        """End all workers at once."""
        async with asyncio.TaskGroup() as group:
            for worker in self.workers:
                group.create_task(self.retire(worker))

    @property
    def busy(self) -> bool:
        """True if any worker had work when it was last looked at."""
        return any(worker.busy_s is not None for worker in self._workers)

    def silent_s(self, worker: Worker) -> float:
        """How long a worker that has work has shown no sign of life; 0 for one without."""
        if worker.busy_s is None:
            return 0.0
        return self._clock.monotonic_s() - max(worker.heard_s, worker.busy_s, self._awake_s)

    def falters(self, worker: Worker) -> bool:
        """True if it is silent for longer than the longest piece of work that it has."""
        return self.silent_s(worker) > falters_after_s(worker.variant)

    def unheard(self) -> list[Worker]:
        """Idle workers to be asked whether they live, since they might hang without notice.

        To be called after `shoot_wedged`.
        """
        now = self._clock.monotonic_s()
        return [
            worker
            for worker in self._workers
            if worker.state is WorkerState.READY
            and worker.busy_s is None
            and now - worker.heard_s >= PING_AFTER_S
        ]

    def shoot_wedged(
        self, has_work: Callable[[Worker], bool], awake_s: float = float("-inf")
    ) -> None:
        """SIGKILL workers that have work and have shown no sign of life for too long.

        So are those that answer no question for that long though they owe answers, whatever else
        they say.

        Args:
            has_work: Whether streams wait for a worker; what else it was asked is known here.
            awake_s: Since when the caller has been there without a break; silence before that
                isn't a worker's fault.
        """
        self._awake_s = awake_s
        now = self._clock.monotonic_s()
        for worker in self.workers:
            alive = worker.state in (WorkerState.READY, WorkerState.DRAINING)
            owes_since_s = worker.owes_since_s
            if not alive or (owes_since_s is None and not has_work(worker)):
                worker.busy_s = None
                continue
            if worker.busy_s is None:
                worker.busy_s = now if owes_since_s is None else owes_since_s
            silent_s, patience_s = self.silent_s(worker), wedged_after_s(worker.variant)
            if silent_s > patience_s:
                worker.shoot(f"no sign of life for {silent_s:.0f} s")
            elif owes_since_s is not None:
                owed_s = now - max(owes_since_s, awake_s)
                if owed_s > patience_s:
                    worker.shoot(f"no answer to a question for {owed_s:.0f} s")

    # ------------------------------------------------------------ WorkerListener

    def worker_said(self, worker: Worker, message: FromWorker) -> None:
        """Passed on."""
        self._said(worker, message)

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """Counted and passed on."""
        self.losses += 1
        self._forget(worker)
        self._lost(worker, reason)

    def worker_reaped(self, worker: Worker) -> None:
        """Nothing is left of it."""
        if worker in self._hanging:
            self._hanging.remove(worker)

    def worker_wrote(self, worker: Worker, line: str) -> None:
        """Passed on."""
        self._wrote(worker, line)

    def _forget(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            if worker.hangs:
                self._hanging.append(worker)
