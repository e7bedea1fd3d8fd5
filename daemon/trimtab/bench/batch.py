"""``trimtab bench batch``: conversations decoded together against one after the other.

In a child process, conversations of different lengths go on by a few tokens, woven into one batch,
then go back and do the same one by one, in the order A B B A. The tokens of both must be equal.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from trimtab.bench.paired import middle, spread
from trimtab.bench.subject import bench_model, variant_of
from trimtab.domain.models import VariantSpec

if TYPE_CHECKING:
    from trimtab.worker.kv_cache import KvCache
    from trimtab.worker.kv_decoder import KvDecoder

TEXT: Final = Path(__file__).resolve().parent.parent / "catalog" / "data" / "evaluation.txt"
VARIANTS: Final = ("int4", "int8")
SIZES: Final = (2, 4)
LENGTHS: Final = (60, 300, 140, 220)
STEPS: Final = 16
PAIRS: Final = 6
_PIECE: Final = 64


@dataclass(frozen=True, slots=True)
class Round:
    """The same tokens both ways.

    Attributes:
        together_s: In one batch.
        apart_s: One conversation after the other.
        equal: Whether both said the same.
    """

    together_s: float
    apart_s: float
    equal: bool


def run(quick: bool) -> dict[str, Any]:
    """Measure two and four conversations on int4 and int8.

    Args:
        quick: One pair of a few tokens: shows that it works, not how fast it is.

    Raises:
        NoModelError: The model isn't there.
    """
    model = bench_model(quick)
    pairs, steps = (1, 3) if quick else (PAIRS, STEPS)
    result: dict[str, Any] = {"tokens_equal": True, "runs": pairs}
    context = multiprocessing.get_context("spawn")
    for name in VARIANTS:
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            rounds = executor.submit(_measure, variant_of(model, name), pairs, steps).result()
        for size, measured in rounds.items():
            ratios = [one.apart_s / one.together_s for one in measured]
            result[f"ratio_b{size}_{name}"] = middle(ratios)
            result[f"spread_b{size}_{name}"] = spread(ratios)
            result["tokens_equal"] &= all(one.equal for one in measured)
    for size in SIZES:
        result[f"ratio_b{size}_min"] = min(result[f"ratio_b{size}_{name}"] for name in VARIANTS)
    return result


def _measure(variant: VariantSpec, pairs: int, steps: int) -> dict[int, list[Round]]:
    """Runs in the child."""
    from trimtab.worker.kv_decoder import KvDecoder
    from trimtab.worker.tokenizer import Tokenizer
    from trimtab.worker.variant import read_variant
    from trimtab.workers.protocol import Render

    facts = read_variant(Path(variant.folder))
    text = Tokenizer(facts).render(Render(id=0, text=TEXT.read_text(encoding="utf-8")))
    room = max(LENGTHS) + (pairs + 1) * steps
    decoder = KvDecoder(facts, 1, room, variant.indices_graph)
    measured = {}
    for size in SIZES:
        talk = _Conversations(decoder, text, LENGTHS[:size], room)
        talk.both_ways(steps, together_first=True)  # the first run also pays for buffers
        measured[size] = [
            talk.both_ways(steps, together_first=pair % 2 == 0) for pair in range(pairs)
        ]
        talk.close()
    return measured


class _Conversations:
    """Conversations that can be taken further and back.

    Args:
        decoder: The decoder.
        text: Tokens that prompts are taken from.
        lengths: Of the prompts.
        room: Tokens that a conversation may come to.
    """

    def __init__(
        self, decoder: KvDecoder, text: list[int], lengths: Sequence[int], room: int
    ) -> None:
        from trimtab.worker.decoder import Place

        self._decoder = decoder
        self._caches: list[KvCache] = []
        self._tokens: list[int] = []
        start = 0
        for length in lengths:
            cache = decoder.open(Place(room))
            prompt = text[start : start + length]
            start += length
            for at in range(0, length, _PIECE):
                decoder.prefill(cache, prompt[at : at + _PIECE], last=False)
            self._caches.append(cache)
            self._tokens.append(prompt[-1])

    def both_ways(self, steps: int, *, together_first: bool) -> Round:
        """The next tokens, together and apart; the conversations go on from there."""
        rows = range(len(self._caches))
        together = [list(rows)]
        apart = [[row] for row in rows]
        before, tokens = [cache.length for cache in self._caches], list(self._tokens)
        ways = (together, apart) if together_first else (apart, together)
        seconds: dict[bool, float] = {}
        said = []
        for groups in ways:
            for cache, length in zip(self._caches, before, strict=True):
                self._decoder.rewind(cache, length)
            self._tokens = list(tokens)
            begun_s = perf_counter()
            said.append([part for group in groups for part in self._go_on(group, steps)])
            seconds[groups is together] = perf_counter() - begun_s
        return Round(seconds[True], seconds[False], said[0] == said[1])

    def close(self) -> None:
        """Give their memory back."""
        for cache in self._caches:
            self._decoder.close(cache)

    def _go_on(self, rows: Sequence[int], steps: int) -> list[list[int]]:
        said: dict[int, list[int]] = {row: [] for row in rows}
        for _ in range(steps):
            batch = [(self._caches[row], self._tokens[row]) for row in rows]
            for row, logits in zip(rows, self._decoder.step(batch), strict=True):
                if isinstance(logits, Exception):
                    raise logits
                self._tokens[row] = int(logits.argmax())
                said[row].append(self._tokens[row])
        return list(said.values())
