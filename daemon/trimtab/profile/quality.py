"""How good each variant is, over a text or the user's own prompts: measured, with intervals.

Each variant runs in a process of its own. The most precise one goes first and leaves its
probabilities in a file, which the others are compared with.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.catalog import build_process
from trimtab.catalog.disk import check_space
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import TaskQuality, VariantQuality
from trimtab.errors import BuildError, EngineError, StateError
from trimtab.profile.intervals import Block, interval
from trimtab.profile.tasks import Tasks

MAX_TOKENS: Final = 4096
"""Tokens that are scored at most: their probabilities have to be kept on disk."""


class Scores(msgspec.Struct, frozen=True):
    """What a child measured of one task."""

    task: str
    blocks: list[Block]
    asked: int = 0
    right: int = 0


def compare(
    model: ModelSpec, tasks: Tasks, cache: Path, note: Callable[[str], None]
) -> tuple[VariantQuality, ...]:
    """Measure all variants of a model.

    Args:
        model: Its first variant is what the others are compared with.
        tasks: Text and questions.
        cache: Folder for the probabilities, which go when it is done.
        note: Told what is going on.

    Raises:
        CatalogError: The disk can't hold the probabilities.
        EngineError: A variant can't be run.
        StateError: The cache folder can't be written.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix="quality-", dir=cache)
    except OSError as error:
        raise StateError(f"{cache}: can't be written: {error.strerror}") from error
    with place as folder:
        reference = Path(folder) / "reference.f16"
        found = []
        for number, variant in enumerate(model.variants):
            note(f"comparing {variant.name}")
            scores = _run(variant, tasks, reference, first=number == 0, note=note)
            found.append(VariantQuality(variant.name, tuple(task_quality(one) for one in scores)))
    return tuple(found)


def task_quality(scores: Scores) -> TaskQuality:
    """Means and intervals of one task."""
    counts = [block.tokens for block in scores.blocks]
    nll = interval([block.nll for block in scores.blocks], counts)
    kl = interval([block.kl for block in scores.blocks], counts)
    return TaskQuality(
        task=scores.task,
        tokens=sum(counts),
        perplexity=math.exp(nll.mean),
        perplexity_low=math.exp(max(0.0, nll.low)),
        perplexity_high=math.exp(nll.high),
        mean_kl=kl.mean,
        kl_low=max(0.0, kl.low),
        kl_high=kl.high,
        agreement=sum(block.same for block in scores.blocks) / sum(counts),
        asked=scores.asked,
        right=scores.right,
    )


def _run(
    variant: VariantSpec, tasks: Tasks, reference: Path, *, first: bool, note: Callable[[str], None]
) -> list[Scores]:
    request = {
        "folder": variant.folder,
        "threads": max(1, len(os.sched_getaffinity(0)) - 1),
        "context": variant.context_length,
        "max_tokens": MAX_TOKENS,
        "reference": str(reference),
        "is_reference": first,
        "tasks": str(reference.with_name("tasks.json")),
    }
    reference.with_name("tasks.json").write_bytes(msgspec.json.encode(tasks))
    answers: list[Mapping[str, Any]] = []

    def on_line(line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # the engine's own words
        if isinstance(message, dict):
            if "needs_bytes" in message:
                check_space(reference.parent, message["needs_bytes"], "comparing the variants")
            elif "note" in message:
                note(f"{variant.name}: {message['note']}")
            else:
                answers.append(message)

    argv = [sys.executable, "-m", "trimtab.profile.quality_child", json.dumps(request)]
    try:
        build_process.run(argv, f"compare {variant.name}", on_line)
    except BuildError as error:
        raise EngineError(error.message, hint=error.hint) from error
    if not answers or "refused" in answers[-1]:
        reason = answers[-1]["refused"] if answers else "it ended without an answer"
        raise EngineError(f"variant {variant.name} can't be compared: {reason}")
    return msgspec.convert(answers[-1]["scores"], list[Scores])


def mean_kl(tasks: Sequence[TaskQuality]) -> float:
    """Over all tasks, each counting alike."""
    return sum(task.mean_kl for task in tasks) / len(tasks)
