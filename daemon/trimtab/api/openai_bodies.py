"""What OpenAI's clients send, and what becomes of it: a `GenerationRequest`.

Fields that we know and that change nothing here are taken and left alone; those that we can't
honour are refused by name; those that nobody knows are refused too, as OpenAI does.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from trimtab.api.bodies import MOST_TOKENS, in_range, refuse, unsupported
from trimtab.api.openai_tools import (
    ResponseFormat,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    calls_for_template,
    guide_of,
    tools_for_template,
    wanted_schema,
)
from trimtab.api.wish import Wish
from trimtab.serving.requests import GenerationRequest, Priority
from trimtab.workers.protocol import Sampling

MAX_STOP: Final = 16
MAX_STOP_CHARACTERS: Final = 1024
MAX_BIAS: Final = 1024
MAX_TOP_LOGPROBS: Final = 20
MAX_TOP_LOGPROBS_COMPLETION: Final = 5
_SEED_MASK: Final = (1 << 64) - 1

# Where OpenAI has a role that chat templates don't know.
_ROLES: Final[dict[str, str]] = {"developer": "system"}


class Part(msgspec.Struct, frozen=True):
    """A piece of a message's content; only text is taken."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Extras(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What only trimtab knows: ``extra_body={"trimtab": {...}}`` in OpenAI's client."""

    priority: Priority | None = None
    ignore_eos: bool = False


class _Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    trimtab: Extras | None = None
    n: int | None = None
    # taken, and without effect here
    user: Any = UNSET
    metadata: Any = UNSET
    store: Any = UNSET
    service_tier: Any = UNSET
    safety_identifier: Any = UNSET
    prompt_cache_key: Any = UNSET
    prompt_cache_retention: Any = UNSET


class ChatBody(_Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of ``/v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: Any = UNSET
    audio: Any = UNSET
    functions: Any = UNSET
    function_call: Any = UNSET
    prediction: Any = UNSET
    reasoning_effort: Any = UNSET
    verbosity: Any = UNSET
    web_search_options: Any = UNSET


class CompletionBody(_Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of ``/v1/completions``."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


def chat_wish(body: ChatBody, user: int | None, priority: Priority) -> Wish:
    """What a chat request asks for.

    Args:
        body: As it came.
        user: Numeric id of the peer.
        priority: The highest that this user's requests may have, and theirs where they don't say.

    Raises:
        RequestError: A field can't be honoured.
    """
    _refuse_unsupported_chat(body)
    if not body.messages:
        raise refuse("messages", "'messages' is empty; send at least one.")
    if body.top_logprobs is not None and not body.logprobs:
        raise refuse("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    in_range("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise refuse("max_tokens", "'max_tokens' and 'max_completion_tokens' differ; send one.")
    in_range("max_completion_tokens", body.max_completion_tokens, 1, MOST_TOKENS)
    top_logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    request = GenerationRequest(
        model=body.model,
        messages=[_message(index, message) for index, message in enumerate(body.messages)],
        tools=tools_for_template(body.tools or []) if body.tool_choice != "none" else None,
        guide=guide_of(
            wanted_schema(body.response_format),
            body.tools,
            body.tool_choice,
            parallel=body.parallel_tool_calls is not False,
        ),
        max_tokens=next(iter(limits), None),
        sampling=_sampling(body, top_logprobs),
        stop=stop_strings("stop", body.stop),
        priority=_priority(body.trimtab, priority),
        user=user,
        ignore_eos=bool(body.trimtab and body.trimtab.ignore_eos),
    )
    return _wish(request, body)


def completion_wish(body: CompletionBody, user: int | None, priority: Priority) -> Wish:
    """What a completion request asks for; see `chat_wish`.

    Raises:
        RequestError: A field can't be honoured.
    """
    _check_common(body)
    unsupported("echo", body.echo, (None, False), "'echo' isn't supported.")
    unsupported("best_of", body.best_of, (None, 1), "'best_of' is 1 here.")
    unsupported("suffix", body.suffix, (None, ""), "'suffix' isn't supported.")
    in_range("logprobs", body.logprobs, 0, MAX_TOP_LOGPROBS_COMPLETION)
    top_logprobs = -1 if body.logprobs is None else body.logprobs
    request = GenerationRequest(
        model=body.model,
        text=_prompt(body.prompt),
        max_tokens=16 if body.max_tokens is None else body.max_tokens,
        sampling=_sampling(body, top_logprobs),
        stop=stop_strings("stop", body.stop),
        priority=_priority(body.trimtab, priority),
        user=user,
        ignore_eos=bool(body.trimtab and body.trimtab.ignore_eos),
    )
    return _wish(request, body)


def _wish(request: GenerationRequest, body: _Common) -> Wish:
    stream = bool(body.stream)
    if body.stream_options and not stream:
        raise refuse("stream_options", "'stream_options' needs 'stream' to be true.")
    usage = bool(body.stream_options and body.stream_options.include_usage)
    return Wish(request, request.model, stream, usage)


def _refuse_unsupported_chat(body: ChatBody) -> None:
    _check_common(body)
    for name in ("audio", "functions", "function_call", "prediction", "web_search_options"):
        unsupported(name, getattr(body, name), (None,), f"{name!r} isn't supported.")
    unsupported("modalities", body.modalities, (None, ["text"]), "Only text is supported.")


def _check_common(body: _Common) -> None:
    unsupported("n", body.n, (None, UNSET, 1), "'n' is 1 here: one answer a request.")
    in_range("max_tokens", body.max_tokens, 1, MOST_TOKENS)
    in_range("temperature", body.temperature, 0, 2)
    in_range("top_p", body.top_p, 0, 1)
    if body.top_p == 0:
        raise refuse("top_p", "'top_p' is 0; it is above 0. Use a temperature of 0 for greedy.")
    in_range("top_k", body.top_k, 0, 1_000_000)
    in_range("presence_penalty", body.presence_penalty, -2, 2)
    in_range("frequency_penalty", body.frequency_penalty, -2, 2)
    in_range("repetition_penalty", body.repetition_penalty, 0.1, 10)


def _sampling(body: _Common, top_logprobs: int) -> Sampling:
    seed = secrets.randbits(63) if body.seed is None else body.seed & _SEED_MASK
    return Sampling(
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=body.top_k or 0,
        seed=seed,
        seeded=body.seed is not None,
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=_bias(body.logit_bias or {}),
        top_logprobs=top_logprobs,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _bias(told: Mapping[str, float]) -> dict[int, float]:
    if len(told) > MAX_BIAS:
        raise refuse("logit_bias", f"'logit_bias' has over {MAX_BIAS} entries.")
    bias = {}
    for token, value in told.items():
        if not token.isascii() or not token.isdecimal() or len(token) > 9:
            raise refuse("logit_bias", f"'logit_bias' has {token[:32]!r} where a token id stands.")
        in_range(f"logit_bias.{token}", value, -100, 100)
        bias[int(token)] = value
    return bias


def stop_strings(param: str, told: str | list[str] | None) -> tuple[str, ...]:
    """Strings that end an answer.

    Raises:
        RequestError: There are too many, or one is empty or too long.
    """
    stop = (told,) if isinstance(told, str) else tuple(told or ())
    if len(stop) > MAX_STOP:
        raise refuse(param, f"{param!r} has {len(stop)} strings; at most {MAX_STOP} are taken.")
    if any(not text or len(text) > MAX_STOP_CHARACTERS for text in stop):
        raise refuse(param, f"A stop string has 1 to {MAX_STOP_CHARACTERS} characters.")
    return stop


def _prompt(told: str | list[Any]) -> str:
    if isinstance(told, str):
        return told
    if len(told) == 1 and isinstance(told[0], str):
        return told[0]
    if told and isinstance(told[0], str):
        raise refuse("prompt", "One prompt a request: send several requests instead of a list.")
    raise refuse("prompt", "'prompt' is text here, not token ids.", code="unsupported_parameter")


def _message(index: int, message: Message) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "role": _ROLES.get(message.role, message.role),
        "content": _text(f"messages[{index}].content", message.content),
    }
    if message.content is None and not message.tool_calls:
        raise refuse(f"messages[{index}].content", "A message without tool calls has content.")
    for name in ("name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            rendered[name] = value
    if message.tool_calls:
        where = f"messages[{index}].tool_calls"
        rendered["tool_calls"] = calls_for_template(where, message.tool_calls)
    return rendered


def _text(param: str, content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for number, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise refuse(
                f"{param}[{number}].type",
                f"Content of type {part.type[:32]!r} isn't supported; send text.",
                code="unsupported_parameter",
            )
    return "".join(part.text or "" for part in content)


def _priority(extras: Extras | None, allowed: Priority) -> Priority:
    """What the request asks for, bounded by what its user is allowed."""
    wish = extras.priority if extras else None
    return allowed if wish is None else wish.at_most(allowed)
