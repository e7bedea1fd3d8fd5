"""What Ollama's clients send, and what becomes of it.

Options that only size or place Ollama's own engine (`num_ctx`, `num_gpu`, `keep_alive`, …) are
taken and left alone: a client's wish for another context never reloads anything here. Options that
change the text are honoured or refused by name.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from trimtab.api.bodies import MOST_TOKENS, in_range, plain_json, refuse, unsupported
from trimtab.api.guide_bodies import ANY_OBJECT
from trimtab.api.openai_bodies import stop_strings
from trimtab.api.openai_tools import (
    FunctionDefinition,
    ToolDefinition,
    WantedSchema,
    guide_of,
    tools_for_template,
)
from trimtab.api.wish import Wish
from trimtab.serving.requests import GenerationRequest, Priority
from trimtab.workers.protocol import Sampling

_SEED_MASK: Final = (1 << 64) - 1
_DEFAULT_TEMPERATURE: Final = 0.8
_DEFAULT_TOP_P: Final = 0.9
_DEFAULT_TOP_K: Final = 40
_DEFAULT_REPEAT_PENALTY: Final = 1.1
_DEFAULT_REPEAT_LAST_N: Final = 64
_CALL_ID: Final = "{:09d}"
_UNHONOURED: Final = ("min_p", "typical_p", "tfs_z", "mirostat", "mirostat_tau", "mirostat_eta")


class OllamaCalledFunction(msgspec.Struct, frozen=True):
    """A function with its arguments."""

    name: str
    arguments: dict[str, Any] = {}


class OllamaCall(msgspec.Struct, frozen=True):
    """A call that an earlier answer made."""

    function: OllamaCalledFunction


class OllamaFunction(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


class OllamaTool(msgspec.Struct, frozen=True):
    """A tool: a function."""

    function: OllamaFunction


class OllamaMessage(msgspec.Struct, frozen=True):
    """One chat message."""

    role: str
    content: str = ""
    images: list[Any] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None


class Options(msgspec.Struct, frozen=True):
    """Sampling options; all others are left alone."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    num_predict: int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    min_p: float = 0.0
    typical_p: float = 1.0
    tfs_z: float = 1.0
    mirostat: float = 0.0
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None


class _Common(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    stream: bool | None = None
    options: Options | None = None
    format: Any = UNSET
    think: Any = UNSET


class OllamaChatBody(_Common, frozen=True, kw_only=True):
    """Body of ``/api/chat``."""

    messages: list[OllamaMessage] = []
    tools: list[OllamaTool] | None = None


class OllamaGenerateBody(_Common, frozen=True, kw_only=True):
    """Body of ``/api/generate``."""

    prompt: str = ""
    system: str = ""
    raw: bool = False
    suffix: str = ""
    images: list[Any] | None = None
    template: str = ""
    context: Any = UNSET


def ollama_chat_wish(body: OllamaChatBody, user: int | None, priority: Priority) -> Wish:
    """What a chat request asks for.

    Raises:
        RequestError: A field can't be honoured.
    """
    if not body.messages:
        raise refuse("messages", "'messages' is empty; send at least one.")
    tools = [
        ToolDefinition(
            "function",
            FunctionDefinition(
                tool.function.name, tool.function.description, tool.function.parameters
            ),
        )
        for tool in body.tools or []
    ]
    return _wish(body, user, priority, messages=_messages(body.messages), tools=tools)


def ollama_generate_wish(body: OllamaGenerateBody, user: int | None, priority: Priority) -> Wish:
    """What a generate request asks for: the prompt as a chat turn, or as it is if it is raw.

    Raises:
        RequestError: A field can't be honoured.
    """
    unsupported("images", body.images, (None, []), "Images aren't supported.")
    unsupported("suffix", body.suffix, ("",), "'suffix' isn't supported.")
    unsupported("template", body.template, ("",), "The model's own template is used.")
    unsupported("context", body.context, (None, []), "Use /api/chat to go on with a conversation.")
    if not body.prompt:
        raise refuse("prompt", "'prompt' is empty.")
    if body.raw:
        return _wish(body, user, priority, text=body.prompt)
    system = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*system, {"role": "user", "content": body.prompt}]
    return _wish(body, user, priority, messages=messages)


def bare_name(model: str) -> str:
    """A model's id without the tag that Ollama's clients add."""
    return model.removesuffix(":latest")


