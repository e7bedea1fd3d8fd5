"""The ASGI application of a socket."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trimtab.api.faults import FaultShape, fault_response
from trimtab.errors import RequestError


def application(routes: Sequence[BaseRoute], shape: FaultShape) -> Starlette:
    """An application whose errors all have one shape, those of the router too.

    Args:
        routes: What it answers.
        shape: How errors are written.
    """

    async def not_routed(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = error.headers if isinstance(error, HTTPException) else None
        code, told = _ROUTER.get(status, ("http_error", "The request can't be answered: {path}"))
        message = told.format(method=request.method, path=request.url.path[:128])
        response = fault_response(shape, RequestError(message, status=status, code=code))
        response.headers.update(headers or {})
        return response

    async def openapi(request: Request) -> Response:
        from trimtab.api.openapi import document

        return Response(msgspec.json.encode(document(every)), media_type="application/json")

    every = [*routes, Route("/openapi.json", openapi, methods=["GET"])]
    return Starlette(routes=every, exception_handlers={HTTPException: not_routed})


_ROUTER = {
    404: ("not_found", "There is nothing at {path}."),
    405: ("method_not_allowed", "{path} doesn't take {method}."),
}
