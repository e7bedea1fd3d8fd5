"""Streams that go on in another segment: since their window is full, or since they are told to.

The old segment isn't written any more from the order on, and the new one only counts once it is
whole and the controller knows: what fails on the way leaves the stream where it was. A large cache
takes several turns, between which others decode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter
from typing import Final

from trimtab.errors import EngineError
from trimtab.worker.decoder import Decoder, Place
from trimtab.worker.faults import told
from trimtab.worker.stream import Journey, Stream
from trimtab.workers.protocol import FromWorker, Full, Move, Moved, Stayed

_SHARED_S: Final = 0.05
_ALONE_S: Final = 0.5


class Windows:
    """Moves streams, and asks for it where a window is full.

    Args:
        decoder: Moves KV.
        say: Takes messages for the controller.
        over: Is told of the error that ends a stream.
    """

    def __init__(
        self,
        decoder: Decoder,
        say: Callable[[FromWorker], None],
        over: Callable[[Stream, Exception | None], None],
    ) -> None:
        self._decoder = decoder
        self._say = say
        self._over = over

    def order(self, stream: Stream, move: Move, descriptor: int | None) -> None:
        """Begin what the controller has ordered; the descriptor is ours from here on."""
        if descriptor is None:
            try:
                self._read_again(stream, move.dropped)
            except (EngineError, MemoryError) as error:
                self._over(stream, error)
            return
        try:
            self._begin(stream, move, descriptor)
        except Exception as error:  # whatever it is, the stream is whole where it is
            self._stay(stream, move.dropped, error)

    def run(self, streams: Iterable[Stream]) -> None:
        """Move a little, and ask for those that can't go on."""
        streams = list(streams)
        others = any(stream.journey is None and not stream.paused for stream in streams)
        end_s = perf_counter() + (_SHARED_S if others else _ALONE_S)
        for stream in streams:
            while stream.journey is not None and perf_counter() < end_s:
                self._go_on(stream, stream.journey)
            if stream.full and not stream.asked_to_move and stream.cache is not None:
                stream.asked_to_move = True
                self._say(Full(stream=stream.id, cached=stream.cache.length))

    def give_up(self, stream: Stream) -> None:
        """The stream leaves before it has arrived: the new segment is nobody's."""
        journey = stream.journey
        if journey is not None:
            stream.journey = None
            self._decoder.close(journey.move.target)
            os.close(journey.descriptor)

    def _begin(self, stream: Stream, move: Move, descriptor: int) -> None:
        self.give_up(stream)
        try:
            if stream.cache is None:
                raise EngineError("the stream has no cache that could be moved")
            place = Place(stream.capacity, descriptor)
            more = move.dropped - stream.view.dropped
            if 0 < move.granted < stream.cache.length - more:
                raise EngineError(
                    f"the new segment has room for {move.granted} tokens, "
                    f"not for {stream.cache.length - more}"
                )
            moving = self._decoder.move(stream.cache, place, stream.view.keep, more)
        except BaseException:
            os.close(descriptor)
            raise
        stream.journey = Journey(moving, descriptor, move.dropped, move.granted)

    def _go_on(self, stream: Stream, journey: Journey) -> None:
        try:
            whole = journey.move.advance()
        except Exception as error:  # as in `order`; and other streams have no part in it
            self.give_up(stream)
            self._stay(stream, journey.dropped, error)
            return
        if whole:
            self._arrive(stream, journey)

    def _stay(self, stream: Stream, dropped: int, error: Exception) -> None:
        """The stream goes on as if it had never been told to move."""
        if dropped == stream.view.dropped:
            stream.asked_to_move = False  # it may have asked for a shift meanwhile, in vain
        _, reason = told(error)
        self._say(Stayed(stream.id, dropped, reason))

    def _arrive(self, stream: Stream, journey: Journey) -> None:
        if stream.cache is not None:
            self._decoder.close(stream.cache)
        stream.cache = journey.move.target
        stream.settle(journey)
        self._say(Moved(stream.id, journey.dropped, stream.cache.length))

    def _read_again(self, stream: Stream, dropped: int) -> None:
        if stream.cache is None:
            raise EngineError("the stream has no cache that could be read again")
        stream.view = replace(stream.view, dropped=dropped)
        self._decoder.rewind(stream.cache, stream.view.keep)
        stream.prefilled = False
        stream.asked_to_move = False
