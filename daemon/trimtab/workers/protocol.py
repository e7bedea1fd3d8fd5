"""What controller and worker say to each other over their socketpair.

A frame is a header of five bytes (body length as little-endian uint32, number of descriptors as
uint8), then the body: one msgpack message, a tagged struct of this module. Descriptors travel as
SCM_RIGHTS with the first byte of their frame. Both sides are of one version: the worker is started
by the controller from the same files.

The life of a stream: the controller sends `Start` with the whole prompt and everything generated
so far; the worker answers `Progress` while it prefills, then `Tokens` for each token, and ends with
exactly one of `Finished`, `Failed` or `Detached`. A token counts once the controller has it: what a
dead worker had computed beyond that never was.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

import msgspec

from trimtab.domain.models import RopeSpec

HEADER: Final = struct.Struct("<IB")
MAX_BODY_BYTES: Final = 64 * 1024 * 1024


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are drawn.

    Randomness is a function of ``seed`` and the token's position, so that a stream that crosses to
    another worker draws what it would have drawn.

    Attributes:
        temperature: 0 for greedy.
        top_p: Smallest set of tokens whose probability reaches this; 1 for all, 0 for the best one.
        top_k: At most this many tokens; 0 for no limit.
        seed: Any 64-bit number.
        seeded: True if whoever asks gave the seed, and may ask for the same answer again: drafts
            must not change it.
        repetition_penalty: Divides positive and multiplies negative logits of tokens seen; 1: off.
        repetition_window: How many of the last tokens, those of the prompt included, count as seen
            for that; 0 for all.
        presence_penalty: Taken from the logit of each generated token seen.
        frequency_penalty: The same, times how often it was seen.
        logit_bias: Added to logits, by token id.
        top_logprobs: Send the log-probabilities of this many best tokens; -1 for none at all,
            0 for that of the chosen token alone.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    seeded: bool = True
    repetition_penalty: float = 1.0
    repetition_window: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    top_logprobs: int = -1

    @property
    def greedy(self) -> bool:
        """True if the best token is always taken."""
        return self.temperature == 0 or self.top_k == 1


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that an answer may call.

    Attributes:
        name: Its name.
        schema: JSON schema of its arguments, as JSON text.
        strict: Refuse a schema that can't be enforced as a whole, instead of leaving out what
            can't be.
        field: Where the client has the schema, for errors.
    """

    name: str
    schema: str
    strict: bool = False
    field: str = "tools"


