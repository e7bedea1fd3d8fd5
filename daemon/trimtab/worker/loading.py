"""From the first frame to a loop that is ready to serve."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime, perf_counter
from types import FrameType
from typing import Final

import msgspec
import numpy as np
import onnxruntime_genai as og

from trimtab.errors import EngineError, LoadError, WorkerError
from trimtab.lean import give_back_free_memory
from trimtab.worker.channel import Channel
from trimtab.worker.choice import choose_decoder
from trimtab.worker.decoder import Decoder, Place
from trimtab.worker.guides import Guides
from trimtab.worker.loop import Loop
from trimtab.worker.sampling import Logits
from trimtab.worker.stream import Language
from trimtab.worker.tokenizer import Tokenizer
from trimtab.worker.variant import VariantFacts, read_variant
from trimtab.workers.protocol import DraftLost, Load, LoadFailed, Ready, Stop, decode_to_worker

_START_FIELD: Final = 19
"""Of /proc/PID/stat, counted after the name: when the process began, in ticks since the boot."""


def load(channel: Channel) -> Loop:
    """Wait for `Load`, load the variant, prove that it computes, and say `Ready`.

    All that can be done without knowing the variant has been done when this waits: a process that
    is started before its turn loses no more time with it.

    Raises:
        SystemExit: It is told to stop before there was anything to load.
        LoadError: It doesn't load; the controller has been told.
        WorkerError: The first message isn't one, or isn't `Load`.
        ChannelClosedError: The controller is gone.
    """
    og.disable_telemetry_events()
    prepared_in_s = _age_s()
    request = _first_message(channel)
    begun_s = perf_counter() - prepared_in_s
    try:
        return _load(channel, request, begun_s)
    except LoadError as error:
        channel.send(LoadFailed(error.code, _with_hint(error)))
        raise
    except MemoryError as error:
        message = f"{request.folder}: there is not enough memory to load the variant"
        channel.send(LoadFailed("out_of_memory", message))
        raise LoadError(message, code="out_of_memory") from error


def _load(channel: Channel, request: Load, begun_s: float) -> Loop:
    if request.threads < 1:
        raise LoadError(f"threads: {request.threads} is less than 1", code="invalid_request")
    if request.context < 1:
        raise LoadError(f"context: {request.context} is less than 1", code="invalid_request")
    facts = read_variant(Path(request.folder))
    tokenizer = Tokenizer(facts)
    if not request.held:
        tokenizer.ready()
    choice = choose_decoder(facts, request)
    _prove(choice.decoder, facts)
    without_draft = add_draft(choice.decoder, facts, request) if request.draft else ""
    guides = Guides(tokenizer.vocabulary, facts.vocabulary, facts.eos)
    if request.guided:
        guides.prepare()
    gc.collect()
    gc.freeze()
    give_back_free_memory()
    context = min(request.context, facts.context)
    signal.signal(signal.SIGTERM, _leave)  # during the load it ends the process there and then
    language = Language(tokenizer.vocabulary, facts.vocabulary, facts.eos)
    loop = Loop(channel, choice.decoder, tokenizer, language, guides, context)
    if without_draft:
        channel.send(DraftLost(without_draft))
    channel.send(
        Ready(
            load_s=perf_counter() - begun_s,
            decoder=choice.decoder.name,
            decoder_reason=choice.reason,
            resident_bytes=loop.held.resident_bytes(),
            context=context,
            vocabulary=facts.vocabulary,
            eos=sorted(facts.eos),
            speculation=choice.decoder.speculation,
            rereads=choice.decoder.rereads,
        )
    )
    return loop


def _first_message(channel: Channel) -> Load:
    frames: list[tuple[memoryview, list[int]]] = []
    while not frames:
        frames = channel.receive(None, most=1)
    try:
        message = decode_to_worker(frames[0][0])
    except msgspec.MsgspecError as error:
        raise WorkerError(f"the first message is none: {error}") from error
    if isinstance(message, Stop):
        raise SystemExit(0)
    if not isinstance(message, Load):
        raise WorkerError(f"the first message must be load, not {type(message).__name__.lower()}")
    return message


def _prove(decoder: Decoder, facts: VariantFacts) -> None:
    """Compute a token: some variants load and fail at the first prefill.

    Raises:
        LoadError: What comes out isn't a distribution over tokens.
    """
    token = _any_token(facts)
    try:
        cache = decoder.open(_small_place(facts))
        logits = decoder.prefill(cache, [token, token], last=True)
        decoder.close(cache)
    except EngineError as error:
        raise LoadError(f"{facts.folder}: it loads and can't compute: {error.message}") from error
    _refuse_numberless(logits, facts.folder)


def add_draft(decoder: Decoder, target: VariantFacts, request: Load) -> str:
    """Load the draft variant, and prove that it computes.

    Returns:
        Why there is none, in words: the target is whole and serves without it. Empty if there is.
    """
    folder = Path(request.draft)
    try:
        draft = read_variant(folder)
        decoder.add_draft(draft, request.threads, request.draft_indices_graph)
        _prove_draft(decoder, target, folder)
    except MemoryError:
        reason = f"{folder}: there is not enough memory to load the draft"
    except EngineError as error:
        reason = _with_hint(error)
    else:
        return ""
    decoder.drop_draft()
    return reason


def _prove_draft(decoder: Decoder, target: VariantFacts, folder: Path) -> None:
    """Have it write a token after the target.

    Raises:
        EngineError: It can't, or what comes out isn't a distribution over tokens.
    """

    def best(logits: Logits, _: int) -> int:
        _refuse_numberless(logits, folder)
        return int(logits.argmax())

    token = _any_token(target)
    cache = decoder.open(_small_place(target))
    try:
        decoder.prefill(cache, [token, token], last=False)
        decoder.propose(cache, token, 1, best)
    finally:
        decoder.close(cache)


def _any_token(facts: VariantFacts) -> int:
    return facts.bos if facts.bos is not None and facts.bos < facts.vocabulary else 0


def _small_place(facts: VariantFacts) -> Place:
    return Place(capacity=min(16, facts.context))


def _refuse_numberless(logits: Logits | None, folder: Path) -> None:
    if logits is None or not np.isfinite(logits).all():
        raise LoadError(
            f"{folder}: it loads and computes no finite numbers",
            hint="build the variant again: `trimtab models build`",
        )


def _age_s() -> float:
    """How long this process has lived; 0 if the kernel doesn't tell."""
    try:
        status = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        started_ticks = int(status.rpartition(")")[2].split()[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, clock_gettime(CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK"))


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _with_hint(error: EngineError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message
