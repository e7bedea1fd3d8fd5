"""Who is told of each step of a stream's life."""

from __future__ import annotations

from typing import Protocol

from trimtab.serving.stream import Stream


class StreamObserver(Protocol):
    """Called at each step of a stream's life, on the hot path."""

    def arrived(self, stream: Stream, at_s: float) -> None:
        """It is in the queue."""

    def started(self, stream: Stream, at_s: float) -> None:
        """A worker has it (again)."""

    def produced(self, stream: Stream, tokens: int, at_s: float) -> None:
        """It has new tokens."""

    def ended(self, stream: Stream, at_s: float) -> None:
        """It is done."""


class Observers:
    """Several observers as one: each is told in turn."""

    def __init__(self, *observers: StreamObserver) -> None:
        self._observers = observers

    def arrived(self, stream: Stream, at_s: float) -> None:
        """It is in the queue."""
        for observer in self._observers:
            observer.arrived(stream, at_s)

    def started(self, stream: Stream, at_s: float) -> None:
        """A worker has it (again)."""
        for observer in self._observers:
            observer.started(stream, at_s)

    def produced(self, stream: Stream, tokens: int, at_s: float) -> None:
        """It has new tokens."""
        for observer in self._observers:
            observer.produced(stream, tokens, at_s)

    def ended(self, stream: Stream, at_s: float) -> None:
        """It is done."""
        for observer in self._observers:
            observer.ended(stream, at_s)