def _wish(
    body: _Common,
    user: int | None,
    priority: Priority,
    *,
    messages: Sequence[dict[str, Any]] | None = None,
    text: str | None = None,
    tools: list[ToolDefinition] | None = None,
) -> Wish:
    unsupported("think", body.think, (None, False), "'think' isn't supported.")
    options = body.options or Options()
    request = GenerationRequest(
        model=bare_name(body.model),
        messages=messages,
        text=text,
        tools=tools_for_template(tools) if tools else None,
        guide=guide_of(_format(body.format), tools, None, parallel=True),
        max_tokens=_max_tokens(options.num_predict),
        sampling=_sampling(options),
        stop=stop_strings("options.stop", options.stop),
        priority=priority,
        user=user,
    )
    return Wish(request, body.model, stream=body.stream is not False)


def _max_tokens(num_predict: int | None) -> int | None:
    """Ollama: −1 and −2 mean as many as there is room for."""
    if num_predict is None or num_predict in (-1, -2):
        return None
    in_range("options.num_predict", num_predict, 1, MOST_TOKENS)
    return num_predict


def _sampling(options: Options) -> Sampling:
    neutral = Options()
    for name in _UNHONOURED:
        told = f"The option {name!r} isn't supported."
        unsupported(f"options.{name}", getattr(options, name), (getattr(neutral, name),), told)
    in_range("options.temperature", options.temperature, 0, 2)
    in_range("options.top_p", options.top_p, 0, 1)
    in_range("options.top_k", options.top_k, 0, 1_000_000)
    in_range("options.repeat_penalty", options.repeat_penalty, 0.1, 10)
    in_range("options.repeat_last_n", options.repeat_last_n, -1, 2**31)
    in_range("options.presence_penalty", options.presence_penalty, -2, 2)
    in_range("options.frequency_penalty", options.frequency_penalty, -2, 2)
    last_n = _DEFAULT_REPEAT_LAST_N if options.repeat_last_n is None else options.repeat_last_n
    penalty = _or(options.repeat_penalty, _DEFAULT_REPEAT_PENALTY)
    return Sampling(
        temperature=_or(options.temperature, _DEFAULT_TEMPERATURE),
        top_p=_or(options.top_p, _DEFAULT_TOP_P),
        top_k=_DEFAULT_TOP_K if options.top_k is None else options.top_k,
        seed=secrets.randbits(63) if options.seed is None else options.seed & _SEED_MASK,
        seeded=options.seed is not None,
        repetition_penalty=1.0 if last_n == 0 else penalty,
        repetition_window=max(0, last_n),
        presence_penalty=_or(options.presence_penalty, 0.0),
        frequency_penalty=_or(options.frequency_penalty, 0.0),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _format(told: Any) -> WantedSchema | None:
    """Ollama's ``format``: ``json``, or a schema."""
    if told is UNSET or told in (None, ""):
        return None
    if told == "json":
        return WantedSchema("format", ANY_OBJECT)
    if isinstance(told, dict):
        return WantedSchema("format", told)
    raise refuse("format", "'format' is \"json\" or a JSON schema.")


def _messages(messages: list[OllamaMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them.

    Ollama's calls have no ids, and some templates want them: calls are numbered, and answers of
    tools take the numbers in order.
    """
    shown = []
    calls, answers = itertools.count(1), itertools.count(1)
    for index, message in enumerate(messages):
        rendered = _message(index, message)
        for call in rendered.get("tool_calls", ()):
            call["id"] = _CALL_ID.format(next(calls))
        if message.role == "tool":
            rendered["tool_call_id"] = _CALL_ID.format(next(answers))
        shown.append(rendered)
    return shown


def _message(index: int, message: OllamaMessage) -> dict[str, Any]:
    unsupported(f"messages[{index}].images", message.images, (None, []), "Images aren't supported.")
    if message.role not in ("system", "user", "assistant", "tool"):
        raise refuse(f"messages[{index}].role", "A role is system, user, assistant or tool.")
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        calls: list[dict[str, Any]] = [
            {"type": "function", "function": msgspec.to_builtins(call.function)}
            for call in message.tool_calls
        ]
        plain_json(f"messages[{index}].tool_calls", calls)
        rendered["tool_calls"] = calls
    if message.tool_name:
        rendered["name"] = message.tool_name
    return rendered
