"""The controller's end of a worker's socketpair: frames in and out that never block the loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from trimtab.errors import WorkerError
from trimtab.workers.protocol import (
    HEADER,
    MAX_BODY_BYTES,
    FromWorker,
    ToWorker,
    decode_from_worker,
    encode,
)

READ_BYTES: Final = 256 * 1024
MAX_UNSENT_BYTES: Final = 128 * 1024 * 1024
CLOSED: Final = "the worker closed its socket"


class Channel:
    """Sends and receives frames on a non-blocking socket.

    Callbacks run in the event loop, one message at a time, in order of arrival.

    Args:
        sock: One end of a socketpair; the channel owns it from now on.
        on_message: Called with each message.
        on_close: Called once, with the reason, when the other side is gone or talks nonsense.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[FromWorker], None],
        on_close: Callable[[str], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_close = on_close
        self._inbox = bytearray()
        self._outbox: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._unsent_bytes = 0
        self._closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def closed(self) -> bool:
        """True once nothing can be sent or received any more."""
        return self._closed

    def send(self, message: ToWorker, descriptors: Sequence[int] = ()) -> None:
        """Send a message now or as soon as the worker reads; descriptors are duplicated.

        Raises:
            WorkerError: The channel is closed, the worker has stopped reading, or this process has
                no descriptor left.
        """
        if self._closed:
            raise WorkerError("the worker is gone")
        frame = memoryview(encode(message, len(descriptors)))
        if self._unsent_bytes + len(frame) > MAX_UNSENT_BYTES:
            raise WorkerError("the worker does not read what it is sent")
        self._outbox.append((frame, _duplicates(descriptors)))
        self._unsent_bytes += len(frame)
        if len(self._outbox) == 1:
            self._writable()

    def close(self) -> None:
        """Close the socket; the worker takes that as the end. `on_close` is not called."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, descriptors in self._outbox:
            _close_all(descriptors)
        self._outbox.clear()

    def drain(self) -> None:
        """Deliver everything that a worker which has ended had sent."""
        while not self._closed and self._readable():
            pass

    def _lose(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._on_close(reason)

    def _readable(self) -> bool:
        """Read once; True if there may be more."""
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            self._lose(CLOSED)  # it went without having read all that it was sent
            return False
        except OSError as error:
            self._lose(f"the socket failed: {error.strerror}")
            return False
        if not data:
            self._lose(CLOSED)
            return False
        self._inbox += data
        self._deliver()
        return True

    def _deliver(self) -> None:
        start = 0
        try:
            while not self._closed and len(self._inbox) - start >= HEADER.size:
                length, _ = HEADER.unpack_from(self._inbox, start)
                if length > MAX_BODY_BYTES:
                    self._lose(f"a frame of {length} bytes is over the limit")
                    return
                end = start + HEADER.size + length
                if len(self._inbox) < end:
                    return
                body = bytes(self._inbox[start + HEADER.size : end])
                start = end
                try:
                    message = decode_from_worker(body)
                except msgspec.DecodeError as error:
                    self._lose(f"a frame that isn't a message: {error}")
                    return
                self._on_message(message)
        finally:
            del self._inbox[:start]  # none is delivered twice, whatever became of it

    def _writable(self) -> None:
        while self._outbox and not self._closed:
            frame, descriptors = self._outbox[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._sock, [frame], list(descriptors))
                else:
                    sent = self._sock.send(frame)
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._writable)
                return
            except (BrokenPipeError, ConnectionResetError):
                self._lose(CLOSED)
                return
            except OSError as error:
                self._lose(f"the socket failed: {error.strerror}")
                return
            _close_all(descriptors)
            self._unsent_bytes -= sent
            if sent < len(frame):
                self._outbox[0] = (frame[sent:], ())
            else:
                self._outbox.popleft()
        if not self._closed:
            self._loop.remove_writer(self._sock.fileno())


def _duplicates(descriptors: Sequence[int]) -> tuple[int, ...]:
    held: list[int] = []
    try:
        held.extend(map(os.dup, descriptors))
    except OSError as error:
        _close_all(held)
        raise WorkerError(f"a descriptor can't be sent: {error.strerror}") from error
    return tuple(held)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
