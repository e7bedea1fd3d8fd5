"""``trimtab bench decoder``: the decoder that owns its KV cache against the engine's Generator.

Each has a process of its own with the variant loaded, a new one for each pair. They run in turn
(A B B A) on the same prompts, a few tokens at a time, so that whatever else the machine does hits
both alike. The Generator runs as fast as it can: with the shared buffer, which the worker leaves
off because it takes memory for the whole context at once.

Both compute the same only with the same attention kernel. Where the variant's second graph is made
for it, ours is another, which rounds otherwise: so tokens are compared on the builder's graph, too.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from trimtab.catalog import load_catalog, models_folder
from trimtab.domain.models import VariantSpec
from trimtab.errors import WorkerError

if TYPE_CHECKING:
    from trimtab.worker.decoder import Cache, Decoder

MODEL: Final = "smollm2-135m"
_PROMPTS: Final = (50, 1000)
_PIECE: Final = 64
_CHUNK: Final = 8
_CONTEXT: Final = 1280
_TEXT: Final = Path(__file__).resolve().parent.parent / "catalog" / "data" / "evaluation.txt"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a child is to do.

    Attributes:
        prompt: Tokens of a prompt to begin a conversation with; 0 to go on with it.
        decode: Tokens to generate, greedily; 0 to end it.
    """

    prompt: int = 0
    decode: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What it did.

    Attributes:
        seconds: How long it took.
        tokens: What was generated.
        rss_bytes: Resident memory of the process.
    """

    seconds: float
    tokens: tuple[int, ...]
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation.

    Attributes:
        ttft_s: From the prompt's tokens to the first token.
        tps: Tokens a second after it: of the median of its turns, since a busy host stops a
            process for some milliseconds now and then, and hits either side by chance.
        tokens: What was generated.
        rss_bytes: Resident memory of the process at its end.
    """

    ttft_s: float
    tps: float
    tokens: tuple[int, ...]
    rss_bytes: int


def run(quick: bool) -> dict[str, Any]:
    """Measure every variant of SmolLM2.

    Args:
        quick: One variant, one pair and few tokens: shows that it works, not how fast it is.

    Raises:
        NoModelError: The model isn't there.
    """
    model = load_catalog([models_folder()]).model(MODEL)
    variants = [v for v in model.variants if v.name == "int4"] if quick else list(model.variants)
    pairs, decode = (1, 8) if quick else (9, 64)
    rows = [row for variant in variants for row in _compare(variant, pairs, decode)]
    return {
        "tps_ratio_min": min(row["tps_ratio"] for row in rows),
        "ttft_ratio_max": max(row["ttft_ratio"] for row in rows),
        "rss_ratio": max(row["rss_ratio"] for row in rows),
        "tokens_equal": all(row["tokens_equal"] for row in rows),
        "by_variant": rows,
        "runs": pairs * len(rows),
    }


def _compare(variant: VariantSpec, pairs: int, decode: int) -> list[dict[str, Any]]:
    """Each pair in processes of its own: where one's pages lie is chance, and lasts as long."""
    theirs: dict[int, list[Sample]] = {prompt: [] for prompt in _PROMPTS}
    ours: dict[int, list[Sample]] = {prompt: [] for prompt in _PROMPTS}
    for pair in range(pairs):
        with _Child("generator", variant) as generator, _Child("kv", variant) as own:
            turn = (generator, own) if pair % 2 == 0 else (own, generator)
            for prompt in _PROMPTS:
                samples = _converse(turn, prompt, decode)
                theirs[prompt].append(samples[generator])
                ours[prompt].append(samples[own])
    equal = _equal_on_the_builders_graph(variant, decode)
    return [
        _row(variant.name, prompt, ours[prompt], theirs[prompt]) | {"tokens_equal": equal[prompt]}
        for prompt in _PROMPTS
    ]


def _equal_on_the_builders_graph(variant: VariantSpec, decode: int) -> dict[int, bool]:
    """By prompt, whether both say the same where both run the same kernels."""
    graphless = replace(variant, indices_graph="")
    equal = {}
    with _Child("generator", variant) as generator, _Child("kv", graphless) as own:
        for prompt in _PROMPTS:
            samples = _converse((generator, own), prompt, decode)
            equal[prompt] = samples[generator].tokens == samples[own].tokens
    return equal


