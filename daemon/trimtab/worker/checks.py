"""Checks of what a `Start` asks for, before anything is computed for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from trimtab.domain.view import fits
from trimtab.errors import ContextError, EngineError
from trimtab.workers.protocol import Sampling, Start

_MOST_STOPS = 64
_MOST_LOGPROBS = 64


def check_start(start: Start, vocabulary: int, context: int) -> None:
    """Refuse a stream that can't be computed as asked.

    Args:
        start: The request.
        vocabulary: Number of token ids; the engine takes any number and answers with garbage.
        context: Most tokens that a stream can have in this worker.

    Raises:
        ContextError: The prompt leaves no room for an answer.
        EngineError: A field is out of its range; the message names it.
    """
    fault = next(_faults(start, vocabulary, context), "")
    if fault:
        raise EngineError(fault, code="invalid_request")
    if not start.keep and len(start.prompt) >= start.context:
        raise ContextError(
            f"the prompt has {len(start.prompt)} tokens; "
            f"the context holds {start.context}, prompt and answer together"
        )


def _faults(start: Start, vocabulary: int, context: int) -> Iterator[str]:
    if not start.prompt:
        yield "prompt: it has no tokens"
    for field, tokens in (("prompt", start.prompt), ("generated", start.generated)):
        if tokens and (min(tokens) < 0 or max(tokens) >= vocabulary):
            yield f"{field}: token ids are 0 to {vocabulary - 1}"
    if not 1 <= start.context <= context:
        yield f"context: {start.context} is not within 1 to {context}"
    if start.max_tokens < 1:
        yield f"max_tokens: {start.max_tokens} is less than 1"
    if start.valid < 0:
        yield f"valid: {start.valid} is negative"
    if len(start.stop) > _MOST_STOPS or "" in start.stop:
        yield f"stop: up to {_MOST_STOPS} strings, none of them empty"
    yield from _window_faults(start)
    yield from _sampling_faults(start.sampling, vocabulary)


def _window_faults(start: Start) -> Iterator[str]:
    if start.keep and not fits(start.keep, start.context):
        yield f"keep: {start.keep} is not below {start.context // 2}, half of the context"
    after = len(start.prompt) + len(start.generated) - start.keep
    most = max(0, after - 1) if start.keep else 0
    if not 0 <= start.dropped <= most:
        yield f"dropped: {start.dropped} is not within 0 to {most}"


def _sampling_faults(sampling: Sampling, vocabulary: int) -> Iterator[str]:
    ranges = (
        ("temperature", sampling.temperature, 0, 100),
        ("top_p", sampling.top_p, 0, 1),
        ("top_k", sampling.top_k, 0, math.inf),
        ("repetition_penalty", sampling.repetition_penalty, 0.01, 100),
        ("repetition_window", sampling.repetition_window, 0, math.inf),
        ("presence_penalty", sampling.presence_penalty, -100, 100),
        ("frequency_penalty", sampling.frequency_penalty, -100, 100),
        ("top_logprobs", sampling.top_logprobs, -1, _MOST_LOGPROBS),
    )
    for field, value, low, high in ranges:
        if not low <= value <= high:  # not a number fails too
            yield f"{field}: {value} is not within {low} to {high}"
    if not all(0 <= token < vocabulary for token in sampling.logit_bias):
        yield f"logit_bias: token ids are 0 to {vocabulary - 1}"
    if not _finite(sampling.logit_bias.values()):
        yield "logit_bias: the values must be finite numbers"


def _finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))
