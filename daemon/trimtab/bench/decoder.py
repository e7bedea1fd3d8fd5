"""``trimtab bench decoder``: the decoder that owns its KV cache against the engine's Generator.

Each has a process of its own with the variant loaded, and they run in turn (A B B A) on the same
prompts. The Generator runs as fast as it can: with the shared buffer, which the worker leaves off
because it takes memory for the whole context at once.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from trimtab.catalog import load_catalog, models_folder
from trimtab.domain.models import VariantSpec
from trimtab.errors import WorkerError

MODEL: Final = "smollm2-135m"
_PROMPTS: Final = (50, 1000)
_PIECE: Final = 64
_TEXT: Final = Path(__file__).resolve().parent.parent / "catalog" / "data" / "evaluation.txt"


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement.

    Attributes:
        prompt: Tokens of the prompt.
        decode: Tokens to generate, greedily.
    """

    prompt: int
    decode: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run gave.

    Attributes:
        ttft_s: From the prompt's tokens to the first token.
        tps: Tokens a second after it.
        tokens: What was generated.
        rss_bytes: Resident memory of the process afterwards.
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
    pairs, decode = (1, 8) if quick else (5, 64)
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
    with _Child("generator", variant) as generator, _Child("kv", variant) as own:
        rows = []
        for prompt in _PROMPTS:
            task = Task(prompt, decode)
            theirs: list[Sample] = []
            ours: list[Sample] = []
            for pair in range(pairs):
                turn = [(generator, theirs), (own, ours)]
                for child, samples in turn if pair % 2 == 0 else reversed(turn):
                    samples.append(child.measure(task))
            rows.append(_row(variant.name, prompt, ours, theirs))
        return rows


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
        "tokens_equal": all(own.tokens == other.tokens for own, other in pairs),
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

    def measure(self, task: Task) -> Sample:
        """One run.

        Raises:
            WorkerError: The process has died.
        """
        try:
            self._ours.send(task)
            answer = self._ours.recv()
        except (EOFError, OSError) as error:
            raise WorkerError("the process that measures a decoder has died") from error
        assert isinstance(answer, Sample)
        return answer


def _serve(connection: Connection, kind: str, folder: str, indices_graph: str) -> None:
    """The child's own work: the engine is imported here and nowhere else."""
    from trimtab.worker.decoder import Decoder, Place
    from trimtab.worker.generator import GeneratorDecoder
    from trimtab.worker.kv_decoder import KvDecoder
    from trimtab.worker.memory import resident_bytes
    from trimtab.worker.tokenizer import Tokenizer
    from trimtab.worker.variant import read_variant
    from trimtab.workers.protocol import Render

    facts = read_variant(Path(folder))
    room = max(_PROMPTS) + 256
    decoder: Decoder
    if kind == "kv":
        decoder = KvDecoder(facts, 1, room, indices_graph)
    else:
        decoder = GeneratorDecoder(facts, 1, share_buffer=True)
    text = _TEXT.read_text(encoding="utf-8")
    tokens = Tokenizer(facts).render(Render(id=0, text=text))

    def measure(task: Task) -> Sample:
        prompt = tokens[: task.prompt]
        cache = decoder.open(Place(task.prompt + task.decode))
        begun_s = perf_counter()
        logits = None
        for at in range(0, len(prompt), _PIECE):
            piece = prompt[at : at + _PIECE]
            logits = decoder.prefill(cache, piece, last=at + _PIECE >= len(prompt))
        assert logits is not None
        said = [int(logits.argmax())]
        first_s = perf_counter()
        while len(said) < task.decode:
            (answer,) = decoder.step([(cache, said[-1])])
            if isinstance(answer, Exception):
                raise answer
            said.append(int(answer.argmax()))
        tps = (task.decode - 1) / (perf_counter() - first_s)
        held = resident_bytes(decoder.committed_bytes)
        decoder.close(cache)
        return Sample(first_s - begun_s, tps, tuple(said), held)

    measure(Task(_PIECE, 4))  # the first run also pays for buffers
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(measure(task))
