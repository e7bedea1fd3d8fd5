"""Hears what comes while the engine runs, so that a long run can be cut short.

The worker's one thread is inside the engine then. A second one takes in what arrives on the
channel meanwhile and looks at it, without handing it out: if it ends the stream that is being
computed for, or the worker, the engine is told to give up its run. The first thread finds the
message where it looks for messages. The two never take in at the same time: the first one settles
with the second before it looks, and before the engine runs again. What a run brought can be sent
before that.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final, TypeAlias

import msgspec

from trimtab.errors import WorkerError
from trimtab.worker.channel import Channel
from trimtab.workers.protocol import Cancel, Detach, Pause, Stop, decode_to_worker

Interrupt: TypeAlias = Callable[[bool], None]
"""Has the engine give up its run; called with False, takes that back."""


class Listener:
    """Listens during the engine's runs.

    Args:
        channel: To the controller.

    Attributes:
        signalled: A descriptor for `signal.set_wakeup_fd`: signals cut a run short too.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        woken, self.signalled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        for descriptor in (channel.fileno(), self._over, woken):
            self._poll.register(descriptor, select.POLLIN)
        self._runs: SimpleQueue[tuple[int, Interrupt]] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._unsettled: Interrupt | None = None
        threading.Thread(target=self._serve, name="listener", daemon=True).start()

    @contextmanager
    def during(self, stream: int, interrupt: Interrupt) -> Iterator[None]:
        """Listen while the body runs the engine for a stream; to be settled afterwards."""
        self.settle()
        self._unsettled = interrupt
        self._runs.put((stream, interrupt))
        try:
            yield
        finally:
            os.eventfd_write(self._over, 1)

    def settle(self) -> None:
        """Nobody listens any more, and the next run is not cut short. Harmless if that is so."""
        if self._unsettled is not None:
            self._done.get()
            self._unsettled(False)
            self._unsettled = None

    def _serve(self) -> None:
        while True:
            stream, interrupt = self._runs.get()
            if self._ends_early(stream):
                interrupt(True)
            os.eventfd_read(self._over)  # waits until the run is over
            self._done.put(None)

    def _ends_early(self, stream: int) -> bool:
        """Wait until the run is over; True at once if there is no use in it any more."""
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            if self._over in ready:
                return False
            if ready != {self._channel.fileno()}:
                return True  # a signal
            try:
                self._channel.take_in()
            except WorkerError:
                return True  # the first thread finds out why
            if any(_concerns(stream, body) for body in self._channel.waiting()):
                return True


_ENDS: Final = (Cancel, Detach, Pause)


def _concerns(stream: int, body: memoryview) -> bool:
    """True if the message ends what is being computed for the stream, or the worker."""
    try:
        message = decode_to_worker(body)
    except msgspec.MsgspecError:
        return False
    return isinstance(message, Stop) or (isinstance(message, _ENDS) and message.stream == stream)
