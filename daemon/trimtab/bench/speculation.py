"""``trimtab bench speculation``: drafting when it pays against always and never.

In a child process with one variant, the worker's own turns answer prompts of three kinds: free
text, quoting, code, three of each; and all of them in a row as a mix. Three ways are compared in
turn, answer by answer: no drafts, drafts wherever there are any, and the worker's choice. On int8
and int4 the engine rounds otherwise in passes over several tokens, so each way would write a text
of its own, and the ratio would say whose text repeats more. So the text that the variant writes
without drafts is dictated to all three: everything is computed, and then the text goes on as it
was written. On fp32 the int4 variant drafts in the same KV cache where the text itself gives no
draft.
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

PAIRS: Final = {"fp32": 7, "int8": 15, "int4": 15}  # where a pair is short, single ones stray
TOKENS: Final = 96
_ALWAYS: Final = 4  # tokens drafted at once when nobody chooses
_WAYS: Final = ("off", "on", "choice")
_QUOTED: Final = (
    "The gateway in the cellar runs from a small power supply. Its fan was replaced in March, and "
    "the new one is quieter. Every night at two it copies the day's readings to the disk in the "
    "attic. If the copy fails, a red lamp on the front stays lit until somebody presses the "
    "button beside it. The key to the cellar hangs behind the door of the kitchen.",
    "Bread needs flour, water, salt and time. Mix the flour with the water and let it rest for "
    "half an hour. Then add the salt and a spoon of old dough, fold it four times, and leave it "
    "in a cool room overnight. In the morning heat the oven as far as it goes, with a pot inside, "
    "and bake the loaf in the pot until its crust is dark.",
    "Pump 1: 41.2 C, 880 rpm, ok. Pump 2: 43.9 C, 875 rpm, ok. Pump 3: 61.5 C, 640 rpm, warm. "
    "Pump 4: 40.8 C, 882 rpm, ok. Valve A is open, valve B is closed, valve C is open. The tank "
    "holds 1250 litres, and the filter was changed on the third of May by the night shift.",
)
PROMPTS: Final[dict[str, tuple[str, ...]]] = {
    "free": (
        "Tell me a long story about a lighthouse keeper and a storm.",
        "Explain to a child why the sky is blue and the evening red.",
        "Write a letter to a friend about your first week in a new city.",
    ),
    "quoting": tuple(f"Repeat this text word for word, twice:\n\n{text}" for text in _QUOTED),
    "code": (
        "Write Python functions get_name, set_name, get_age, set_age, get_city and set_city for a "
        "class Person, each with a docstring.",
        "Write a Python program that reads a CSV file of temperatures and prints the mean, the "
        "least and the greatest of each column.",
        "Write unit tests with pytest for a function add(a, b): for integers, negative numbers, "
        "floats and strings.",
    ),
}


@dataclass(frozen=True, slots=True)
class Answers:
    """Several answers.

    Attributes:
        tokens: Tokens after each answer's first.
        seconds: What they took.
        drafted: Tokens that were drafted.
        accepted: How many of them were right.
    """

    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )

    @property
    def tps(self) -> float:
        """Tokens a second after the first."""
        return self.tokens / self.seconds


def run(quick: bool) -> dict[str, Any]:
    """Measure fp32 with int4 as its draft, int8 and int4.

    Args:
        quick: One variant, one pair, one short answer of each kind: shows that it works, not how
            fast it is.

    Raises:
        NoModelError: The model isn't there.
    """
    model = bench_model(quick)
    tokens, answers = (24, 1) if quick else (TOKENS, len(_QUOTED))
    runs = {"int4": 1} if quick else PAIRS
    by_segment: dict[str, Any] = {}
    for name, pairs in runs.items():
        draft = variant_of(model, "int4") if name == "fp32" else None
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            work = executor.submit(_measure, variant_of(model, name), draft, pairs, tokens, answers)
            for segment, ways in work.result().items():
                by_segment[f"{name}/{segment}"] = _segment(ways)
    shared = by_segment.get("fp32/mix")
    return {
        "min_ratio": min(segment["ratio"] for segment in by_segment.values()),
        "fp32_shared_draft_ratio": shared["choice_over_off"] if shared else None,
        "by_segment": by_segment,
        "runs": runs,
    }


def _segment(ways: dict[str, list[Answers]]) -> dict[str, Any]:
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
    variant: VariantSpec, draft: VariantSpec | None, pairs: int, tokens: int, answers: int
) -> dict[str, dict[str, list[Answers]]]:
    """Runs in the child."""
    from trimtab.bench.turns_alone import TurnsAlone

    worker = TurnsAlone(variant, draft)
    asked = [
        (name, prompt, worker.write(prompt, tokens))
        for name, questions in PROMPTS.items()
        for prompt in map(worker.render, questions[:answers])
    ]
    _, first, text = asked[0]
    for way in _WAYS:  # costs are learned
        worker.answer(first, text[:24], _mode(way, draft), _fixed(way))
    found: dict[str, dict[str, list[Answers]]] = {
        name: {way: [Answers()] * pairs for way in _WAYS} for name in (*PROMPTS, "mix")
    }
    for pair in range(pairs):
        for number, (name, prompt, text) in enumerate(asked):
            for way in _WAYS if (pair + number) % 2 == 0 else reversed(_WAYS):
                begun_s = perf_counter()
                end = worker.answer(prompt, text, _mode(way, draft), _fixed(way))
                took_s = perf_counter() - begun_s - end.prefill_s
                one = Answers(tokens - 1, took_s, end.drafted, end.accepted)
                found[name][way][pair] += one
                found["mix"][way][pair] += one
    return found


def _mode(way: str, draft: VariantSpec | None) -> str:
    if way == "off":
        return "off"
    return "ngram" if draft is None else "draft"


def _fixed(way: str) -> int:
    return _ALWAYS if way == "on" else 0
