"""The OpenAPI document of a socket, made from its routes and the types of what they take.

Imported when somebody asks for it: an idle controller doesn't hold it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.routing import BaseRoute, Route

from trimtab import __version__
from trimtab.api import openapi_answers as answers
from trimtab.api.control_bodies import (
    PinBody,
    PolicyBody,
    PolicyTextBody,
    SignalBody,
    TrialBody,
)
from trimtab.api.faults import PROBLEM_TYPE
from trimtab.api.ollama_bodies import OllamaChatBody, OllamaGenerateBody
from trimtab.api.ollama_routes import ShowBody
from trimtab.api.openai_bodies import ChatBody, CompletionBody
from trimtab.serving.control import PolicyView, SignalView, StatusView

EVENTS: Final = "text/event-stream"
JSON: Final = "application/json"
_REFERENCE: Final = "#/components/schemas/{name}"
_PREFIX: Final = "/trimtab/v1"

_Parameter = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """What the document says about one method of one path.

    Attributes:
        summary: One line.
        answer: Schema of the answer, or the type of it.
        media: Its media type, and those that it may have instead.
        body: Type of the request's body.
        error: Schema of errors.
        parameters: In path, query and head.
        also: Further statuses with an answer of the same shape.
    """

    summary: str
    answer: Any = None
    media: tuple[str, ...] = (JSON,)
    body: type | None = None
    error: Mapping[str, Any] = field(default_factory=lambda: answers.OPENAI_ERROR)
    parameters: tuple[_Parameter, ...] = ()
    also: tuple[int, ...] = ()


def _query(name: str, **schema: Any) -> _Parameter:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _control(summary: str, answer: Any, **more: Any) -> Operation:
    return Operation(summary, answer, error=answers.PROBLEM, **more)


def _ollama(summary: str, answer: Any, **more: Any) -> Operation:
    return Operation(summary, answer, error=answers.OLLAMA_ERROR, **more)


_LINES: Final = (JSON, "application/x-ndjson")

OPERATIONS: Final[dict[str, Operation]] = {
    "POST /v1/chat/completions": Operation(
        "Answer a chat, whole or as a stream.", answers.COMPLETION, (JSON, EVENTS), ChatBody
    ),
    "POST /v1/completions": Operation(
        "Continue a text, whole or as a stream.",
        answers.COMPLETION,
        (JSON, EVENTS),
        CompletionBody,
    ),
    "GET /v1/models": Operation("The model of this daemon, as a list.", answers.MODELS),
    "GET /v1/models/{model}": Operation(
        "One model.",
        answers.MODEL,
        parameters=(
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}},
        ),
    ),
    "POST /api/chat": _ollama(
        "Answer a chat, as Ollama does.", answers.OLLAMA_ANSWER, media=_LINES, body=OllamaChatBody
    ),
    "POST /api/generate": _ollama(
        "Answer a prompt, as Ollama does.",
        answers.OLLAMA_ANSWER,
        media=_LINES,
        body=OllamaGenerateBody,
    ),
    "GET /api/tags": _ollama("The model, as Ollama lists it.", answers.OLLAMA_MODELS),
    "GET /api/ps": _ollama("The model, if it is loaded.", answers.OLLAMA_MODELS),
    "POST /api/show": _ollama("Details of the model.", answers.OLLAMA_MODEL, body=ShowBody),
    "GET /api/version": _ollama("The version.", answers.VERSION),
    "GET /": _ollama("Tells that somebody is there.", {"type": "string"}, media=("text/plain",)),
    "GET /healthz": _control("The loop runs.", answers.HEALTH),
    "GET /readyz": _control("Whether tokens can flow.", answers.READY, also=(503,)),
    "GET /metrics": _control("Prometheus metrics.", {"type": "string"}, media=("text/plain",)),
    f"GET {_PREFIX}/status": _control("Everything that `trimtab status` shows.", StatusView),
    f"GET {_PREFIX}/status/stream": _control(
        "The status again and again.",
        {"type": "string"},
        media=(EVENTS,),
        parameters=(_query("every", type="number", minimum=0.1, maximum=60, default=1),),
    ),
    f"GET {_PREFIX}/signals": _control("The last snapshot.", answers.SIGNALS),
    f"GET {_PREFIX}/points": _control(
        "Operating points, and why each isn't in force.", answers.POINTS
    ),
    f"GET {_PREFIX}/policy": _control("The policy in force.", PolicyView),
    f"GET {_PREFIX}/policy/values": _control(
        "The policy in force as it counts, each value with its source.", answers.POLICY_VALUES
    ),
    f"GET {_PREFIX}/policies": _control(
        "Policies that can be used, and what is wrong with the others.", answers.POLICIES
    ),
    f"GET {_PREFIX}/policies/{{name}}": _control(
        "A policy as it counts, each value with its source.",
        answers.POLICY_VALUES,
        parameters=(
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}},
        ),
    ),
    f"POST {_PREFIX}/policy/check": _control(
        "What is wrong with a policy; changes nothing.", answers.PLAIN_OBJECT, body=PolicyTextBody
    ),
    f"GET {_PREFIX}/trial": _control("The report of a policy's trial.", answers.TRIAL),
    f"GET {_PREFIX}/decisions": _control(
        "The newest decisions.",
        answers.RECORDS,
        parameters=(_query("limit", type="integer", minimum=1, maximum=1000, default=20),),
    ),
    f"GET {_PREFIX}/decisions/stream": _control(
        "Decisions as they are made.",
        {"type": "string"},
        media=(EVENTS,),
        parameters=(
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "schema": {"type": "integer", "minimum": 0},
            },
        ),
    ),
    f"GET {_PREFIX}/decisions/{{number}}": _control(
        "One decision.",
        answers.RECORD,
        parameters=(
            {
                "name": "number",
                "in": "path",
                "required": True,
                "schema": {"type": "integer", "minimum": 1},
            },
        ),
    ),
    f"PUT {_PREFIX}/pin": _control("Fix knobs for a while.", answers.PINNED, body=PinBody),
    f"DELETE {_PREFIX}/pin": _control("Take the pin off.", answers.PINNED),
    f"POST {_PREFIX}/pause": _control("Stop steps.", answers.PAUSED),
    f"POST {_PREFIX}/resume": _control("Start steps again.", answers.PAUSED),
    f"PUT {_PREFIX}/policy": _control("Use another policy.", PolicyView, body=PolicyBody),
    f"PUT {_PREFIX}/trial": _control("Try a policy in shadow.", answers.TRIAL, body=TrialBody),
    f"DELETE {_PREFIX}/trial": _control("End the trial.", answers.TRIAL),
    f"POST {_PREFIX}/reload": _control("Read the policy folder again.", PolicyView),
    f"GET {_PREFIX}/recording": _control(
        "What the core takes in and decides.", {"type": "string"}, media=(EVENTS,)
    ),
    f"POST {_PREFIX}/signals": _control("Push a signal.", SignalView, body=SignalBody),
    "GET /openapi.json": Operation("This document.", answers.PLAIN_OBJECT),
}

_TYPES: Final = (StatusView, SignalView, PolicyView)


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document of an application.

    Args:
        routes: What it answers; one that `OPERATIONS` doesn't know is named, and no more.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route):
            path = re.sub(r":path\}", "}", route.path)
            for method in sorted((route.methods or set()) - {"HEAD"}):
                operation = OPERATIONS.get(f"{method} {path}") or Operation(path, {})
                paths.setdefault(path, {})[method.lower()] = _described(operation)
    bodies = [one.body for one in OPERATIONS.values() if one.body]
    _, components = msgspec.json.schema_components([*bodies, *_TYPES], ref_template=_REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "trimtab", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _described(operation: Operation) -> dict[str, Any]:
    answer = {"description": "Done.", "content": _content(operation.answer, operation.media)}
    error_media = PROBLEM_TYPE if operation.error is answers.PROBLEM else JSON
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": answer,
            **{str(status): answer for status in operation.also},
            "default": {
                "description": "Refused, with the reason.",
                "content": {error_media: {"schema": operation.error}},
            },
        },
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body:
        described["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": _schema(operation.body)}},
        }
    return described


def _content(answer: Any, media: tuple[str, ...]) -> dict[str, Any]:
    first, *others = media
    return {
        first: {"schema": _schema(answer)},
        **{other: {"schema": {"type": "string"}} for other in others},
    }


def _schema(answer: Any) -> Any:
    if isinstance(answer, type):
        return {"$ref": _REFERENCE.format(name=answer.__name__)}
    return answer
