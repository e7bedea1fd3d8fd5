"""One worker as the controller sees it: its process, its channel and its state."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from signal import SIGKILL
from typing import Any, Final, Protocol, TypeVar

from trimtab.domain.clock import Clock
from trimtab.domain.models import RopeSpec, VariantSpec
from trimtab.errors import (
    LateLoadError,
    LoadError,
    RequestError,
    SilentWorkerError,
    WorkerError,
)
from trimtab.workers.channel import CLOSED, Channel
from trimtab.workers.process import REAP_S, ChildProcess, describe_exit, worker_argv
from trimtab.workers.protocol import (
    DraftSet,
    DraftWith,
    FromWorker,
    Guide,
    Load,
    LoadFailed,
    Ping,
    Pong,
    Ready,
    Render,
    Rendered,
    RenderFailed,
    Stop,
    ToWorker,
)

T = TypeVar("T")

STOP_GRACE_S: Final = 2.0
CLOSED_GRACE_S: Final = 1.0


class WorkerState(StrEnum):
    """The life of a worker."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


_SERVES: Final = (WorkerState.READY, WorkerState.DRAINING)


@dataclass(frozen=True, slots=True)
class Launch:
    """What a worker is started with.

    Attributes:
        variant: To be loaded.
        threads: Engine threads.
        context: The most tokens that any stream will have.
        decoder: ``auto``, ``generator`` or ``kv``.
        draft: Another variant of the model that drafts for it in the same KV from the start; None
            for none.
        rope: How the model turns positions into keys; None where that follows no single base.
        guided: Whether there are streams now that are held to a form.
        held: Streams that have begun wait for it.
    """

    variant: VariantSpec
    threads: int
    context: int
    decoder: str = "auto"
    draft: VariantSpec | None = None
    rope: RopeSpec | None = None
    guided: bool = False
    held: bool = False


class WorkerListener(Protocol):
    """Who is told what a worker says. Called in the event loop, in order."""

    def worker_said(self, worker: Worker, message: FromWorker) -> None:
        """A message about a stream."""

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """A worker that had been ready is gone, and nobody had asked it to stop.

        It never runs its program again; one that hangs hasn't been reaped yet.
        """

    def worker_reaped(self, worker: Worker) -> None:
        """A worker's process has ended, and what it held has come back."""

    def worker_wrote(self, worker: Worker, line: str) -> None:
        """A line on the worker's standard error."""


@dataclass(frozen=True, slots=True)
class _Drafting:
    """The last order to draft with a variant, or with none, while its answer is awaited.

    Attributes:
        id: Of the order.
        draft: The variant; None for none.
        answer: Why there is no draft though one is wanted; empty if all is as wanted.
    """

    id: int
    draft: VariantSpec | None
    answer: asyncio.Future[str]


