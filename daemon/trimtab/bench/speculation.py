"""``trimtab bench speculation``: drafting when it pays against always and never.

In a child process with one variant, the worker's own turns answer prompts of three kinds: free
text, quoting, code; and all three in a row as a mix. Three ways are compared in turn: no drafts,
drafts wherever there are any, and the worker's choice. On fp32 the int4 variant drafts in the same
KV cache where the text itself gives no draft.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from trimtab.bench.paired import middle, spread
from trimtab.bench.subject import bench_model, variant_of
from trimtab.domain.models import VariantSpec

PAIRS: Final = 5
TOKENS: Final = 128
_ALWAYS: Final = 4  # tokens drafted at once when nobody chooses
_WAYS: Final = ("off", "on", "choice")
_QUOTED: Final = """The gateway in the cellar runs from a small power supply. Its fan was replaced \
in March, and the new one is quieter. Every night at two it copies the day's readings to the disk \
in the attic. If the copy fails, a red lamp on the front stays lit until somebody presses the \
button beside it. The key to the cellar hangs behind the door of the kitchen."""
PROMPTS: Final[dict[str, str]] = {
    "free": "Tell me a long story about a lighthouse keeper and a storm.",
    "quoting": f"Repeat this text word for word, twice:\n\n{_QUOTED}",
    "code": "Write Python functions get_name, set_name, get_age, set_age, get_city and set_city "
    "for a class Person, each with a docstring.",
}


@dataclass(frozen=True, slots=True)
class Speed:
    """One answer.

    Attributes:
        tps: Tokens a second after the first.
        drafted: Tokens that were drafted.
        accepted: How many of them were right.
    """

    tps: float
    drafted: int
    accepted: int


def run(quick: bool) -> dict[str, Any]:
    """Measure fp32 with int4 as its draft, int8 and int4.

    Args:
        quick: One variant, one pair, few tokens: shows that it works, not how fast it is.

    Raises:
        NoModelError: The model isn't there.
    """
    model = bench_model(quick)
    pairs, tokens = (1, 24) if quick else (PAIRS, TOKENS)
    names = ("int4",) if quick else ("fp32", "int8", "int4")
    by_segment: dict[str, Any] = {}
    for name in names:
        draft = variant_of(model, "int4") if name == "fp32" else None
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            work = executor.submit(_measure, variant_of(model, name), draft, pairs, tokens)
            for segment, ways in work.result().items():
                by_segment[f"{name}/{segment}"] = _segment(ways)
    shared = by_segment.get("fp32/mix")
    return {
        "min_ratio": min(segment["ratio"] for segment in by_segment.values()),
        "fp32_shared_draft_ratio": shared["choice_over_off"] if shared else None,
        "by_segment": by_segment,
        "runs": pairs,
    }


def _segment(ways: dict[str, list[Speed]]) -> dict[str, Any]:
    """The choice against the better of the two others, pair by pair."""
    better = middle([one.tps for one in ways["on"]]) > middle([one.tps for one in ways["off"]])
    rival = ways["on"] if better else ways["off"]
    ratios = [one.tps / other.tps for one, other in zip(ways["choice"], rival, strict=True)]
    over_off = [a.tps / b.tps for a, b in zip(ways["choice"], ways["off"], strict=True)]
    always = [a.tps / b.tps for a, b in zip(ways["on"], ways["off"], strict=True)]
    return {
        "ratio": middle(ratios),
        "spread": spread(ratios),
        "choice_over_off": middle(over_off),
        "on_over_off": middle(always),
        "drafted": ways["choice"][-1].drafted,
        "accepted": ways["choice"][-1].accepted,
        "tps_off": middle([one.tps for one in ways["off"]], 1),
    }


def _measure(
    variant: VariantSpec, draft: VariantSpec | None, pairs: int, tokens: int
) -> dict[str, dict[str, list[Speed]]]:
    """Runs in the child."""
    from trimtab.bench.turns_alone import TurnsAlone

    worker = TurnsAlone(variant, draft)
    prompts = {name: worker.render(text) for name, text in PROMPTS.items()}
    for way in _WAYS:
        worker.answer(prompts["free"], 24, _mode(way, draft), _fixed(way))  # costs are learned
    found: dict[str, dict[str, list[Speed]]] = {
        name: {way: [] for way in _WAYS} for name in (*prompts, "mix")
    }
    for pair in range(pairs):
        for way in _WAYS if pair % 2 == 0 else reversed(_WAYS):
            seconds, drafted, accepted = 0.0, 0, 0
            for name, prompt in prompts.items():
                begun_s = perf_counter()
                end = worker.answer(prompt, tokens, _mode(way, draft), _fixed(way))
                took_s = perf_counter() - begun_s - end.prefill_s
                speed = Speed((tokens - 1) / took_s, end.drafted, end.accepted)
                found[name][way].append(speed)
                seconds, drafted = seconds + took_s, drafted + end.drafted
                accepted += end.accepted
            whole = Speed(len(prompts) * (tokens - 1) / seconds, drafted, accepted)
            found["mix"][way].append(whole)
    return found


def _mode(way: str, draft: VariantSpec | None) -> str:
    if way == "off":
        return "off"
    return "ngram" if draft is None else "draft"


def _fixed(way: str) -> int:
    return _ALWAYS if way == "on" else 0
