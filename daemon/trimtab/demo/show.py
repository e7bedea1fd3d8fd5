"""Puts the demo on: daemon, audience, squeeze and screen, and clears everything away afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import httpx

from trimtab.bench.child_daemon import ChildDaemon, Setup
from trimtab.bench.squeeze import Squeeze
from trimtab.demo.chats import Audience
from trimtab.demo.director import Director
from trimtab.demo.plan import Plan, policy_text
from trimtab.demo.recorder import PERIOD_S, Recorder
from trimtab.demo.result import Result, judge
from trimtab.demo.stage import Stage, Timeline
from trimtab.errors import WorkerError
from trimtab.runtime.clock import SystemClock

READY_S: Final = 120.0
LAST_CHATS_S: Final = 60.0
NOTICE_S: Final = 0.2
"""In which the end of a process that has ended is noticed."""

SOCKET_PATH_ROOM: Final = 60
"""A socket's path holds 107 bytes; a temporary folder in a deep place would not leave enough."""


class Screen(Protocol):
    """Where the demo is shown."""

    def draw(self, stage: Stage) -> None:
        """Show the stage as it is now; called some times a second."""


@dataclass(frozen=True, slots=True)
class Cast:
    """What the demo is run with.

    Attributes:
        models: Folders that hold models.
        plan: The limits.
        title: The model's name for people.
    """

    models: Sequence[Path]
    plan: Plan
    title: str


@dataclass(frozen=True, slots=True)
class Props:
    """What the acts are played with."""

    stage: Stage
    daemon: ChildDaemon
    squeeze: Squeeze
    time: Timeline


async def by_pressure(props: Props) -> None:
    """The acts of the demo: real memory is taken and given back."""
    await Director(props.stage, props.squeeze, props.time).run()


async def put_on(
    cast: Cast, screen: Screen, acts: Callable[[Props], Awaitable[None]] = by_pressure
) -> tuple[Result, Stage]:
    """Run the demo.

    Whatever ends it, an error and Ctrl-C included: afterwards there is no process, no memory and no
    folder of it left.

    Args:
        cast: What to run it with.
        screen: Where to show it.
        acts: What happens; afterwards no new chats are begun.

    Raises:
        WorkerError: The daemon or the squeezing process ended.
        KeyboardInterrupt: It was told to stop by a signal.
    """
    time = Timeline(SystemClock())
    stage = Stage(cast.plan, cast.title)
    with tempfile.TemporaryDirectory(prefix="trimtab-demo-", dir=_short_place()) as folder:
        setup = Setup(cast.models, cast.plan.model, policy_text(cast.plan), tick_s=PERIOD_S)
        props = Props(stage, ChildDaemon(Path(folder), setup), Squeeze(), time)
        async with _ended_by_signals(), _cleared_away(props.squeeze.stop, props.daemon.stop):
            stage.line = "The daemon starts and loads the best variant that fits."
            screen.draw(stage)
            await props.daemon.start(READY_S)
            props.squeeze.start()
            await _play(props, screen, acts)
    return judge(stage, time.now()), stage


async def _play(props: Props, screen: Screen, acts: Callable[[Props], Awaitable[None]]) -> None:
    stage, squeeze, time = props.stage, props.squeeze, props.time
    async with props.daemon.client() as asking, props.daemon.client(timeout_s=None) as streaming:
        recorder = Recorder(asking, streaming, stage, squeeze, time)
        audience = Audience(streaming, stage, time)
        try:
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(recorder.look_on(lambda: screen.draw(stage)))
                following = group.create_task(recorder.follow_decisions())
                chatting = group.create_task(audience.chat_until_closing())
                try:
                    await acts(props)
                finally:
                    stage.closing = True
                await asyncio.wait([chatting], timeout=LAST_CHATS_S)
                for task in (looking, following, chatting):
                    task.cancel()
        except ExceptionGroup as errors:
            raise await _fault(errors, props.daemon) from None


async def _fault(errors: ExceptionGroup[Exception], daemon: ChildDaemon) -> Exception:
    """What to tell: if the daemon is gone, that is the fault, whoever noticed it."""
    await asyncio.sleep(NOTICE_S)
    if daemon.ended:
        return WorkerError(f"the daemon ended with {daemon.ended}")
    first = errors.exceptions[0]
    if isinstance(first, httpx.HTTPError):
        return WorkerError(f"the daemon's answer broke off: {first!r}")
    return first


@contextlib.asynccontextmanager
async def _cleared_away(*ends: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run every one of ``ends`` whatever happens, also if one of them fails."""
    async with contextlib.AsyncExitStack() as stack:
        for end in reversed(ends):
            stack.push_async_callback(end)
        yield


@contextlib.asynccontextmanager
async def _ended_by_signals() -> AsyncIterator[None]:
    """SIGTERM and a closed terminal end the demo like Ctrl-C: with everything cleared away."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _short_place() -> str | None:
    """The folder for temporary files, unless its path is too long for sockets below it."""
    usual = tempfile.gettempdir()
    return usual if len(usual.encode()) <= SOCKET_PATH_ROOM else "/tmp"  # noqa: S108  # mkdtemp below