def _converse(turn: tuple[_Child, _Child], prompt: int, decode: int) -> dict[_Child, Sample]:
    """One conversation each, in turn: first the prompts, then a few tokens at a time, A B B A."""
    first = {child: child.do(Ask(prompt=prompt)) for child in turn}
    parts: dict[_Child, list[Answer]] = {child: [] for child in turn}
    for number in range(decode // _CHUNK):
        for child in turn if number % 2 == 0 else reversed(turn):
            parts[child].append(child.do(Ask(decode=_CHUNK)))
    ends = {child: child.do(Ask()) for child in turn}
    return {
        child: Sample(
            ttft_s=first[child].seconds,
            tps=_CHUNK / median(part.seconds for part in parts[child]),
            tokens=sum((part.tokens for part in parts[child]), first[child].tokens),
            rss_bytes=ends[child].rss_bytes,
        )
        for child in turn
    }


def _row(variant: str, prompt: int, ours: list[Sample], theirs: list[Sample]) -> dict[str, Any]:
    pairs = list(zip(ours, theirs, strict=True))
    tps = [own.tps / other.tps for own, other in pairs]
    ttft = [own.ttft_s / other.ttft_s for own, other in pairs]
    return {
        "variant": variant,
        "prompt_tokens": prompt,
        "tps_ratio": round(median(tps), 4),
        "tps_ratio_spread": [round(min(tps), 4), round(max(tps), 4)],
        "ttft_ratio": round(median(ttft), 4),
        "ttft_ratio_spread": [round(min(ttft), 4), round(max(ttft), 4)],
        "tps_kv": round(median(own.tps for own in ours), 2),
        "tps_generator": round(median(other.tps for other in theirs), 2),
        "ttft_kv_s": round(median(own.ttft_s for own in ours), 4),
        "ttft_generator_s": round(median(other.ttft_s for other in theirs), 4),
        "rss_ratio": round(
            max(own.rss_bytes for own in ours) / max(other.rss_bytes for other in theirs), 4
        ),
        "tokens_equal_as_served": all(own.tokens == other.tokens for own, other in pairs),
    }


class _Child:
    """A process with one decoder, that measures when it is asked to.

    Args:
        decoder: ``generator`` or ``kv``.
        variant: What to load.
    """

    def __init__(self, decoder: str, variant: VariantSpec) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(theirs, decoder, variant.folder, variant.indices_graph),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ours.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def do(self, ask: Ask) -> Answer:
        """Have it do something.

        Raises:
            WorkerError: The process has died.
        """
        try:
            self._ours.send(ask)
            answer = self._ours.recv()
        except (EOFError, OSError) as error:
            raise WorkerError("the process that measures a decoder has died") from error
        assert isinstance(answer, Answer)
        return answer


def _serve(connection: Connection, kind: str, folder: str, indices_graph: str) -> None:
    """The child's own work: the engine is imported here and nowhere else."""
    from trimtab.worker.generator import GeneratorDecoder
    from trimtab.worker.kv_decoder import KvDecoder
    from trimtab.worker.tokenizer import Tokenizer
    from trimtab.worker.variant import read_variant
    from trimtab.workers.protocol import Render

    facts = read_variant(Path(folder))
    decoder: Decoder
    if kind == "kv":
        decoder = KvDecoder(facts, 1, _CONTEXT, indices_graph)
    else:
        decoder = GeneratorDecoder(facts, 1, share_buffer=True)
    text = _TEXT.read_text(encoding="utf-8")
    conversation = _Conversation(decoder, Tokenizer(facts).render(Render(id=0, text=text)))
    for ask in (Ask(prompt=_PIECE), Ask(decode=4), Ask()):
        conversation.do(ask)  # the first run also pays for buffers
    while True:
        try:
            ask = connection.recv()
        except EOFError:
            return
        connection.send(conversation.do(ask))


class _Conversation:
    """One conversation at a time, in the child.

    Args:
        decoder: The decoder.
        text: Tokens that prompts are taken from.
    """

    def __init__(self, decoder: Decoder, text: list[int]) -> None:
        from trimtab.worker.memory import Held

        self._held = Held()
        self._decoder = decoder
        self._text = text
        self._cache: Cache | None = None
        self._token = 0

    def do(self, ask: Ask) -> Answer:
        begun_s = perf_counter()
        tokens = [self._begin(ask.prompt)] if ask.prompt else [*self._steps(ask.decode)]
        seconds = perf_counter() - begun_s
        held = self._held.resident_bytes(self._decoder.committed_bytes)
        if not tokens and self._cache is not None:
            self._decoder.close(self._cache)
        return Answer(seconds, tuple(tokens), held)

    def _begin(self, length: int) -> int:
        from trimtab.worker.decoder import Place

        self._cache = self._decoder.open(Place(_CONTEXT))
        prompt = self._text[:length]
        logits = None
        for at in range(0, length, _PIECE):
            piece = prompt[at : at + _PIECE]
            logits = self._decoder.prefill(self._cache, piece, last=at + _PIECE >= length)
        assert logits is not None
        self._token = int(logits.argmax())
        return self._token

    def _steps(self, count: int) -> Iterator[int]:
        for _ in range(count):
            assert self._cache is not None
            (logits,) = self._decoder.step([(self._cache, self._token)])
            if isinstance(logits, Exception):
                raise logits
            self._token = int(logits.argmax())
            yield self._token
