"""Frames over one end of a socketpair, with file descriptors alongside.

The worker uses it from its only thread: it collects what it has to say during a tick and hands it
over in one system call, and it takes in whatever has arrived without waiting while there is work.
Tests use the same class as the controller's end.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from trimtab.errors import WorkerError
from trimtab.workers.protocol import HEADER, MAX_BODY_BYTES, FromWorker, ToWorker, encode

_CHUNK_BYTES: Final = 256 * 1024
_MAX_DESCRIPTORS: Final = 253  # the kernel's limit for one message (SCM_MAX_FD)
_INT: Final = struct.Struct("i")


class ChannelClosedError(WorkerError):
    """The other side has closed its end, or is gone."""

    code = "channel_closed"


class Channel:
    """One end of the socketpair between controller and worker.

    Descriptors that arrive belong to the caller once `receive` has returned them; those that no
    frame has claimed are closed by `close`.

    Args:
        connection: A connected Unix stream socket; the channel owns it from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()
        self._outgoing = bytearray()
        self._lost: WorkerError | None = None

    def fileno(self) -> int:
        """The socket's descriptor number."""
        return self._socket.fileno()

    def put(self, message: ToWorker | FromWorker) -> None:
        """Queue a message for the next `flush`."""
        self._outgoing += encode(message)

    def flush(self) -> None:
        """Send what is queued, waiting until the other side has room.

        Raises:
            ChannelClosedError: Nobody will ever read it.
        """
        if not self._outgoing:
            return
        data, self._outgoing = self._outgoing, bytearray()
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ChannelClosedError(f"the channel is closed: {error}") from error

    def send(self, message: ToWorker | FromWorker, descriptors: Sequence[int] = ()) -> None:
        """Send a message at once, after what is queued.

        Args:
            message: What to say.
            descriptors: Open descriptors for the other side; the caller keeps its own.

        Raises:
            ChannelClosedError: Nobody will ever read it.
        """
        self.flush()
        frame = encode(message, len(descriptors))
        try:
            sent = socket.send_fds(self._socket, [frame], list(descriptors)) if descriptors else 0
            self._socket.sendall(memoryview(frame)[sent:])
        except OSError as error:
            raise ChannelClosedError(f"the channel is closed: {error}") from error

    def receive(self, wait_s: float | None, most: int = 1024) -> list[tuple[memoryview, list[int]]]:
        """The whole frames that are there.

        Args:
            wait_s: How long to wait for the first of them: 0 takes what is there, None waits for
                ever. Fewer than a whole frame may have come by then: the answer can be empty.
            most: At most so many; the others stay for the next call.

        Returns:
            Body and descriptors of each frame, in order of arrival.

        Raises:
            ChannelClosedError: The other side has closed and every whole frame was taken before.
            WorkerError: What arrived isn't a frame, or came without its descriptors; nothing after
                it can be trusted.
        """
        if self._lost is not None:
            raise self._lost
        frames = self._whole_frames(most)
        if not frames and self.readable(wait_s):
            self.take_in()
            frames = self._whole_frames(most)
        return frames

    def readable(self, wait_s: float | None) -> bool:
        """Wait until something arrives, at most for so long; True if something has.

        So it is where a whole frame was taken in before.
        """
        if self._complete():
            return True
        return bool(self._poll.poll(None if wait_s is None else max(0, round(wait_s * 1000))))

    def close(self) -> None:
        """Close the socket and every descriptor that nobody claimed."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._socket.close()

    def take_in(self) -> None:
        """Take what has arrived off the socket; `receive` hands it out later.

        Raises:
            ChannelClosedError: The other side has closed and every whole frame was taken before.
            WorkerError: Descriptors were lost.
        """
        while True:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    _CHUNK_BYTES,
                    socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT.size),
                    socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
                )
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError(f"the channel is closed: {error}") from error
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    whole = len(payload) - len(payload) % _INT.size
                    self._descriptors.extend(fd for (fd,) in _INT.iter_unpack(payload[:whole]))
            if flags & socket.MSG_CTRUNC:
                self._lost = WorkerError(
                    "descriptors were lost on their way through the channel",
                    hint="the process has reached its limit of open files (ulimit -n)",
                    code="protocol_broken",
                )
                raise self._lost
            if not data:
                if self._complete():
                    return  # hand out what came before the end first
                raise ChannelClosedError("the other side has closed the channel")
            self._incoming += data
            if len(data) < _CHUNK_BYTES and not ancillary:
                return

    def waiting(self) -> Iterator[memoryview]:
        """Bodies of the whole frames that `receive` would hand out; none is taken."""
        data, start = bytes(self._incoming), 0
        while len(data) - start >= HEADER.size:
            length, _ = HEADER.unpack_from(data, start)
            end = start + HEADER.size + int(length)
            if len(data) < end:
                return
            yield memoryview(data)[start + HEADER.size : end]
            start = end

    def _complete(self) -> bool:
        """True if a whole frame is there."""
        if len(self._incoming) < HEADER.size:
            return False
        length, _ = HEADER.unpack_from(self._incoming)
        return len(self._incoming) >= HEADER.size + int(length)

    def _whole_frames(self, most: int) -> list[tuple[memoryview, list[int]]]:
        frames: list[tuple[memoryview, list[int]]] = []
        start, data = 0, self._incoming
        while len(frames) < most and len(data) - start >= HEADER.size:
            length, count = HEADER.unpack_from(data, start)
            if length > MAX_BODY_BYTES:
                raise WorkerError(
                    f"a frame says that it has {length} bytes; the most is {MAX_BODY_BYTES}",
                    code="protocol_broken",
                )
            end = start + HEADER.size + length
            if len(data) < end:
                break
            if count > len(self._descriptors):
                raise WorkerError(
                    f"a frame says that it has {count} descriptors; "
                    f"{len(self._descriptors)} have arrived",
                    code="protocol_broken",
                )
            body = memoryview(bytes(data[start + HEADER.size : end]))
            frames.append((body, [self._descriptors.popleft() for _ in range(count)]))
            start = end
        del data[:start]
        return frames
