"""``trimtab bench batch``: conversations of different lengths decoded together or one by one.

Both in one process on the same variant, a few tokens at a time in turn: all conversations in one
run of the engine, against one run for each. Greedy tokens have to be the same.

Long conversations are measured too, and told apart: each reads a KV cache of its own.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from trimtab.bench.paired import middle, spread
from trimtab.bench.subject import bench_model, variant_of
from trimtab.domain.models import VariantSpec

if TYPE_CHECKING:
    from trimtab.worker.kv_cache import KvCache
    from trimtab.worker.kv_decoder import KvDecoder

VARIANTS: Final = ("int4", "int8")
SIZES: Final = (2, 4)
PROMPTS: Final = (50, 130, 210, 330)
LONG: Final = (940, 980, 1020, 1060)
ROUNDS: Final = 11
TOKENS: Final = 16
CONTEXT: Final = 1152


def run(quick: bool) -> dict[str, Any]:
    """Measure.

    Args:
        quick: One round: shows that it works, not how fast it is.

    Raises:
        NoModelError: The model isn't there.
    """
    model = bench_model(quick)
    rounds = 1 if quick else ROUNDS
    context = multiprocessing.get_context("spawn")
    rows: dict[str, dict[str, Any]] = {}
    for name in VARIANTS:
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            measured = executor.submit(_measure, variant_of(model, name), rounds).result()
        for case, (ratios, equal) in measured.items():
            rows[f"{name}_{case}"] = {
                "ratio": middle(ratios),
                "ratio_spread": spread(ratios),
                "tokens_equal": equal,
            }

    def least(case: str) -> float:
        return min(float(rows[f"{name}_{case}"]["ratio"]) for name in VARIANTS)

    return {
        **{f"ratio_b{size}_min": least(f"b{size}") for size in SIZES},
        **{f"ratio_b{size}_long_min": least(f"b{size}_long") for size in SIZES},
        "tokens_equal": all(row["tokens_equal"] for row in rows.values()),
        "by_case": rows,
        "model": model.model_id,
        "runs": {
            "rounds": rounds,
            "tokens": TOKENS,
            "prompts": list(PROMPTS),
            "long_prompts": list(LONG),
        },
    }


def _measure(variant: VariantSpec, rounds: int) -> dict[str, tuple[list[float], bool]]:
    """Runs in the child: ratios and whether tokens were equal, by case: ``b2``, ``b2_long``."""
    from trimtab.worker.kv_decoder import KvDecoder
    from trimtab.worker.variant import read_variant

    facts = read_variant(Path(variant.folder))
    decoder = KvDecoder(facts, 1, CONTEXT, variant.indices_graph)
    measured: dict[str, tuple[list[float], bool]] = {}
    for suffix, prompts in (("", PROMPTS), ("_long", LONG)):
        caches = [_talked(decoder, number, prompt) for number, prompt in enumerate(prompts)]
        for size in SIZES:
            measured[f"b{size}{suffix}"] = _compare(decoder, caches[:size], rounds)
        for cache in caches:
            decoder.close(cache)
    return measured


def _talked(decoder: KvDecoder, number: int, prompt: int) -> KvCache:
    """A conversation of ``prompt`` tokens, which are others for each number."""
    from trimtab.worker.decoder import Place

    cache = decoder.open(Place(CONTEXT))
    tokens = [(number * 97 + at) % 400 + 20 for at in range(prompt)]
    for at in range(0, prompt, 64):
        decoder.prefill(cache, tokens[at : at + 64], last=False)
    return cache


def _compare(decoder: KvDecoder, caches: list[KvCache], rounds: int) -> tuple[list[float], bool]:
    prompts = [cache.length for cache in caches]
    ratios, equal = [], True
    for number in range(rounds + 1):
        order = (_together, _apart) if number % 2 == 0 else (_apart, _together)
        done = {}
        for way in order:
            done[way] = way(decoder, caches)
            for cache, prompt in zip(caches, prompts, strict=True):
                decoder.rewind(cache, prompt)
        equal = equal and done[_together][1] == done[_apart][1]
        if number:  # the first round pays for buffers
            ratios.append(done[_apart][0] / done[_together][0])
    return ratios, equal


def _together(decoder: KvDecoder, caches: list[KvCache]) -> tuple[float, list[list[int]]]:
    """Seconds, and each conversation's tokens."""
    said: list[list[int]] = [[7] for _ in caches]
    begun_s = perf_counter()
    for _ in range(TOKENS):
        batch = [(cache, row[-1]) for cache, row in zip(caches, said, strict=True)]
        for row, logits in zip(said, decoder.step(batch), strict=True):
            row.append(_best(logits))
    return perf_counter() - begun_s, said


def _apart(decoder: KvDecoder, caches: list[KvCache]) -> tuple[float, list[list[int]]]:
    """The same, one conversation after the other."""
    said: list[list[int]] = [[7] for _ in caches]
    begun_s = perf_counter()
    for cache, row in zip(caches, said, strict=True):
        for _ in range(TOKENS):
            row.append(_best(decoder.step([(cache, row[-1])])[0]))
    return perf_counter() - begun_s, said


def _best(logits: Any) -> int:
    if isinstance(logits, Exception):
        raise logits
    return int(logits.argmax())
