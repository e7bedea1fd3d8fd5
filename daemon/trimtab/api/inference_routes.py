"""OpenAI's routes."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trimtab.api.context import ApiContext
from trimtab.api.endpoint import Answer, Door, Endpoint, Handler
from trimtab.api.faults import OPENAI
from trimtab.api.generation import Dialect, Generation
from trimtab.api.openai_answers import ChatAnswer, CompletionAnswer
from trimtab.api.openai_bodies import ChatBody, CompletionBody, chat_wish, completion_wish
from trimtab.domain.models import ModelSpec
from trimtab.errors import RequestError


def inference_routes(context: ApiContext, door: Door) -> list[BaseRoute]:
    """``/v1/…``, for one socket."""
    chat = Generation(context, Dialect(ChatBody, chat_wish, ChatAnswer))
    completion = Generation(context, Dialect(CompletionBody, completion_wish, CompletionAnswer))
    models = Models(context)

    def route(path: str, handler: Handler, method: str) -> BaseRoute:
        endpoint = Endpoint(handler, OPENAI, door)
        return Route(path, endpoint, methods=[method])

    return [
        route("/v1/chat/completions", chat, "POST"),
        route("/v1/completions", completion, "POST"),
        route("/v1/models", models.list, "GET"),
        route("/v1/models/{model:path}", models.one, "GET"),
    ]


class Models:
    """The one model of this daemon.

    Args:
        context: The daemon.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def list(self, request: Request) -> Answer:
        """``GET /v1/models``."""
        model = self._context.inference.model()
        data = [self._described(model)] if model else []
        return _json({"object": "list", "data": data})

    async def one(self, request: Request) -> Answer:
        """``GET /v1/models/ID``."""
        wanted = request.path_params["model"]
        model = self._context.inference.model()
        if model is None or model.model_id != wanted:
            raise RequestError(
                f"There is no model {wanted[:64]!r} here.",
                param="model",
                status=404,
                code="model_not_found",
                hint=f"This daemon serves {model.model_id!r}." if model else "",
            )
        return _json(self._described(model))

    def _described(self, model: ModelSpec) -> dict[str, object]:
        return {
            "id": model.model_id,
            "object": "model",
            "created": int(self._context.started_s),
            "owned_by": "trimtab",
            "trimtab": {
                "name": model.display_name,
                "context": self._context.inference.effective_context(),
                "context_length": model.context_length,
                "variants": [variant.name for variant in model.variants],
            },
        }


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
