"""One real worker process that is measured: streams are started and every message is timed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trimtab.domain.clock import Clock
from trimtab.domain.process_memory import Holdings
from trimtab.errors import EngineError, WorkerError
from trimtab.profile.process_facts import read_holdings
from trimtab.profile.threads import read_threads, waited_s
from trimtab.serving.segments import Segment
from trimtab.workers.protocol import (
    Failed,
    Finished,
    FromWorker,
    Progress,
    Ready,
    Sampling,
    Speculate,
    Start,
    Tokens,
)
from trimtab.workers.supervisor import load_timeout_s
from trimtab.workers.worker import Launch, Worker

STREAM_TIMEOUT_S: Final = 600.0
PING_TIMEOUT_S: Final = 30.0
LEAST_RATIO: Final = 0.05
"""A sample that waited for more than 95 % of its time keeps this part of it."""

TIDY_S: Final = 0.5
"""What a loaded worker takes to lay its weights into huge pages: it decodes faster from then on."""

SETTLE_S: Final = 0.15
"""After this the worker has given back what it had freed."""


@dataclass(slots=True)
class Times:
    """When what was heard of a stream, in seconds from its start.

    Attributes:
        pieces: Prompt tokens in the cache, and when.
        tokens: When each token came.
        ids: The tokens.
        text: The answer.
        waited_s: Of that time, how long the engine waited for a core until the first token, and
            after it.
        anonymous_bytes: What the worker held at the first token, KV segments not counted.
        end: The last message.
    """

    pieces: list[tuple[int, float]] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: str = ""
    waited_s: tuple[float, float] = (0.0, 0.0)
    anonymous_bytes: int = 0
    end: Finished | None = None

    @property
    def first_s(self) -> float:
        """Start to first token, without the time in which others had the core."""
        return _without(self.tokens[0], self.waited_s[0])

    @property
    def first_wait_ratio(self) -> float:
        """Share of that time in which others had the core."""
        return min(1.0, self.waited_s[0] / self.tokens[0])

    @property
    def token_s(self) -> float:
        """Mean time of a token after the first, without the time in which others had the core."""
        wall = self.tokens[-1] - self.tokens[0]
        return _without(wall, self.waited_s[1]) / max(1, len(self.tokens) - 1)

    @property
    def token_wall_s(self) -> float:
        """The same as the clock on the wall has it."""
        return (self.tokens[-1] - self.tokens[0]) / max(1, len(self.tokens) - 1)

    @property
    def token_wait_ratio(self) -> float:
        """Share of the time after the first token in which others had the core."""
        wall = self.tokens[-1] - self.tokens[0]
        return min(1.0, self.waited_s[1] / wall) if wall > 0 else 0.0


def _without(wall_s: float, waited_s: float) -> float:
    """Time less what was waited, but at least a small part of it.

    The two are read one after the other, and threads that we don't wait for count as well.
    """
    return max(1e-6, wall_s * LEAST_RATIO, wall_s - waited_s)


class Session:
    """A worker with one variant, from its start to its end.

    Args:
        launch: What to load.
        clock: Time.
        proc_root: Where processes are seen.

    Attributes:
        load_s: From the start of the process until it could serve, without the time in which others
            had the core.
        load_wait_ratio: Share of that time which they had.
        ready: What the worker said then.
    """

    def __init__(self, launch: Launch, clock: Clock, proc_root: Path = Path("/proc")) -> None:
        self.launch = launch
        self.load_s = 0.0
        self.load_wait_ratio = 0.0
        self.ready: Ready | None = None
        self._clock = clock
        self._proc = proc_root
        self._worker = Worker(1, launch, clock, self)
        self._numbers = itertools.count(1)
        self._heard: asyncio.Queue[FromWorker | WorkerError] = asyncio.Queue()

    async def __aenter__(self) -> Session:
        """Start the process and load the variant.

        Raises:
            LoadError: It does not load.
            WorkerError: The process can't be started, or died.
        """
        begun_s = self._clock.monotonic_s()
        self._worker.begin()
        self.ready = await self._worker.load(load_timeout_s(self.launch, None))
        wall_s = self._clock.monotonic_s() - begun_s
        lost_s = waited_s({}, read_threads(self.pid, self._proc))
        self.load_s = _without(wall_s, lost_s)
        self.load_wait_ratio = min(1.0, lost_s / wall_s)
        await self._clock.sleep(TIDY_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it; returns when the process is gone."""
        await self._worker.stop()

    @property
    def pid(self) -> int:
        """Of the process."""
        pid = self._worker.pid
        if pid is None:
            raise WorkerError("the worker has not been started")
        return pid

    @property
    def has_segments(self) -> bool:
        """Whether it can go on from a KV segment of ours."""
        return self.ready is not None and self.ready.decoder == "kv"

    async def holdings(self) -> Holdings:
        """What it holds once it has given back what it had freed."""
        await self._clock.sleep(SETTLE_S)
        await self._worker.ping(PING_TIMEOUT_S)
        return read_holdings(self.pid, self._proc)

    async def tokens_of(self, text: str) -> list[int]:
        """A text as token ids."""
        return await self._worker.render(text=text)

    async def prompt_of(self, message: str) -> list[int]:
        """A question as the chat template puts it."""
        return await self._worker.render(messages=[{"role": "user", "content": message}])

    def speculate(self, mode: str) -> None:
        """Turn drafting on or off."""
        self._worker.send(Speculate(mode))

    async def stream(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        generated: Sequence[int] = (),
        segment: Segment | None = None,
        valid: int = 0,
        ignore_eos: bool = True,
    ) -> Times:
        """Run one greedy stream to its end.

        Args:
            prompt: Token ids.
            max_tokens: How many to generate, those in ``generated`` included.
            generated: What another worker has generated already.
            segment: Where its KV cache is; None: the worker makes one.
            valid: Tokens whose KV is in the segment already.
            ignore_eos: Go on past the end of the answer.

        Raises:
            EngineError: The worker refuses or fails.
            WorkerError: The worker died.
        """
        number = next(self._numbers)
        times = Times()
        before = read_threads(self.pid, self._proc)
        begun_s = self._clock.monotonic_s()
        self._worker.send(
            Start(
                stream=number,
                prompt=list(prompt),
                generated=list(generated),
                max_tokens=max_tokens,
                context=self.launch.context,
                sampling=Sampling(),
                ignore_eos=ignore_eos,
                segment=segment is not None,
                valid=valid,
            ),
            [segment.descriptor] if segment is not None else [],
        )
        middle = before
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            while times.end is None:
                message = await self._heard.get()
                at_s = self._clock.monotonic_s() - begun_s
                if isinstance(message, Tokens) and not times.tokens:
                    middle = read_threads(self.pid, self._proc)
                    times.anonymous_bytes = read_holdings(self.pid, self._proc).anonymous_bytes
                self._take(message, at_s, times)
        after = read_threads(self.pid, self._proc)
        times.waited_s = (waited_s(before, middle), waited_s(middle, after))
        return times

    def _take(self, message: FromWorker | WorkerError, at_s: float, times: Times) -> None:
        match message:
            case WorkerError():
                raise message
            case Failed():
                raise EngineError(message.message, code=message.code)
            case Progress():
                times.pieces.append((message.done, at_s))
            case Tokens():
                times.tokens += [at_s] * len(message.tokens)
                times.ids += message.tokens
                times.text += message.text
            case Finished():
                times.text += message.text
                times.end = message
            case _:
                pass

    # ------------------------------------------------------------ WorkerListener

    def worker_said(self, worker: Worker, message: FromWorker) -> None:
        """A message about the stream that runs."""
        self._heard.put_nowait(message)

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """The worker died while it was measured."""
        name = self.launch.variant.name
        self._heard.put_nowait(WorkerError(f"the worker for {name} died: {reason}"))

    def worker_reaped(self, worker: Worker) -> None:
        """Its loss has been told."""

    def worker_wrote(self, worker: Worker, line: str) -> None:
        """What libraries print says nothing about speed."""
