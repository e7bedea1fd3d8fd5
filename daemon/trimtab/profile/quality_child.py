"""Scores one variant, in a process of its own: `python -m trimtab.profile.quality_child REQUEST`.

The request is one JSON object, the only argument; answers are JSON lines on standard output:
`{"needs_bytes": ...}`, `{"note": ...}`, then `{"scores": [...]}` or `{"refused": REASON}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnxruntime_genai as og
from numpy.typing import NDArray

from trimtab.catalog.compare import Reference, log_softmax
from trimtab.catalog.prove_child import PIECE, WINDOW, load
from trimtab.errors import BuildError
from trimtab.profile.intervals import Block
from trimtab.profile.tasks import TEXT, Question, Tasks, normalised

BLOCK: Final = 64
ANSWER_MORE: Final = 16
"""Tokens beyond the expected answer's length that an answer may have before it is cut off."""


@dataclass(slots=True)
class Tally:
    """What was measured of one task so far."""

    blocks: list[Block] = field(default_factory=list)
    asked: int = 0
    right: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """Token ids, of which those from ``first`` on are scored."""

    task: str
    ids: NDArray[np.int32]
    first: int
    question: Question | None = None


class Scorer:
    """One loaded variant over all passages.

    Args:
        model: Of onnxruntime-genai.
        tokenizer: The model's.
        context: Most tokens at once.
    """

    def __init__(self, model: Any, tokenizer: Any, context: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._context = context

    def passages(self, tasks: Tasks, most: int) -> list[Passage]:
        """Text in windows and questions with their answers, up to so many scored tokens."""
        found: list[Passage] = []
        window = min(WINDOW, self._context)
        ids = self._ids(tasks.text)[:most] if tasks.text else np.empty(0, np.int32)
        for start in range(0, len(ids), window):
            part = ids[start : start + window]
            if len(part) > 1:
                found.append(Passage(TEXT, part, 1))
        found += [self._passage(question) for question in tasks.questions]
        scored = 0
        kept: list[Passage] = []
        for passage in found:
            scored += len(passage.ids) - passage.first
            if scored > most and kept:
                break
            kept.append(passage)
        return kept

    def score(self, passage: Passage, row: int, reference: Reference) -> Iterator[Block]:
        """Surprise and divergence in blocks of tokens."""
        nll: list[float] = []
        kl: list[float] = []
        same: list[bool] = []
        for at, log_probs in self._log_probs(passage):
            following = passage.ids[at + 1 : at + 1 + len(log_probs)]
            log_probs = log_probs[: len(following)]
            nll += (-log_probs[np.arange(len(following)), following]).tolist()
            here = row + at + 1 - passage.first
            if reference.writes:
                reference.put(here, log_probs)
            best = reference.get(here, len(following))
            if best is None:
                kl += [0.0] * len(following)
                same += [True] * len(following)
            else:
                divergence = (np.exp(best) * (best - log_probs)).sum(axis=1)
                kl += np.maximum(divergence, 0.0).tolist()
                same += (best.argmax(axis=1) == log_probs.argmax(axis=1)).tolist()
        size = BLOCK if passage.question is None else max(1, len(nll))
        for at in range(0, len(nll), size):
            part = slice(at, at + size)
            yield Block(len(nll[part]), sum(nll[part]), sum(kl[part]), sum(same[part]))

    def answers(self, passage: Passage) -> bool:
        """Whether the variant's own greedy answer is an expected one, exactly."""
        question = passage.question
        assert question is not None
        longest = max(len(self._ids(answer)) for answer in question.expected)
        prompt = passage.ids[: passage.first]
        params = og.GeneratorParams(self._model)
        total = min(self._context, len(prompt) + longest + ANSWER_MORE)
        params.set_search_options(max_length=total, do_sample=False)
        generator = og.Generator(self._model, params)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        made = self._tokenizer.decode(generator.get_sequence(0)[len(prompt) :])
        return any(normalised(made) == normalised(answer) for answer in question.expected)

    def _passage(self, question: Question) -> Passage:
        message = json.dumps([{"role": "user", "content": question.prompt}])
        try:
            prompt = self._tokenizer.apply_chat_template(message, add_generation_prompt=True)
        except RuntimeError:
            prompt = question.prompt  # a model without a template
        before, answer = self._ids(prompt), self._ids(question.expected[0])
        ids = np.concatenate([before, answer])
        if len(ids) > self._context:
            raise BuildError(
                f"the prompt {question.prompt[:40]!r} has {len(ids)} tokens, "
                f"and the context holds {self._context}"
            )
        return Passage(question.task, ids, len(before), question)

    def _log_probs(self, passage: Passage) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """For each scored token, the log-probabilities at the position before it."""
        params = og.GeneratorParams(self._model)
        params.set_search_options(max_length=len(passage.ids) + 1, do_sample=False)
        generator = og.Generator(self._model, params)
        for at in range(0, len(passage.ids), PIECE):
            piece = passage.ids[at : at + PIECE]
            generator.append_tokens(piece)
            skip = max(0, passage.first - 1 - at)
            if skip >= len(piece):
                continue
            logits = np.asarray(generator.get_output("logits"), dtype=np.float32)
            yield at + skip, log_softmax(logits[0, -len(piece) :][skip:])

    def _ids(self, text: str) -> NDArray[np.int32]:
        return np.asarray(self._tokenizer.encode(text), dtype=np.int32)


def score_all(
    request: dict[str, Any], answer: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """All of it; raises `BuildError` with the reason."""
    model, tokenizer, load_s, _ = load(request["folder"], int(request["threads"]))
    answer({"note": f"loaded in {load_s:.1f} s"})
    tasks = msgspec.json.decode(Path(request["tasks"]).read_bytes(), type=Tasks)
    scorer = Scorer(model, tokenizer, int(request["context"]))
    passages = scorer.passages(tasks, int(request["max_tokens"]))
    rows = sum(len(passage.ids) - passage.first for passage in passages)
    if rows < 1:
        raise BuildError("there isn't a token to predict in it")
    vocabulary = _vocabulary(model)
    reference = _reference(request, rows, vocabulary, answer)
    tallies: dict[str, Tally] = {}
    row = 0
    for number, passage in enumerate(passages, start=1):
        tally = tallies.setdefault(passage.task, Tally())
        tally.blocks += scorer.score(passage, row, reference)
        row += len(passage.ids) - passage.first
        if passage.question is not None:
            tally.asked += 1
            tally.right += scorer.answers(passage)
        answer({"note": f"{number} of {len(passages)} passages"})
    reference.close()
    return [
        {
            "task": task,
            "blocks": msgspec.to_builtins(tally.blocks),
            "asked": tally.asked,
            "right": tally.right,
        }
        for task, tally in tallies.items()
    ]


def _vocabulary(model: Any) -> int:
    """Columns of the logits: what the graph knows, which may be more than the tokenizer does."""
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=2, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.zeros(1, np.int32))
    return int(np.asarray(generator.get_output("logits")).shape[-1])


def _reference(
    request: dict[str, Any], rows: int, vocabulary: int, answer: Callable[[dict[str, Any]], None]
) -> Reference:
    """The file of the best variant's probabilities; its room is taken before it is written."""
    path = Path(request["reference"])
    writes = bool(request["is_reference"])
    size = rows * vocabulary * np.dtype(np.float16).itemsize
    if writes:
        answer({"needs_bytes": size})
    reference = Reference(path, rows, vocabulary, writes)
    if writes:  # a mapped file whose disk fills up would end this process without a word
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    return reference


def main(arguments: Sequence[str]) -> None:
    """Answer on the real standard output; what libraries print there goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")

    og.disable_telemetry_events()
    try:
        answer({"scores": score_all(json.loads(arguments[0]), answer)})
    except (BuildError, RuntimeError, OSError) as reason:
        answer({"refused": str(reason)})


if __name__ == "__main__":
    main(sys.argv[1:])
