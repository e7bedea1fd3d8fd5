"""Errors as answers: OpenAI's shape for inference, RFC 9457 problems for control."""

from __future__ import annotations

import http
import math
from typing import Any, Final, Protocol

import msgspec
from starlette.responses import Response

from trimtab.api.protocol import Refusal
from trimtab.errors import (
    EngineError,
    NoModelError,
    PolicyError,
    RequestError,
    ServingError,
    TrimtabError,
    UsageError,
    WorkerError,
)

PROBLEM_TYPE: Final = "application/problem+json"
JSON_TYPE: Final = "application/json"
GET_A_MODEL: Final = "`trimtab models build smollm2-135m` makes one."


class FaultShape(Protocol):
    """How one side of the API writes its errors."""

    content_type: str

    def body(
        self, status: int, code: str, message: str, *, param: str = "", hint: str = ""
    ) -> dict[str, Any]:
        """The body of an error."""


class OpenAIShape:
    """What OpenAI's clients read."""

    content_type = JSON_TYPE

    def body(
        self, status: int, code: str, message: str, *, param: str = "", hint: str = ""
    ) -> dict[str, Any]:
        """``{"error": {"message", "type", "param", "code"}}``."""
        error = {
            "message": f"{message} ({hint})" if hint else message,
            "type": _openai_type(status),
            "param": param or None,
            "code": code,
        }
        return {"error": error}


class OllamaShape:
    """What Ollama's clients read."""

    content_type = JSON_TYPE

    def body(
        self, status: int, code: str, message: str, *, param: str = "", hint: str = ""
    ) -> dict[str, Any]:
        """``{"error": "…"}``, with the code and the field beside it."""
        body = {"error": f"{message} ({hint})" if hint else message, "code": code}
        return body | ({"param": param} if param else {})


class ProblemShape:
    """RFC 9457, with a stable code and the way out."""

    content_type = PROBLEM_TYPE

    def body(
        self, status: int, code: str, message: str, *, param: str = "", hint: str = ""
    ) -> dict[str, Any]:
        """``{"type", "title", "status", "detail", "code"}``, and ``hint`` and ``param``."""
        problem: dict[str, Any] = {
            "type": f"urn:trimtab:problem:{code}",
            "title": _phrase(status),
            "status": status,
            "detail": message,
            "code": code,
        }
        return problem | {key: text for key, text in (("param", param), ("hint", hint)) if text}


OPENAI: Final = OpenAIShape()
OLLAMA: Final = OllamaShape()
PROBLEM: Final = ProblemShape()


def fault_body(shape: FaultShape, error: TrimtabError) -> dict[str, Any]:
    """The body for an error, also as the last event of a stream."""
    param = error.param if isinstance(error, RequestError) else ""
    return shape.body(status_of(error), error.code, error.message, param=param, hint=hint_of(error))


def fault_response(shape: FaultShape, error: TrimtabError) -> Response:
    """The answer for an error."""
    headers = {}
    if isinstance(error, ServingError) and error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    status = status_of(error)
    if status == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers["connection"] = "close"
    return Response(
        msgspec.json.encode(fault_body(shape, error)),
        status,
        headers,
        media_type=shape.content_type,
    )


def status_of(error: TrimtabError) -> int:
    """The HTTP status of an error."""
    match error:
        case RequestError() | ServingError():
            return error.status
        case NoModelError():
            return http.HTTPStatus.SERVICE_UNAVAILABLE
        case PolicyError():
            return http.HTTPStatus.UNPROCESSABLE_ENTITY
        case UsageError():
            return http.HTTPStatus.BAD_REQUEST
        case EngineError() if error.code == RequestError.code:
            return http.HTTPStatus.BAD_REQUEST  # the engine knows the vocabulary, we don't
        case EngineError() | WorkerError():
            return http.HTTPStatus.BAD_GATEWAY
        case _:
            return http.HTTPStatus.INTERNAL_SERVER_ERROR


def hint_of(error: TrimtabError) -> str:
    """The way out; for a missing model the command that gets one, whoever raised it."""
    return error.hint or (GET_A_MODEL if error.code == NoModelError.code else "")


def refusal(shape: FaultShape, status: int, code: str, message: str) -> Refusal:
    """The same for what never reaches the application."""
    body = msgspec.json.encode(shape.body(status, code, message))
    return Refusal(status, shape.content_type, body)


def _openai_type(status: int) -> str:
    if status == http.HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    if status == http.HTTPStatus.UNAUTHORIZED:
        return "authentication_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"