class Guide(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an answer must look like: tokens that lead elsewhere can't be drawn.

    Attributes:
        schema: JSON schema, as JSON text, of what isn't a call; empty for free text.
        field: Where the client has it, for errors.
        tools: What may be called.
        tool_format: How the model writes calls, a `ToolFormat`; empty without tools.
        calls_least: 1 if there must be a call, else 0.
        calls_most: The most calls that there may be.
    """

    schema: str = ""
    field: str = "response_format"
    tools: tuple[Tool, ...] = ()
    tool_format: str = ""
    calls_least: int = 0
    calls_most: int = 1


# ---------------------------------------------------------------- controller → worker


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first frame: what to load. Answered by `Ready` or `LoadFailed`.

    Attributes:
        folder: The variant's folder.
        threads: Engine threads.
        decoder: ``auto``, ``generator`` or ``kv``.
        context: The most tokens that any stream will be started with.
        indices_graph: File name of the graph with ``logits_indices`` in the folder, from the
            manifest; empty if there is none.
        draft: Folder of another variant of the model that drafts for this one in the same KV cache;
            empty for none.
        draft_indices_graph: The same file name for the draft.
        rope: How positions are turned into the keys; None where that follows no single base.
        guided: A stream that is held to a form will come: get ready for it, too.
        held: True if streams wait that have begun: they need no tokenizer to go on, so it is made
            after `Ready`.
    """

    folder: str
    threads: int
    decoder: str = "auto"
    context: int = 2048
    indices_graph: str = ""
    draft: str = ""
    draft_indices_graph: str = ""
    rope: RopeSpec | None = None
    guided: bool = False
    held: bool = False


class Render(msgspec.Struct, frozen=True, tag="render"):
    """Apply the chat template (or take the text as it is) and tokenize.

    Attributes:
        id: Comes back in the answer.
        messages: Chat messages as the API got them; None if ``text`` is given.
        text: Raw text of a completion request.
        tools: Tool definitions for the template.
        guide: What the answer will have to look like: refused now if it can't be enforced.
        known: Token ids of a conversation that it probably goes on with, which it is to keep.
    """

    id: int
    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    tools: list[dict[str, Any]] | None = None
    guide: Guide | None = None
    known: list[int] = []


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Begin a stream, or go on with one.

    Attributes:
        stream: The controller's number for it.
        prompt: Token ids of the prompt.
        generated: Token ids that the controller has already acknowledged; the worker computes on
            from there and says nothing about them again, but derives detokenizer, stop-string and
            penalty state from them.
        max_tokens: How many tokens may be generated in all, those in ``generated`` included.
        context: Prompt and answer together hold at most this many tokens.
        sampling: How tokens are drawn.
        stop: Strings that end the stream; they aren't part of the text.
        ignore_eos: Go on past the end-of-sequence token (benchmarks).
        segment: True if the frame carries the descriptor of a KV segment.
        valid: Tokens whose KV in the segment counts; 0 without a segment.
        granted: The stream may put so many tokens into its cache; before it needs more, the worker
            asks with `Grow`, and waits for `Grant` if none has come by then. 0 for no bound.
        keep: Tokens at the beginning that stay when the window is shifted, which is asked for with
            `Full`; 0: the stream ends at its context.
        dropped: Tokens after those that have been forgotten: they have no position in the cache.
        guide: What the answer must look like; None for free text.
    """

    stream: int
    prompt: list[int]
    generated: list[int] = []
    max_tokens: int = 256
    context: int = 2048
    sampling: Sampling = Sampling()
    stop: list[str] = []
    ignore_eos: bool = False
    segment: bool = False
    valid: int = 0
    granted: int = 0
    keep: int = 0
    dropped: int = 0
    guide: Guide | None = None


class Move(msgspec.Struct, frozen=True, tag="move"):
    """Go on in another segment, or with fewer tokens, at the next token boundary.

    Answered by `Moved` once the new segment is whole; the old one stays as it is until then. If
    it has no room for what is to be moved, or that fails, by `Stayed`. Without a segment the
    tokens that are still seen are read again into the old one, from ``Start.keep`` on, and nothing
    is answered.

    Attributes:
        stream: Which.
        dropped: Tokens that are forgotten from then on, those from before included.
        segment: True if the frame carries the descriptor of an empty segment.
        granted: Tokens that may be put into it.
    """

    stream: int
    dropped: int
    segment: bool = False
    granted: int = 0


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """A stream may put so many tokens into its cache, in all; never fewer than before."""

    stream: int
    tokens: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """End a stream within a token; answered by `Finished` with reason ``cancelled``."""

    stream: int


class Detach(msgspec.Struct, frozen=True, tag="detach"):
    """Stop a stream at the next token boundary, to go on elsewhere; answered by `Detached`."""

    stream: int


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Leave a stream's state where it is and compute nothing for it until `Resume`."""

    stream: int


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Go on with a paused stream."""

    stream: int


class Pace(msgspec.Struct, frozen=True, tag="pace"):
    """Run the engine for this share of the time (0.1 to 1)."""

    ratio: float


class Speculate(msgspec.Struct, frozen=True, tag="speculate"):
    """Which drafts may be verified from now on.

    Attributes:
        mode: ``off``, ``ngram`` (what followed the last three tokens before), or ``draft`` (n-gram
            where there is one, the draft variant otherwise). Drafts are only used for a stream that
            decodes alone, and while its measured speed-up pays.
    """

    mode: str


class DraftWith(msgspec.Struct, frozen=True, tag="draft_with"):
    """Draft with another variant from now on, or with none; decoding goes on meanwhile.

    The draft that there is goes first, between two engine steps, and its memory is given back. The
    new one is loaded beside the streams, has to prove that it computes, and can then be asked for
    with `Speculate`; until then there are n-grams. Answered by `DraftSet`, unless another such
    order comes before: then what this one loads is thrown away.

    Attributes:
        id: Comes back in the answer.
        folder: The draft's folder; empty for none.
        indices_graph: File name of its graph with ``logits_indices``; empty if there is none.
    """

    id: int
    folder: str = ""
    indices_graph: str = ""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answered by `Pong` between two engine steps, with fresh statistics."""

    id: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Free everything and exit with status 0."""


ToWorker: TypeAlias = (
    Load
    | Render
    | Start
    | Move
    | Grant
    | Cancel
    | Detach
    | Pause
    | Resume
    | Pace
    | Speculate
    | DraftWith
    | Ping
    | Stop
)


# ---------------------------------------------------------------- worker → controller


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The variant is loaded and has produced a token.

    Attributes:
        load_s: Seconds from the start of the process to now, without the time that it waited for
            the first frame.
        decoder: ``generator`` or ``kv``.
        decoder_reason: Why it isn't the one that was asked for; empty otherwise.
        resident_bytes: RSS of the process.
        context: The most tokens that a stream can have here.
        vocabulary: Token ids are below this.
        eos: Token ids that end a stream.
        speculation: Modes that `Speculate` may ask for here, ``off`` included.
        rereads: Why a shift of the window reads the tokens that stay again; empty where their keys
            are turned to their new positions.
    """

    load_s: float
    decoder: str
    decoder_reason: str
    resident_bytes: int
    context: int
    vocabulary: int
    eos: list[int]
    speculation: tuple[str, ...] = ("off",)
    rereads: str = ""


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """The variant does not load; the process exits after this."""

    code: str
    message: str


class DraftLost(msgspec.Struct, frozen=True, tag="draft_lost"):
    """The draft variant doesn't load, or fails later: the target does without it.

    The first comes before `Ready`, the second at any time after it. (Where a draft that `DraftWith`
    asks for doesn't load, `DraftSet` says so.)

    Attributes:
        reason: In words.
    """

    reason: str


class DraftSet(msgspec.Struct, frozen=True, tag="draft_set"):
    """An order to draft with a variant, or with none, has been carried out as far as it can be.

    Attributes:
        id: Of the `DraftWith`.
        speculation: Modes that `Speculate` may ask for from now on, as in `Ready`.
        reason: Why there is no draft though one was wanted, in words; empty otherwise.
        resident_bytes: RSS of the process.
    """

    id: int
    speculation: tuple[str, ...]
    reason: str
    resident_bytes: int


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """A prompt's token ids."""

    id: int
    tokens: list[int]


class RenderFailed(msgspec.Struct, frozen=True, tag="render_failed"):
    """The prompt or the guide was refused; the fault is the request's.

    Attributes:
        id: Of the `Render`.
        code: Stable.
        message: Why.
        field: The client's field that is at fault; empty for the messages.
    """

    id: int
    code: str
    message: str
    field: str = ""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A piece of a prefill is done: a sign of life.

    Attributes:
        stream: Which.
        done: Tokens of prompt and generated text that are in the cache.
        total: How many there are to do.
        engine_s: Engine time of the piece, with the rest that the pace puts after it.
    """

    stream: int
    done: int
    total: int
    engine_s: float = 0.0


class Logprob(msgspec.Struct, frozen=True):
    """Log-probabilities at one position, natural logarithm, of the model's own distribution.

    Attributes:
        logprob: Of the token that was chosen.
        token: Text of that token.
        top: The best tokens with their texts, best first.
    """

    logprob: float
    token: str
    top: list[tuple[int, str, float]] = []


class Tokens(msgspec.Struct, frozen=True, tag="tokens", omit_defaults=True):
    """New tokens of a stream, usually one.

    Attributes:
        stream: Which.
        first: Index of the first of them within the generated tokens. The controller checks that
            none is lost or doubled.
        tokens: Their ids.
        text: Text that became certain with them; empty while a character or a possible stop string
            is incomplete.
        logprobs: One for each token if they were asked for.
        engine_s: Engine time of the decoding since the tokens before: whole steps, with the rests
            that the pace puts after them; 0 for the token that a prefill ends with.
        together: How many streams advanced in that step.
    """

    stream: int
    first: int
    tokens: list[int]
    text: str
    logprobs: list[Logprob] = []
    engine_s: float = 0.0
    together: int = 1


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The stream ended.

    Attributes:
        stream: Which.
        reason: ``stop`` (end of sequence or a stop string), ``length`` (max_tokens or context) or
            ``cancelled``.
        text: What was held back and belongs to the answer.
        prefill_s: Engine time of the prefill in this worker.
        decode_s: Engine time of decoding in this worker.
        cached_tokens: Prompt tokens whose KV was there already.
        drafted: Tokens that were drafted and verified in this worker.
        accepted: How many of them were what the model says.
    """

    stream: int
    reason: str
    text: str = ""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0


class Grow(msgspec.Struct, frozen=True, tag="grow"):
    """A stream is about to need room for so many tokens in its cache; answered by `Grant`."""

    stream: int
    tokens: int


class Full(msgspec.Struct, frozen=True, tag="full"):
    """A stream's window is full, and it may be shifted; answered by `Move`.

    Attributes:
        stream: Which.
        cached: Positions that are used.
    """

    stream: int
    cached: int


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A stream goes on in the segment that came with `Move`.

    Attributes:
        stream: Which.
        dropped: As ordered.
        valid: Positions in the new segment whose KV counts.
    """

    stream: int
    dropped: int
    valid: int


class Stayed(msgspec.Struct, frozen=True, tag="stayed"):
    """A `Move` into another segment couldn't be made: the stream goes on in the one that it has.

    If its window was to be shifted, it waits for a `Move` without a segment.

    Attributes:
        stream: Which.
        dropped: As ordered.
        reason: Why, in words.
    """

    stream: int
    dropped: int
    reason: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The stream can't go on in this worker (an engine error); others are not concerned."""

    stream: int
    code: str
    message: str


class Detached(msgspec.Struct, frozen=True, tag="detached"):
    """The stream has stopped here at a token boundary.

    Attributes:
        stream: Which.
        produced: How many generated tokens were sent in all, for the controller to check.
    """

    stream: int
    produced: int


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Statistics of the process.

    Attributes:
        id: Of the ping.
        resident_bytes: RSS.
        tokens: Tokens decoded since the start.
        busy_s: Seconds spent in the engine since the start.
    """

    id: int
    resident_bytes: int
    tokens: int
    busy_s: float


FromWorker: TypeAlias = (
    Ready
    | LoadFailed
    | DraftLost
    | DraftSet
    | Rendered
    | RenderFailed
    | Progress
    | Grow
    | Full
    | Moved
    | Stayed
    | Tokens
    | Finished
    | Failed
    | Detached
    | Pong
)

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker, descriptors: int = 0) -> bytes:
    """A whole frame."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body), descriptors) + body


def decode_to_worker(body: bytes | memoryview) -> ToWorker:
    """A message that the controller sent.

    Raises:
        msgspec.ValidationError: The body isn't such a message.
    """
    return _to_worker.decode(body)


def decode_from_worker(body: bytes | memoryview) -> FromWorker:
    """A message that a worker sent.

    Raises:
        msgspec.ValidationError: The body isn't such a message.
    """
    return _from_worker.decode(body)