class Worker:
    """A supervised process with one variant.

    Args:
        number: Counts up, for logs.
        launch: What to load.
        clock: For times of life signs.
        listener: Is told about streams and about the loss of the worker.
        argv: Command line of a worker whose end of the socketpair has this number.

    Attributes:
        draft: The variant that drafts in it; None where none does, or none does any more.
        draft_lost: Why there is none though one was wanted, in words; empty otherwise.
        speculation: Modes that it may be asked for.
    """

    def __init__(
        self,
        number: int,
        launch: Launch,
        clock: Clock,
        listener: WorkerListener,
        argv: Callable[[int], list[str]] = worker_argv,
    ) -> None:
        self.number = number
        self.launch = launch
        self.state = WorkerState.STOPPED
        self.ready: Ready | None = None
        self.resident_bytes: int | None = None
        self.draft = launch.draft
        self.draft_lost = ""
        self.speculation: tuple[str, ...] = ()
        self.tokens = 0  # that it has decoded and we have; those that come of reading don't count
        self.heard_s = clock.monotonic_s()
        self.busy_s: float | None = None  # since when it has work; kept by the supervisor
        self._clock = clock
        self._listener = listener
        self._argv = argv
        self._process: ChildProcess | None = None
        self._channel: Channel | None = None
        self._loaded: asyncio.Future[Ready] | None = None
        self._renders: dict[int, asyncio.Future[list[int]]] = {}
        self._pings: dict[int, asyncio.Future[Pong]] = {}
        self._drafting: _Drafting | None = None
        self._unanswered: dict[int, float] = {}  # when renders and pings were sent, oldest first
        self._answered_s = 0.0  # when it last answered the oldest of them
        self._ids = itertools.count(1)
        self._wedged = ""

    @property
    def variant(self) -> VariantSpec:
        """The variant that it has or is loading."""
        return self.launch.variant

    @property
    def pid(self) -> int | None:
        """Its process number; None before the start."""
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.alive

    @property
    def hangs(self) -> bool:
        """True if SIGKILL hasn't ended it in time: it is gone, but for what it holds."""
        return self._process is not None and self._process.hangs

    @property
    def owes_since_s(self) -> float | None:
        """Since when it owes an answer; None if it owes none.

        It answers one question after the other, so the oldest open one waits from when it was
        asked, or from the answer to the one before. Whether anybody still waits doesn't matter.
        """
        oldest_s = next(iter(self._unanswered.values()), None)
        return None if oldest_s is None else max(oldest_s, self._answered_s)

    def begin(self) -> None:
        """Start the process, which gets ready for anything and waits to be told what to load.

        Raises:
            WorkerError: The process can't be started.
        """
        self.state = WorkerState.STARTING
        ours, theirs = socket.socketpair()
        self._loaded = asyncio.get_running_loop().create_future()
        self._loaded.add_done_callback(_took_note)
        try:
            self._process = ChildProcess(
                self._argv(theirs.fileno()),
                [theirs.fileno()],
                self._on_exit,
                self._on_line,
                on_hang=self._on_hang,
            )
        except BaseException:
            ours.close()
            self.state = WorkerState.FAILED
            raise
        finally:
            theirs.close()
        reason = self._process.be_first_victim()  # its streams can be brought back
        if reason:
            self._on_line(f"its OOM score stays as low as the controller's: {reason}")
        self._channel = Channel(ours, self._on_message, self._on_close)

    def _what_to_load(self) -> Load:
        launch, draft = self.launch, self.launch.draft
        return Load(
            folder=launch.variant.folder,
            threads=launch.threads,
            decoder=launch.decoder,
            context=launch.context,
            indices_graph=launch.variant.indices_graph,
            draft=draft.folder if draft is not None else "",
            draft_indices_graph=draft.indices_graph if draft is not None else "",
            rope=launch.rope,
            guided=launch.guided,
            held=launch.held,
        )

    async def load(self, timeout_s: float) -> Ready:
        """Have the process that was begun load the variant.

        A worker that fails here has been ended and reaped when the exception comes.

        Raises:
            LoadError: It does not load, or not within ``timeout_s`` (`LateLoadError`).
            WorkerError: The process dies.
        """
        assert self._loaded is not None, "the process was never begun"
        name = self.variant.name
        try:
            if not self._loaded.done():  # else it has died already, and this says of what
                self.send(self._what_to_load())
            async with asyncio.timeout(timeout_s):
                self.ready = await self._loaded
            if not self.alive or self.hangs:
                raise WorkerError(f"variant {name} loaded, and its worker died at once")
        except TimeoutError as error:
            await self.kill()
            told = f"variant {name} did not load within {timeout_s:.0f} s"
            raise LateLoadError(told) from error
        except BaseException:
            await self.kill()
            raise
        self.state = WorkerState.READY
        self.resident_bytes = self.ready.resident_bytes
        self.speculation = self.ready.speculation
        return self.ready

    def lose_draft(self, reason: str) -> None:
        """Its draft can't be used: it has none any more."""
        self.draft, self.draft_lost = None, reason

    async def draft_with(self, draft: VariantSpec | None, timeout_s: float) -> str:
        """Have it draft with a variant, which is loaded beside its streams, or with none.

        The draft that there is goes first. Where this is given up, or the new one isn't there in
        time, the worker is told to throw away what it loads.

        Args:
            draft: A variant of the model.
            timeout_s: How long it may take.

        Returns:
            Why there is no draft though one was wanted, in words; empty if all is as wanted.

        Raises:
            WorkerError: The worker is gone, or doesn't let go of its draft in time
                (`SilentWorkerError`).
        """
        self.draft, self.draft_lost = None, ""
        answer = self._order_draft(draft)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            if draft is None:
                raise SilentWorkerError(
                    f"its draft was not let go of in {timeout_s:.0f} s"
                ) from error
            self._give_up_draft()
            return f"it did not load within {timeout_s:.0f} s"
        except asyncio.CancelledError:
            if draft is not None:
                self._give_up_draft()
            raise

    def _order_draft(self, draft: VariantSpec | None) -> asyncio.Future[str]:
        number = next(self._ids)
        folder, graph = ("", "") if draft is None else (draft.folder, draft.indices_graph)
        self.send(DraftWith(number, folder, graph))
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_took_note)
        self._drafting = _Drafting(number, draft, answer)
        return answer

    def _give_up_draft(self) -> None:
        self.draft = None
        try:
            self._order_draft(None)
        except WorkerError:
            pass  # it is gone, and its draft with it

    def send(self, message: ToWorker, descriptors: Sequence[int] = ()) -> None:
        """Send a message.

        Raises:
            WorkerError: The worker is gone.
        """
        if self._channel is None:
            raise WorkerError("the worker has not been started")
        self._channel.send(message, descriptors)

    async def render(
        self,
        *,
        messages: list[dict[str, Any]] | None = None,
        text: str | None = None,
        tools: list[dict[str, Any]] | None = None,
        guide: Guide | None = None,
        known: list[int] | None = None,
        timeout_s: float | None = None,
    ) -> list[int]:
        """Token ids of a prompt.

        Args:
            messages: Chat messages, for the template.
            text: Text as it is, if there are no messages.
            tools: For the template.
            guide: What the answer has to look like.
            known: Token ids of a conversation that the prompt probably goes on with.
            timeout_s: How long the answer may take; None: as long as the worker lives.

        Raises:
            RequestError: Template or tokenizer refuse it, or the guide can't be enforced.
            WorkerError: The worker is gone, or does not answer in time (`SilentWorkerError`).
        """
        number = next(self._ids)
        question = Render(number, messages, text, tools, guide, known or [])
        return await self._answer(question, self._renders, timeout_s)

    async def ping(self, timeout_s: float) -> Pong:
        """Fresh statistics.

        Raises:
            WorkerError: The worker is gone, or does not answer in time (`SilentWorkerError`).
        """
        return await self._answer(Ping(id=next(self._ids)), self._pings, timeout_s)

    async def _answer(
        self,
        question: Render | Ping,
        waiting: dict[int, asyncio.Future[T]],
        timeout_s: float | None,
    ) -> T:
        """Ask, and wait for the answer; the worker owes it even when nobody waits any more.

        Raises:
            WorkerError: The worker is gone, or does not answer in time (`SilentWorkerError`).
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.send(question)
        self._unanswered[question.id] = self._clock.monotonic_s()
        waiting[question.id] = future
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise SilentWorkerError(f"no answer within {timeout_s:.0f} s") from error
        finally:
            waiting.pop(question.id, None)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask for the end, then SIGTERM, then SIGKILL.

        Returns when it has been reaped, or hangs.
        """
        if self._process is None or not self._process.alive:
            self.state = WorkerState.STOPPED
            return
        if self._process.hangs:
            return
        self.state = WorkerState.STOPPING
        if self._channel is not None and not self._channel.closed:
            try:
                self._channel.send(Stop())
            except WorkerError:
                pass  # it is going anyway
        if not await self._process.wait(grace_s):
            await self._process.end(grace_s)
        self._close()
        self.state = WorkerState.FAILED if self._process.alive else WorkerState.STOPPED

    async def kill(self) -> None:
        """SIGKILL; returns when it has been reaped, or hangs. For a worker that isn't trusted."""
        self.state = WorkerState.FAILED
        if self._process is not None and self._process.alive:
            await self._process.kill()
        self._close()

    def shoot(self, reason: str) -> None:
        """SIGKILL without waiting, for a worker that is wedged; its loss is reported as usual.

        Where it can't be reaped it is reported all the same, once it hangs. Of several reasons the
        first one is told.
        """
        if self._process is not None:
            self._wedged = self._wedged or reason
            self._process.signal(SIGKILL)

    def _on_message(self, message: FromWorker) -> None:
        self.heard_s = self._clock.monotonic_s()
        if isinstance(message, Rendered | RenderFailed | Pong):
            self._answered(message.id)
        match message:
            case Ready():
                self._resolve(message)
            case LoadFailed():
                self._fail_load(LoadError(message.message, code=message.code))
            case Rendered() | RenderFailed():
                self._rendered(message)
            case Pong():
                self.resident_bytes = message.resident_bytes
                if (ping := self._pings.get(message.id)) and not ping.done():
                    ping.set_result(message)
            case DraftSet():
                self._drafted(message)
            case _:
                self._listener.worker_said(self, message)

    def _rendered(self, message: Rendered | RenderFailed) -> None:
        rendered = self._renders.get(message.id)
        if rendered is None or rendered.done():
            return
        if isinstance(message, Rendered):
            rendered.set_result(message.tokens)
        else:
            error = RequestError(message.message, param=message.field, code=message.code)
            rendered.set_exception(error)

    def _drafted(self, message: DraftSet) -> None:
        self.speculation, self.resident_bytes = message.speculation, message.resident_bytes
        drafting = self._drafting
        if drafting is not None and drafting.id == message.id:
            self._drafting = None
            self.draft = None if message.reason else drafting.draft
            if not drafting.answer.done():
                drafting.answer.set_result(message.reason)

    def _answered(self, question: int) -> None:
        if question == next(iter(self._unanswered), None):
            self._answered_s = self.heard_s
        self._unanswered.pop(question, None)

    def _resolve(self, ready: Ready) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(ready)

    def _fail_load(self, error: Exception) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(error)

    def _on_line(self, line: str) -> None:
        self._listener.worker_wrote(self, line)

    def _on_close(self, reason: str) -> None:
        # A worker that closed its end is on its way out: its exit tells more. One that talks
        # nonsense is of no use any more.
        if self._process is None or self.state is WorkerState.STOPPING:
            return
        if reason == CLOSED:
            asyncio.get_running_loop().call_later(CLOSED_GRACE_S, self._process.signal, SIGKILL)
        else:
            self.shoot(reason)

    def _on_exit(self, status: int) -> None:
        self._hear_all()
        reason = self._wedged or describe_exit(status)
        tail = self._process.stderr_tail.splitlines() if self._process is not None else []
        if tail and status > 0:
            reason = f"{reason}: {tail[-1]}"
        self._gone(reason)
        self._listener.worker_reaped(self)

    def _on_hang(self) -> None:
        told = f"SIGKILL has not ended it within {REAP_S:.0f} s"
        if self.state not in _SERVES:  # else its loss says so
            self._on_line(told)
        self._hear_all()
        self._gone(f"{self._wedged}; {told}" if self._wedged else told)

    def _hear_all(self) -> None:
        """What it had said before it was gone counts."""
        if self._channel is not None:
            self._channel.drain()

    def _gone(self, reason: str) -> None:
        """It never says anything again."""
        was = self.state
        self._close()
        self._fail_load(WorkerError(f"the worker for {self.variant.name} died: {reason}"))
        if was in _SERVES:
            self.state = WorkerState.FAILED
            self._listener.worker_lost(self, reason)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        gone = WorkerError("the worker is gone")
        for render in self._renders.values():
            if not render.done():
                render.set_exception(gone)
        for ping in self._pings.values():
            if not ping.done():
                ping.set_exception(gone)
        if self._drafting is not None and not self._drafting.answer.done():
            self._drafting.answer.set_exception(gone)


def _took_note(answer: asyncio.Future[Any]) -> None:
    """A process may end while nobody waits for its answer: that is no fault that was missed."""
    if not answer.cancelled():
        answer.exception()
