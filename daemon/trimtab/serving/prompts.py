"""Prompts as token ids: of a request, and how many of them stand before the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trimtab.domain.prefix import common_prefix
from trimtab.errors import RequestError
from trimtab.serving.requests import GenerationRequest
from trimtab.workers.worker import Worker

_BEFORE_CONVERSATION: Final = ("system", "developer")
_OTHER_WORDS: Final = ("0", "?")  # one of them begins otherwise than any message


async def render(
    request: GenerationRequest, worker: Worker, timeout_s: float, known: Sequence[int] = ()
) -> list[int]:
    """Token ids of a request's prompt, if the worker makes them in time.

    Args:
        request: The request.
        worker: Has the tokenizer.
        timeout_s: How long it may take.
        known: Token ids of a conversation that it goes on with: kept as far as the text goes.

    Raises:
        RequestError: Template or tokenizer refuse it, or what the answer must look like can't be
            enforced.
        WorkerError: The worker is gone, or does not answer in time.
    """
    try:
        return await worker.render(
            messages=_plain(request.messages),
            text=request.text,
            tools=_plain(request.tools),
            guide=request.guide,
            known=list(known),
            timeout_s=timeout_s,
        )
    except RequestError as error:
        error.param = error.param or request.prompt_field
        raise


async def beginning(
    request: GenerationRequest, prompt: list[int], worker: Worker, timeout_s: float
) -> int:
    """How many tokens of a prompt stand before the first message of the conversation.

    That is what the prompt has in common with one whose first message is another: the system
    prompt, tools, and what the template puts there by itself.

    Returns:
        0 for a completion, and where the template takes no other message.

    Raises:
        WorkerError: The worker is gone, or does not answer in time.
    """
    messages = list(request.messages or ())
    first = next((n for n, one in enumerate(messages) if not _stands_before(one)), None)
    if first is None:
        return 0
    said = str(messages[first].get("content"))
    other = next(word for word in _OTHER_WORDS if not said.startswith(word))
    cut = [*messages[:first], {"role": messages[first].get("role"), "content": other}]
    try:
        tokens = await render(replace(request, messages=cut, guide=None), worker, timeout_s)
    except RequestError:
        return 0
    return common_prefix(prompt, tokens)


def _stands_before(message: Mapping[str, Any]) -> bool:
    return message.get("role") in _BEFORE_CONVERSATION


def _plain(items: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    return None if items is None else [dict(item) for item in items]
