"""A real worker process over a socketpair, and the same class of channel as its peer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from trimtab.worker.channel import Channel, ChannelClosedError
from trimtab.workers.protocol import (
    HEADER,
    Detached,
    Failed,
    Finished,
    FromWorker,
    Load,
    Ready,
    Render,
    Rendered,
    Start,
    Stop,
    Tokens,
    ToWorker,
    decode_from_worker,
)

TINY = Path(__file__).resolve().parent.parent / "tiny"
DEADLINE_S = 20.0


class WorkerProcess:
    """A worker and the controller's end of its channel.

    Args:
        command: What to run, before ``--fd N``.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "trimtab.worker")) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self.raw = ours
        self.channel = Channel(ours)
        self.heard: list[FromWorker] = []
        self._next = 0

    def send(self, message: ToWorker, descriptors: Sequence[int] = ()) -> None:
        self.channel.send(message, descriptors)

    def send_raw(self, body: bytes) -> None:
        """A frame with any body at all."""
        self.raw.sendall(HEADER.pack(len(body), 0) + body)

    def load(self, variant: str = "fp32", **options: Any) -> Ready:
        self.ask_to_load(variant, **options)
        answer = self.next()
        assert isinstance(answer, Ready), answer
        return answer

    def ask_to_load(self, variant: str = "fp32", **options: Any) -> None:
        fields = {"folder": str(TINY / variant), "threads": 1, "decoder": "generator"}
        self.send(Load(**(fields | options)))

    def next(self, deadline_s: float = DEADLINE_S) -> FromWorker:
        """The next message that the worker says."""
        end_s = monotonic() + deadline_s
        while self._next == len(self.heard):
            left_s = end_s - monotonic()
            if left_s <= 0:
                raise TimeoutError("the worker says nothing")
            for body, descriptors in self.channel.receive(left_s):
                assert not descriptors
                self.heard.append(decode_from_worker(body))
        self._next += 1
        return self.heard[self._next - 1]

    def until(self, wanted: Callable[[FromWorker], bool]) -> list[FromWorker]:
        """All messages up to the one that is wanted, that one included."""
        said = [self.next()]
        while not wanted(said[-1]):
            said.append(self.next())
        return said

    def until_silent(self, silence_s: float = 0.3) -> list[FromWorker]:
        """All messages until nothing comes for a while."""
        said = []
        try:
            while True:
                said.append(self.next(silence_s))
        except TimeoutError:
            return said

    def end_of(self, *streams: int) -> dict[int, list[FromWorker]]:
        """What was said of each stream until all of them have ended."""
        said: dict[int, list[FromWorker]] = {stream: [] for stream in streams}
        left = set(streams)
        while left:
            message = self.next()
            stream = getattr(message, "stream", None)
            if stream in said:
                said[stream].append(message)
            if isinstance(message, Finished | Failed | Detached):
                left.discard(message.stream)
        return said

    def prompt(self, text: str) -> list[int]:
        self.send(Render(id=9000, text=text))
        answer = self.until(lambda message: isinstance(message, Rendered))[-1]
        assert isinstance(answer, Rendered)
        return answer.tokens

    def run(self, start: Start) -> Answer:
        """Compute a stream to its end."""
        self.send(start)
        return Answer(self.end_of(start.stream)[start.stream])

    def stop(self) -> int:
        self.send(Stop())
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        try:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(DEADLINE_S)
        finally:
            if self.process.stderr is not None:
                self.process.stderr.close()
            self.channel.close()

    def drain(self) -> None:
        """Take what the worker said before its end."""
        try:
            while True:
                self.next()
        except ChannelClosedError:
            pass

    def errors(self) -> str:
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        return (self.process.stderr.read() or b"").decode()


class Answer:
    """All that was said of one stream."""

    def __init__(self, said: list[FromWorker]) -> None:
        self.said = said
        pieces = [message for message in said if isinstance(message, Tokens)]
        self.pieces = pieces
        self.tokens = [token for piece in pieces for token in piece.tokens]
        self.last = said[-1]
        rest = self.last.text if isinstance(self.last, Finished) else ""
        self.text = "".join(piece.text for piece in pieces) + rest
        self.reason = self.last.reason if isinstance(self.last, Finished) else ""
