"""One child process: started from the main thread, watched by descriptor, ended for certain.

The child is told its end of a socketpair with ``--fd``. It dies with the controller (it sets
PR_SET_PDEATHSIG itself, after exec, and takes the end of the socketpair as a second signal). It is
signalled and awaited through a pidfd, so that a number that the kernel has given to somebody else
is never hit.

A process that sleeps in the kernel without a break (it reads a file on a disk that hangs) isn't
ended by SIGKILL before it wakes. It never runs its program again all the same: it is given up after
a while, and reaped whenever that can be.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from trimtab.errors import WorkerError

STDERR_LINES: Final = 20
STDERR_LINE_BYTES: Final = 2000
REAP_S: Final = 5.0
"""How long a child may take to end after SIGKILL; giving gigabytes back takes the kernel less."""

_FIRST_VICTIM: Final = "1000"


class ChildProcess:
    """A running child.

    Args:
        argv: Program and arguments.
        pass_fds: Descriptors that the child keeps under the same numbers.
        on_exit: Called once in the event loop with the exit status as `subprocess` gives it
            (negative for a signal), after the child has been reaped.
        on_line: Called with each line that the child writes to its standard error.
        env: The child's environment; None for ours.
        on_hang: Called once in the event loop if the child hasn't ended `REAP_S` after SIGKILL;
            ``on_exit`` still comes if it ends later.

    Raises:
        WorkerError: The program can't be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        pass_fds: Sequence[int],
        on_exit: Callable[[int], None],
        on_line: Callable[[str], None],
        env: dict[str, str] | None = None,
        on_hang: Callable[[], None] | None = None,
    ) -> None:
        self._on_exit = on_exit
        self._on_hang = on_hang
        self._killed: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()  # it has been reaped or given up
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=STDERR_LINES)
        self._partial = b""
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            self._popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=tuple(pass_fds),
                env=env,
                process_group=0,
                close_fds=True,
            )
        except OSError as error:
            raise WorkerError(f"{argv[0]} can't be started: {error.strerror}") from error
        stderr = self._popen.stderr
        assert stderr is not None
        self._stderr = stderr
        os.set_blocking(stderr.fileno(), False)
        self._loop.add_reader(stderr.fileno(), self._read_stderr)
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """The child's number, also after its end."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """False once the child has been reaped."""
        return not self._exited.is_set()

    @property
    def hangs(self) -> bool:
        """True once it has been given up, until it is reaped after all."""
        return self.alive and self._over.is_set()

    @property
    def stderr_tail(self) -> str:
        """The last lines of the child's standard error."""
        return "\n".join(self._tail)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; harmless after the end."""
        if self.alive:
            if number is signal.SIGKILL and self._killed is None:
                self._killed = self._loop.call_later(REAP_S, self._give_up)
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                pass  # it has ended and is about to be reaped

    def be_first_victim(self) -> str:
        """When memory runs out, the kernel is to take the child before anybody else.

        A child begins with our own score, with which the kernel never takes it.

        Returns:
            Why it was not done, in words; empty if it was.
        """
        try:
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(_FIRST_VICTIM, encoding="ascii")
        except ProcessLookupError:
            return ""  # it has ended
        except OSError as error:
            return str(error)
        return ""

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False if the child lives on after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()
        except TimeoutError:
            return False
        return True

    async def end(self, grace_s: float) -> None:
        """SIGTERM, a deadline, SIGKILL; returns when the child has been reaped, or hangs."""
        self.signal(signal.SIGTERM)
        if not await self.wait(grace_s):
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL; returns when the child has been reaped, or hangs."""
        self.signal(signal.SIGKILL)
        await self._over.wait()

    def _give_up(self) -> None:
        self._over.set()
        if self._on_hang is not None:
            self._on_hang()

    def _reap(self) -> None:
        # The pidfd is readable as soon as the child is a zombie, so this wait does not block.
        status = self._popen.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._read_stderr()
        if not self._stderr.closed:
            self._loop.remove_reader(self._stderr.fileno())
            self._stderr.close()
        if self._killed is not None:
            self._killed.cancel()
        self._exited.set()
        self._over.set()
        self._on_exit(status)

    def _read_stderr(self) -> None:
        while not self._stderr.closed:
            try:
                data = os.read(self._stderr.fileno(), 65536)
            except BlockingIOError:
                return
            if not data:
                self._loop.remove_reader(self._stderr.fileno())
                self._stderr.close()
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._partial = self._partial[:STDERR_LINE_BYTES]
            for line in lines:
                text = line[:STDERR_LINE_BYTES].decode(errors="replace").rstrip()
                if text:
                    self._tail.append(text)
                    self._on_line(text)


def describe_exit(status: int) -> str:
    """An exit status in words: ``killed by SIGKILL``, ``exit status 3``."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"killed by {name}"


def worker_argv(descriptor: int) -> list[str]:
    """The command line of a worker whose end of the socketpair is ``descriptor``."""
    return [sys.executable, "-m", "trimtab.worker", "--fd", str(descriptor)]
