"""The handle on the process that takes memory."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Final

import msgspec

from trimtab.bench.crossing import Crossing, Order
from trimtab.errors import WorkerError
from trimtab.workers.process import ChildProcess, describe_exit

ANSWER_TIMEOUT_S: Final = 20.0
END_GRACE_S: Final = 5.0


class Squeeze:
    """A child process that holds as much memory as it is told."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._process: ChildProcess | None = None
        self._socket: socket.socket | None = None
        self._status: int | None = None

    @property
    def pid(self) -> int | None:
        """Its process number; None before the start."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it; it holds nothing yet.

        Raises:
            WorkerError: It can't be started.
        """
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-m", "trimtab.bench.squeeze_child"]
        argv += ["--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        try:
            self._process = ChildProcess(argv, [theirs.fileno()], self._on_exit, _ignore)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket = ours

    async def hold(self, wanted_bytes: int) -> int:
        """Have it hold this much; returns what it really holds.

        Raises:
            WorkerError: It is gone: the kernel may have ended it to save the machine.
        """
        self.held_bytes = int(await self._order(b"%d" % max(0, wanted_bytes)))
        return self.held_bytes

    async def cross(self, order: Order) -> Crossing:
        """Have it push available memory under a limit; it goes on holding what that took.

        Raises:
            WorkerError: It is gone.
        """
        answer = await self._order(msgspec.json.encode(order))
        crossing = msgspec.json.decode(answer, type=Crossing)
        self.held_bytes = crossing.held_bytes
        return crossing

    async def _order(self, line: bytes) -> bytes:
        if self._socket is None:
            raise WorkerError("the squeeze has not been started")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await loop.sock_sendall(self._socket, line + b"\n")
                answer = b""
                while not answer.endswith(b"\n"):
                    piece = await loop.sock_recv(self._socket, 4096)
                    if not piece:
                        raise WorkerError(f"the squeezing process is gone{self._how()}")
                    answer += piece
        except OSError as error:  # TimeoutError is one too
            reason = error.strerror or "no answer"
            raise WorkerError(f"the squeezing process is gone: {reason}{self._how()}") from error
        return answer

    async def stop(self) -> None:
        """Let go of everything; returns when the process has been reaped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None and not await self._process.wait(END_GRACE_S):
            await self._process.end(END_GRACE_S)
        self.held_bytes = 0

    def _on_exit(self, status: int) -> None:
        self._status = status

    def _how(self) -> str:
        return "" if self._status is None else f" ({describe_exit(self._status)})"


def _ignore(line: str) -> None:
    """It says nothing in health; its last lines are kept by the process."""
