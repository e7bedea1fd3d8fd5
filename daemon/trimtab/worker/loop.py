"""The worker's loop: one thread that listens, decodes and prefills in turn.

A tick takes what has arrived, advances every decoding stream by one token, and computes at most one
piece of one prompt. So a newcomer's first token never waits for a whole answer, and a stream that
is cancelled or handed over stops within a token or a piece.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from time import perf_counter
from typing import Final, assert_never

import msgspec

from trimtab.errors import EngineError, LoadError
from trimtab.huge_pages import lay_into_huge_pages
from trimtab.lean import give_back_free_memory
from trimtab.worker.channel import Channel
from trimtab.worker.checks import check_start
from trimtab.worker.decoder import Decoder, Place
from trimtab.worker.drafts import LOOK_EVERY_S, Drafts
from trimtab.worker.faults import told
from trimtab.worker.guide_grammar import GuideError
from trimtab.worker.guides import Guides
from trimtab.worker.listening import Listener
from trimtab.worker.memory import Held
from trimtab.worker.speculation import Experiences
from trimtab.worker.stream import EndReason, Language, Stream
from trimtab.worker.tokenizer import Tokenizer
from trimtab.worker.turns import Turns
from trimtab.worker.windows import Windows
from trimtab.workers.protocol import (
    Cancel,
    Detach,
    Detached,
    DraftWith,
    Failed,
    Grant,
    Load,
    Move,
    Pace,
    Pause,
    Ping,
    Pong,
    Render,
    Rendered,
    RenderFailed,
    Resume,
    Speculate,
    Start,
    Stop,
    ToWorker,
    decode_to_worker,
)

_TIDY_AFTER_S: Final = 0.05  # idle for so long, free memory goes back to the system


class Loop:
    """Serves streams until it is told to stop or the other side is gone.

    Args:
        channel: To the controller.
        decoder: Runs the variant.
        tokenizer: The variant's.
        language: What the variant's tokens mean.
        guides: Hold answers to forms.
        context: Most tokens that a stream can have.
        drafts: Loads variants that draft, and lets them go.
    """

    def __init__(
        self,
        channel: Channel,
        decoder: Decoder,
        tokenizer: Tokenizer,
        language: Language,
        guides: Guides,
        context: int,
        drafts: Drafts,
    ) -> None:
        self._channel = channel
        self.held = Held()
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._language = language
        self._context = context
        self._guides = guides
        self._drafts = drafts
        self._experiences = Experiences()
        self._streams: dict[int, Stream] = {}
        self._listener = Listener(channel)
        signal.set_wakeup_fd(self._listener.signalled, warn_on_full_buffer=False)
        self._turns = Turns(decoder, channel.put, self._over, self._listener.during)
        self._windows = Windows(decoder, channel.put, self._over)
        self._untidy = True
        self._gathering = lay_into_huge_pages()
        self._running = True

    def run(self) -> None:
        """Serve until `Stop`.

        Raises:
            ChannelClosedError: The controller is gone.
            WorkerError: What arrives on the channel can't be understood any more.
            LoadError: There was no time for the tokenizer before, and there is none to be had.
        """
        while self._running:
            wait_s = self._wait_s()
            self._channel.flush()  # whether a stream can go on may have been a question of room
            for body, descriptors in self._channel.receive(wait_s):
                self._receive(body, descriptors)
            if self._running and self._turns.pacer.rest_s(perf_counter()) < 0.001:
                self._turns.decode(self._streams.values())
                self._channel.flush()
                self._turns.prefill(self._streams.values())
                self._channel.flush()  # a first token is waited for
                self._listener.settle()
            self._windows.run(self._streams.values())
            if (answer := self._drafts.advance(self._held_bytes)) is not None:
                self._channel.put(answer)
                self._untidy, self._gathering = True, lay_into_huge_pages()  # weights that came
            self._channel.flush()

    # ------------------------------------------------------------ when to wait

    def _wait_s(self) -> float | None:
        wait_s = self._until_work_s()
        if self._drafts.at_work:
            return LOOK_EVERY_S if wait_s is None else min(wait_s, LOOK_EVERY_S)
        return wait_s

    def _until_work_s(self) -> float | None:
        if any(stream.journey is not None for stream in self._streams.values()):
            return 0
        if any(self._turns.can_go_on(stream) for stream in self._streams.values()):
            return self._turns.pacer.rest_s(perf_counter())
        if self._untidy and not self._streams and not self._drafts.at_work:
            return self._tidy()
        return None

    def _tidy(self) -> float | None:
        """Wait a little for the next request; do what there was no time for if none comes."""
        if self._channel.readable(_TIDY_AFTER_S):
            return 0
        self._tokenizer.ready()
        gc.collect()
        give_back_free_memory()
        for _ in self._gathering:
            if self._channel.readable(0):
                return 0  # it goes on from here next time
        self._untidy = False
        return None

    # ------------------------------------------------------------ messages

    def _receive(self, body: memoryview, descriptors: list[int]) -> None:
        taken = None
        try:
            message = decode_to_worker(body)
            if isinstance(message, Start | Move) and message.segment and descriptors:
                taken = descriptors.pop(0)
            self._handle(message, taken)
        except msgspec.MsgspecError as error:
            self._refuse(body, error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _handle(self, message: ToWorker, descriptor: int | None) -> None:
        match message:
            case Start() | Move():
                self._place(message, descriptor)
            case Cancel() | Detach() | Pause() | Resume() | Grant():
                stream = self._streams.get(message.stream)
                if stream is not None:
                    self._steer(stream, message)
            case Render():
                self._render(message)
            case Pace() | Speculate() | DraftWith():
                self._set(message)
            case Ping():
                held_bytes, turns = self._held_bytes(), self._turns
                self._channel.put(Pong(message.id, held_bytes, turns.tokens, turns.busy_s))
            case Stop():
                self._running = False
            case Load():
                _complain("a second load message was ignored")
            case _:
                assert_never(message)

    def _held_bytes(self) -> int:
        return self.held.resident_bytes(self._decoder.committed_bytes)

    def _set(self, message: Pace | Speculate | DraftWith) -> None:
        match message:
            case Pace():
                self._turns.pacer.set(message.ratio)
            case Speculate():
                self._speculate(message.mode)
            case DraftWith():
                if self._turns.mode == "draft":
                    self._turns.mode = "ngram"
                self._experiences.forget_variant()
                self._turns.forget_draft_costs()
                self._drafts.order(message)

    def _steer(self, stream: Stream, message: Cancel | Detach | Pause | Resume | Grant) -> None:
        match message:
            case Cancel():
                self._channel.put(stream.finished(EndReason.CANCELLED))
                self._release(stream)
            case Detach():
                self._channel.put(Detached(stream=stream.id, produced=stream.produced))
                self._release(stream)
            case Pause() | Resume():
                stream.paused = isinstance(message, Pause)
            case Grant():
                stream.granted = max(stream.granted, message.tokens)

    def _place(self, message: Start | Move, descriptor: int | None) -> None:
        """A stream begins, or goes on, in a segment that came with the message."""
        stream = self._streams.get(message.stream)
        if isinstance(message, Start):
            self._start(message, descriptor)
        elif stream is not None:
            self._windows.order(stream, message, descriptor)
        elif descriptor is not None:
            os.close(descriptor)

    def _speculate(self, mode: str) -> None:
        if mode in self._decoder.speculation:
            self._turns.mode = mode
        else:
            self._turns.mode = "off"
            _complain(f"speculation {mode!r} is not to be had here; it is off")

    def _refuse(self, body: memoryview, error: Exception) -> None:
        """Answer a message that is none, so far as it says whom it concerns."""
        try:
            raw = msgspec.msgpack.decode(body)
        except msgspec.MsgspecError:
            raw = None
        fields = raw if isinstance(raw, dict) else {}
        match fields.get("type"), fields.get("stream"), fields.get("id"):
            case "start", int(stream), _:
                self._drop(stream)
                self._channel.put(Failed(stream, "invalid_request", f"start: {error}"))
            case "render", _, int(number):
                self._channel.put(RenderFailed(number, "invalid_request", f"render: {error}"))
            case _:
                _complain(f"a message was ignored: {error}")

    def _start(self, start: Start, descriptor: int | None) -> None:
        stream: Stream | None = None
        try:
            if self._drop(start.stream):
                raise EngineError(
                    f"stream {start.stream} was started twice", code="invalid_request"
                )
            check_start(start, self._language.size, self._context)
            guided = self._guides.follow(start.guide) if start.guide else None
            shown = self._guides.shown(start.guide) if start.guide else frozenset()
            experience = self._experiences.of(start.sampling)
            stream = Stream(start, self._language, experience, descriptor, guided, shown)
            if stream.ended:
                self._over(stream, None)
                return
            place = Place(stream.capacity, stream.descriptor, stream.valid)
            stream.cache = self._decoder.open(place)
            stream.cached_tokens = min(stream.cache.length, stream.prompt_length)
            missing = stream.view.cached(len(stream.tokens)) - stream.cache.length
            stream.prefilled = stream.cache.length > 0 and missing == 1
            self._streams[stream.id] = stream
        except Exception as error:  # whatever it is, it is this stream's fault alone
            self._channel.put(Failed(start.stream, *told(error)))
            if stream is not None:
                self._release(stream)
            elif descriptor is not None:
                os.close(descriptor)

    def _render(self, message: Render) -> None:
        try:
            tokens = self._tokenizer.render(message)
            if message.guide is not None:
                self._guides.check(message.guide)
            self._channel.put(Rendered(message.id, tokens))
        except GuideError as error:
            refused = RenderFailed(message.id, error.code, error.message, error.field)
            self._channel.put(refused)
        except LoadError:
            raise  # without a tokenizer no other request could be served either
        except EngineError as error:
            self._channel.put(RenderFailed(message.id, error.code, error.message))

    # ------------------------------------------------------------ ends

    def _over(self, stream: Stream, error: Exception | None) -> None:
        """A stream has ended by itself, or by an error that is its alone."""
        if error is not None:
            self._channel.put(Failed(stream.id, *told(error)))
        else:
            self._channel.put(stream.finished(stream.ended or EndReason.STOP))
        self._release(stream)

    def _drop(self, number: int) -> bool:
        """Forget a stream without a word; False if there is none."""
        stream = self._streams.get(number)
        if stream is not None:
            self._release(stream)
        return stream is not None

    def _release(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)
        self._windows.give_up(stream)
        if stream.cache is not None:
            self._decoder.close(stream.cache)
            stream.cache = None
        stream.release()
        self._untidy = True


def _complain(line: str) -> None:
    sys.stderr.write(f"{line}\n")
