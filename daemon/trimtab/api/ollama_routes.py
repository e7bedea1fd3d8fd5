"""Ollama's routes, for the many programs that know no other."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from trimtab import __version__
from trimtab.api.bodies import decode, read_body
from trimtab.api.context import ApiContext
from trimtab.api.endpoint import Answer, Door, Endpoint, Handler
from trimtab.api.faults import OLLAMA
from trimtab.api.generation import Dialect, Generation
from trimtab.api.ollama_answers import OllamaChatAnswer, OllamaGenerateAnswer
from trimtab.api.ollama_bodies import (
    OllamaChatBody,
    OllamaGenerateBody,
    bare_name,
    ollama_chat_wish,
    ollama_generate_wish,
)
from trimtab.domain.models import ModelSpec
from trimtab.errors import RequestError


def ollama_routes(context: ApiContext, door: Door) -> list[BaseRoute]:
    """``/api/…``, for one socket."""
    views = OllamaViews(context)
    chat = Generation(context, Dialect(OllamaChatBody, ollama_chat_wish, OllamaChatAnswer))
    generate = Generation(
        context, Dialect(OllamaGenerateBody, ollama_generate_wish, OllamaGenerateAnswer)
    )

    def route(path: str, handler: Handler, method: str) -> BaseRoute:
        endpoint = Endpoint(handler, OLLAMA, door)
        return Route(path, endpoint, methods=[method])

    return [
        route("/api/chat", chat, "POST"),
        route("/api/generate", generate, "POST"),
        route("/api/tags", views.tags, "GET"),
        route("/api/ps", views.running, "GET"),
        route("/api/show", views.show, "POST"),
        route("/api/version", views.version, "GET"),
        route("/", views.root, "GET"),
    ]


class ShowBody(msgspec.Struct, frozen=True):
    """Body of ``/api/show``."""

    model: str = ""
    name: str = ""


class OllamaViews:
    """What Ollama's clients ask about models.

    Args:
        context: The daemon.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def root(self, request: Request) -> Answer:
        """What tells clients that somebody is there."""
        return PlainTextResponse("trimtab is running")

    async def version(self, request: Request) -> Answer:
        """Our version."""
        return _json({"version": __version__})

    async def tags(self, request: Request) -> Answer:
        """The model, as the only one of a list."""
        model = self._context.inference.model()
        return _json({"models": [self._entry(model)] if model else []})

    async def running(self, request: Request) -> Answer:
        """The model, if it is loaded now."""
        model = self._context.inference.model()
        loaded = model and self._context.control.status().tokens_can_flow
        return _json({"models": [self._entry(model)] if model and loaded else []})

    async def show(self, request: Request) -> Answer:
        """Details of the model."""
        body = decode(await read_body(request, self._context.limits.max_body_bytes), ShowBody)
        wanted = bare_name(body.model or body.name)
        model = self._context.inference.model()
        if model is None or model.model_id != wanted:
            raise RequestError(f"model {wanted[:64]!r} not found", status=404)
        return _json(
            {
                "details": _details(model),
                "capabilities": ["completion", "tools"] if model.tool_format else ["completion"],
                "model_info": {
                    "general.architecture": model.architecture,
                    f"{model.architecture}.context_length": model.context_length,
                    "trimtab.context": self._context.inference.effective_context(),
                },
            }
        )

    def _entry(self, model: ModelSpec) -> dict[str, Any]:
        moment = datetime.datetime.fromtimestamp(self._context.started_s, datetime.UTC)
        return {
            "name": f"{model.model_id}:latest",
            "model": f"{model.model_id}:latest",
            "modified_at": moment.isoformat().replace("+00:00", "Z"),
            "size": sum(variant.disk_bytes for variant in model.variants),
            "digest": model.tokenizer_hash,
            "details": _details(model),
        }


def _details(model: ModelSpec) -> dict[str, Any]:
    return {
        "format": "onnx",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": "",
        "quantization_level": ", ".join(variant.name for variant in model.variants),
    }


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
