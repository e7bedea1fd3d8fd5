"""Room for streams that run: more of their segment, or another one.

A stream goes on in another segment at a token boundary, in the same worker. The old segment is the
truth until the worker says that the new one is whole: whatever fails on the way, the stream goes
on from the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from trimtab.domain.view import View
from trimtab.errors import ServingError, WorkerError
from trimtab.serving.claims import Lease, kv_bytes
from trimtab.serving.pool import GRANT_TOKENS, Pool
from trimtab.serving.segments import Segment
from trimtab.serving.stream import Stream
from trimtab.workers.protocol import Full, Grant, Grow, Move, Moved, Stayed
from trimtab.workers.worker import Worker


class Room:
    """Grants room, orders moves, and takes them over once they are done.

    Args:
        pool: Where segments come from.

    Attributes:
        shifts: How often a window has been shifted since the start.
        dropped_tokens: How many tokens have been forgotten by that.
        memory_bytes: Tells how much memory there is for KV that is computed again.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.memory_bytes: Callable[[], float] = lambda: inf
        self.shifts = 0
        self.dropped_tokens = 0

    def said(self, stream: Stream, worker: Worker, message: Grow | Full | Moved | Stayed) -> str:
        """A worker has something to say about a stream's room.

        Returns:
            What is wrong with the message, in words; empty if nothing is.
        """
        match message:
            case Grow():
                self.grow(stream, worker, message.tokens)
            case Full():
                self.shift(stream, worker, message)
            case Moved():
                return self.moved(stream, message)
            case Stayed():
                return self.stayed(stream, worker, message)
        return ""

    def grow(self, stream: Stream, worker: Worker, tokens: int, *, beyond: bool = False) -> None:
        """A stream is about to need room for more tokens; it waits where there is none.

        Its worker asks for some ahead: no more is granted than it can ever take.

        Args:
            stream: Which.
            worker: Who has it.
            tokens: How many it is to have room for.
            beyond: Whether the budget may be overrun for it.
        """
        lease = stream.lease
        if lease is None:
            return
        tokens = stream.wanted_tokens = min(tokens, max(stream.most_positions, lease.granted))
        leases = [lease] if stream.moving is None else [lease, stream.moving]
        if not all(self._pool.grant(one, tokens, beyond=beyond) for one in leases):
            return  # others' ends make room
        stream.wanted_tokens = 0
        try:
            worker.send(Grant(stream=stream.id, tokens=min(one.granted for one in leases)))
        except WorkerError:
            pass  # its loss is about to be reported

    def feed(self, running: Sequence[Stream]) -> Stream | None:
        """Give streams that wait for room what there is.

        Returns:
            The youngest, if none can go on: it has to give way, unless it is the only one.
        """
        for stream in running:
            if stream.wanted_tokens and stream.worker is not None:
                self.grow(stream, stream.worker, stream.wanted_tokens)
        starved = [stream for stream in running if stream.starved]
        return starved[-1] if starved and len(starved) == len(running) else None

    def suffices(self, stream: Stream, beside: Sequence[Stream]) -> bool:
        """Whether a stream can begin, or go on, without one having to give way soon.

        Each may want some steps more before the next one ends. For a stream that has given way
        it must be twice as many each time: else it would be computed again and again in vain.

        Args:
            stream: Which.
            beside: The streams that run.
        """
        segments = [one.lease.segment for one in beside if one.lease is not None]
        if not segments:
            return True
        steps = GRANT_TOKENS << stream.gave_way
        takes = [(one, _may_take(one, steps, segments[0])) for one in (*beside, stream)]
        wanted = sum(max(0, most - _granted_bytes(one)) for one, most in takes)
        if wanted > self._pool.spare_bytes():
            return False
        if not stream.waits_for_room:
            return True
        return sum(max(0, most - one.kv_bytes) for one, most in takes) <= self.memory_bytes()

    def shift(self, stream: Stream, worker: Worker, full: Full) -> None:
        """A stream's window is full: the older half of what isn't kept is forgotten.

        Keys are turned to their new positions in a second segment. Where they can't be, or there
        is no room for a second one, the tokens that stay are read again.
        """
        if stream.detaching or not stream.view.shifts or stream.moving is not None:
            return
        view = stream.view.narrowed(full.cached, stream.context)
        ready = worker.ready
        turns = ready is not None and not ready.rereads
        target = self._second(stream, view) if turns else None
        if target is None:
            self._read_again(stream, worker, view)
            return
        try:
            self.order(stream, worker, target, view)
        except WorkerError:
            self._read_again(stream, worker, view)  # that takes no descriptor

    def moved(self, stream: Stream, message: Moved) -> str:
        """The new segment is whole: it is the truth from here on.

        Returns:
            What is wrong with the message, in words; empty if nothing is.
        """
        target = stream.moving
        if target is None:
            return "a stream was moved that should have stayed"
        view = replace(stream.view, dropped=message.dropped)
        if not 0 <= message.valid <= min(view.cached(len(stream.tokens)), target.granted):
            return f"a stream came to its new segment with {message.valid} tokens"
        if view != stream.view:
            self._count(stream, view)
        target.valid = stream.spent.cached = message.valid
        if stream.lease is not None:
            self._pool.drop(stream.lease)
        stream.lease, stream.moving, stream.view = target, None, view
        return ""

    def stayed(self, stream: Stream, worker: Worker, message: Stayed) -> str:
        """The new segment never became whole: the old one is still the truth.

        Returns:
            What is wrong with the message, in words; empty if nothing is.
        """
        if stream.moving is None:
            return "a stream stayed that nobody had told to move"
        self.given_up(stream)
        stream.not_moved = message.reason
        view = replace(stream.view, dropped=message.dropped)
        if view != stream.view and not stream.detaching:
            self._read_again(stream, worker, view)  # a full window has to be shifted some way
        return ""

    def given_up(self, stream: Stream) -> None:
        """The new segment won't become whole: it is given back."""
        if stream.moving is not None:
            self._pool.drop(stream.moving)
            stream.moving = None

    def _second(self, stream: Stream, view: View) -> Lease | None:
        """Another segment for the stream; None if there is no room for one."""
        lease = stream.lease
        if lease is None or lease.segment.on_disk:  # on disk since there is no memory
            return None
        try:
            return self._pool.second(lease, view.cached(len(stream.tokens)) + 1)
        except ServingError:
            return None

    def order(self, stream: Stream, worker: Worker, target: Lease, view: View) -> None:
        """Have a stream's KV moved into another segment, as far as it is in that view.

        Raises:
            WorkerError: The worker is gone, or this process has no descriptor left; the target has
                been given back.
        """
        if stream.lease is not None:  # a hand-over may have come since the target was made
            target.writers = stream.lease.writers
        stream.moving, stream.not_moved = target, ""
        order = Move(stream.id, view.dropped, segment=True, granted=target.granted)
        try:
            worker.send(order, [target.segment.descriptor])
        except WorkerError as error:
            self.given_up(stream)
            stream.not_moved = error.message
            raise

    def _read_again(self, stream: Stream, worker: Worker, view: View) -> None:
        """Have what is seen of the stream from now on read into the segment that it has."""
        self._count(stream, view)
        stream.read_again(view)
        try:
            worker.send(Move(stream=stream.id, dropped=view.dropped))
        except WorkerError:
            pass  # its loss is about to be reported

    def _count(self, stream: Stream, view: View) -> None:
        stream.shifts += 1
        self.shifts += 1
        self.dropped_tokens += view.dropped - stream.view.dropped


def _may_take(stream: Stream, tokens: int, like: Segment) -> int:
    """Memory that a stream may have in all with so many tokens more.

    Args:
        stream: Which.
        tokens: How many more.
        like: A segment of the size of those that streams get now.
    """
    if stream.lease is not None and stream.lease.segment.on_disk:
        return 0
    grown = min(stream.positions + tokens, stream.most_positions)
    return like.predicted_bytes(max(stream.positions, stream.wanted_tokens, grown))


def _granted_bytes(stream: Stream) -> int:
    return 0 if stream.lease is None else kv_bytes(stream.lease, stream.lease.granted)
