"""The engine with nothing around it: a process that runs a variant's decoder in a loop.

The decoder is the one that a worker would choose. Prompts are tokenized before the time runs, the
prompt is computed in the worker's pieces, and the next token is the highest logit. No sockets, no
text, nobody who waits for it.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from trimtab.domain.models import VariantSpec
from trimtab.errors import WorkerError
from trimtab.huge_pages import lay_into_huge_pages

if TYPE_CHECKING:
    from trimtab.worker.decoder import Decoder
    from trimtab.worker.tokenizer import Tokenizer

PIECE_TOKENS: Final = 64
_TEXT: Final = Path(__file__).resolve().parent.parent / "catalog" / "data" / "evaluation.txt"


@dataclass(frozen=True, slots=True)
class Task:
    """One run: so many tokens after this prompt."""

    prompt: str
    tokens: int


@dataclass(frozen=True, slots=True)
class BareTimes:
    """What it took: to the first token, and tokens a second after it."""

    ttft_s: float
    tps: float


@dataclass(frozen=True, slots=True)
class WantPrompts:
    """Asks for different texts of exactly so many tokens."""

    count: int
    tokens: int


class BareLoop:
    """The process, as a context manager.

    Args:
        variant: What it loads.
        context: Tokens of a conversation, as in the daemon that it is compared with.
        cores: Cores that it may use; empty for all.
    """

    def __init__(self, variant: VariantSpec, context: int, cores: frozenset[int]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, variant, context, cores), daemon=True
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> BareLoop:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ours.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def prompts(self, count: int, tokens: int) -> list[str]:
        """Different texts of exactly so many tokens.

        Raises:
            WorkerError: The process has died.
        """
        found = self._ask(WantPrompts(count, tokens))
        assert isinstance(found, list)
        return found

    def run(self, task: Task) -> BareTimes:
        """One run.

        Raises:
            WorkerError: The process has died.
        """
        times = self._ask(task)
        assert isinstance(times, BareTimes)
        return times

    def _ask(self, what: Task | WantPrompts) -> object:
        try:
            self._ours.send(what)
            return self._ours.recv()
        except (EOFError, OSError) as error:
            raise WorkerError("the process that runs the bare loop has died") from error


def _serve(
    connection: Connection, variant: VariantSpec, context: int, cores: frozenset[int]
) -> None:
    """The process: the engine is imported here and nowhere else."""
    from trimtab.worker.choice import choose_decoder
    from trimtab.worker.tokenizer import Tokenizer
    from trimtab.worker.variant import read_variant
    from trimtab.workers.protocol import Load

    if cores:
        os.sched_setaffinity(0, cores)
    facts = read_variant(Path(variant.folder))
    tokenizer = Tokenizer(facts)
    load = Load(variant.folder, 1, "auto", context, variant.indices_graph)
    decoder = choose_decoder(facts, load).decoder
    sum(lay_into_huge_pages())  # as a worker does with its first idle moment
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if isinstance(asked, WantPrompts):
            connection.send(_prompts(tokenizer, asked))
        else:
            connection.send(_run(decoder, tokenizer, asked))


def _run(decoder: Decoder, tokenizer: Tokenizer, task: Task) -> BareTimes:
    from trimtab.worker.decoder import Place

    prompt = _tokens(tokenizer, task.prompt)
    cache = decoder.open(Place(len(prompt) + task.tokens))
    begun_s = perf_counter()
    logits = None
    for at in range(0, len(prompt), PIECE_TOKENS):
        last = at + PIECE_TOKENS >= len(prompt)
        logits = decoder.prefill(cache, prompt[at : at + PIECE_TOKENS], last=last)
    assert logits is not None
    token = int(logits.argmax())
    first_s = perf_counter()
    for _ in range(task.tokens - 1):
        (answer,) = decoder.step([(cache, token)])
        if isinstance(answer, Exception):
            raise answer
        token = int(answer.argmax())
    ended_s = perf_counter()
    decoder.close(cache)
    return BareTimes(first_s - begun_s, (task.tokens - 1) / (ended_s - first_s))


def _prompts(tokenizer: Tokenizer, wanted: WantPrompts) -> list[str]:
    """Texts from different places, so that no cached prefix serves two of them."""
    words = _TEXT.read_text(encoding="utf-8").split()
    found: list[str] = []
    start = 0
    while len(found) < wanted.count and start < len(words):
        end = start + 1
        while end <= len(words):
            text = " ".join(words[start:end])
            count = len(_tokens(tokenizer, text))
            if count == wanted.tokens:
                found.append(text)
            if count >= wanted.tokens:
                break
            end += 1
        start += 7
    if len(found) < wanted.count:
        raise WorkerError(f"the text has only {len(found)} passages of {wanted.tokens} tokens")
    return found


def _tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    from trimtab.workers.protocol import Render

    return tokenizer.render(Render(id=0, text=text))
