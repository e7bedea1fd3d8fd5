"""The control routes: state for everybody who may connect, orders for the owner."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trimtab.api.bodies import decode, read_body, refuse
from trimtab.api.context import ApiContext, peer_of, sender
from trimtab.api.control_bodies import (
    PinBody,
    PolicyBody,
    PolicyTextBody,
    SignalBody,
    TrialBody,
    pin_of,
    signal_of,
    trial_of,
)
from trimtab.api.decision_events import DecisionEvents
from trimtab.api.endpoint import Answer, Door, Endpoint, Handler
from trimtab.api.faults import PROBLEM
from trimtab.api.recording_events import RecordingEvents
from trimtab.api.status_events import StatusEvents
from trimtab.errors import RequestError, TrimtabError
from trimtab.telemetry.log import get_logger
from trimtab.telemetry.metrics import CONTENT_TYPE

PREFIX: Final = "/trimtab/v1"
MAX_DECISIONS: Final = 1000
MIN_EVERY_S: Final = 0.1
MAX_EVERY_S: Final = 60.0
_SMALL_BODY_BYTES: Final = 64 * 1024
_POLICY_BODY_BYTES: Final = 512 * 1024

_log = get_logger("control")


def reading_routes(context: ApiContext, door: Door) -> list[BaseRoute]:
    """Routes that change nothing; they hold no text of anybody's."""
    views = Views(context)

    def route(path: str, handler: Handler) -> BaseRoute:
        return Route(path, Endpoint(handler, PROBLEM, door), methods=["GET"])

    return [
        route("/healthz", views.healthz),
        route("/readyz", views.readyz),
        route("/metrics", views.metrics),
        route(f"{PREFIX}/status", views.status),
        route(f"{PREFIX}/status/stream", views.status_stream),
        route(f"{PREFIX}/signals", views.signals),
        route(f"{PREFIX}/points", views.points),
        route(f"{PREFIX}/policy", views.policy),
        route(f"{PREFIX}/policy/values", views.policy_values),
        route(f"{PREFIX}/trial", views.trial),
        route(f"{PREFIX}/decisions", views.decisions),
        route(f"{PREFIX}/decisions/stream", views.decision_stream),
        route(f"{PREFIX}/decisions/{{number}}", views.decision),
    ]


def ordering_routes(context: ApiContext, door: Door) -> list[BaseRoute]:
    """Routes that change something; each leaves an audit line with the peer."""
    orders = Orders(context)

    def route(path: str, handler: Handler, method: str) -> BaseRoute:
        endpoint = Endpoint(audited(handler), PROBLEM, door)
        return Route(f"{PREFIX}{path}", endpoint, methods=[method])

    return [
        route("/pin", orders.pin, "PUT"),
        route("/pin", orders.unpin, "DELETE"),
        route("/pause", orders.pause, "POST"),
        route("/resume", orders.resume, "POST"),
        route("/policy", orders.use_policy, "PUT"),
        route("/policies", orders.policies, "GET"),
        route("/policies/{name}", orders.policy_values, "GET"),
        route("/policy/check", orders.check_policy, "POST"),
        route("/trial", orders.begin_trial, "PUT"),
        route("/trial", orders.end_trial, "DELETE"),
        route("/reload", orders.reload, "POST"),
        route("/recording", orders.recording, "GET"),
        route("/signals", orders.push_signal, "POST"),
    ]


def audited(handler: Handler) -> Handler:
    """The handler, with a line in the log that says who did what and how it went."""

    async def record(request: Request) -> Answer:
        peer = peer_of(request)
        who = {"uid": peer.uid, "pid": peer.pid} if peer else {"uid": None, "pid": None}
        action = f"{request.method} {request.url.path}"
        try:
            answer = await handler(request)
        except TrimtabError as error:
            _log.warning("control_refused", action=action, code=error.code, **who)
            raise
        _log.info("control_done", action=action, **who)
        return answer

    return record


class Views:
    """What can be seen.

    Args:
        context: The daemon.
    """

    def __init__(self, context: ApiContext) -> None:
        self._control = context.control
        self._context = context

    async def healthz(self, request: Request) -> Answer:
        """The loop runs: that is all it says."""
        return _json({"status": "ok"})

    async def readyz(self, request: Request) -> Answer:
        """Whether tokens can flow: 200, or 503 with the state and its reason."""
        status = self._control.status()
        body = {"ready": status.tokens_can_flow, "state": status.state, "reason": status.reason}
        return _json(body, 200 if status.tokens_can_flow else 503)

    async def metrics(self, request: Request) -> Answer:
        """Prometheus' text format."""
        return Response(self._context.metrics.exposition(), media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Answer:
        """Everything that `trimtab status` shows."""
        self._control.look()
        return _json(self._control.status())

    async def status_stream(self, request: Request) -> Answer:
        """The status as server-sent events, every second or as often as ``every`` says."""
        told = request.query_params.get("every", "1")
        try:
            every_s = float(told)
        except ValueError:
            every_s = math.nan
        if not MIN_EVERY_S <= every_s <= MAX_EVERY_S:
            raise refuse("every", f"'every' is from {MIN_EVERY_S:g} to {MAX_EVERY_S:g} seconds.")
        return StatusEvents(self._control, every_s)

    async def signals(self, request: Request) -> Answer:
        """The last snapshot."""
        self._control.look()
        return _json({"signals": self._control.signals()})

    async def points(self, request: Request) -> Answer:
        """Every operating point, with its prediction and why it is out or passed over."""
        self._control.look()
        return _json({"points": self._control.points()})

    async def policy(self, request: Request) -> Answer:
        """The policy in force."""
        return _json(self._control.status().policy)

    async def policy_values(self, request: Request) -> Answer:
        """The policy in force as it counts, each value with where it comes from."""
        return _json(self._control.policy_in_force())

    async def trial(self, request: Request) -> Answer:
        """The report of the last trial of a policy, or of the one that runs."""
        return _json({"trial": self._control.trial()})

    async def decisions(self, request: Request) -> Answer:
        """The newest records, oldest first."""
        limit = _number(request.query_params.get("limit", "20"), "limit", MAX_DECISIONS)
        return _json({"decisions": self._control.decisions(limit)})

    async def decision(self, request: Request) -> Answer:
        """One record."""
        number = _number(request.path_params["number"], "number", 2**53)
        found = self._control.decision(number)
        if found is None:
            raise RequestError(
                f"There is no decision {number}, or it is no longer in the journal.",
                param="number",
                status=404,
                code="no_such_decision",
            )
        return _json(found)

    async def decision_stream(self, request: Request) -> Answer:
        """Records as server-sent events, from now on or from ``Last-Event-ID`` on."""
        last = request.headers.get("last-event-id", "")
        since = int(last) if last.isascii() and last.isdecimal() and len(last) < 16 else None
        return DecisionEvents(self._control, self._context.limits.keep_alive_s, since)


class Orders:
    """What can be ordered.

    Args:
        context: The daemon.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._control = context.control

    async def pin(self, request: Request) -> Answer:
        """Fix knobs: ``{"knobs": {"variant": "int8"}, "for": "10m"}``."""
        body = decode(await read_body(request, _SMALL_BODY_BYTES), PinBody)
        knobs, for_s = pin_of(body)
        self._control.pin(knobs, for_s, sender(request))
        return _json({"pinned": knobs, "for_s": for_s})

    async def unpin(self, request: Request) -> Answer:
        """Take the pin off."""
        self._control.unpin(sender(request))
        return _json({"pinned": {}})

    async def pause(self, request: Request) -> Answer:
        """Stop all steps but those for memory safety."""
        self._control.pause(True, sender(request))
        return _json({"paused": True})

    async def resume(self, request: Request) -> Answer:
        """Start steps again."""
        self._control.pause(False, sender(request))
        return _json({"paused": False})

    async def reload(self, request: Request) -> Answer:
        """Read the policy folder again now."""
        return _json(await self._control.reload(sender(request)))

    async def push_signal(self, request: Request) -> Answer:
        """Take in a value of one's own (see `SignalBody`)."""
        body = decode(await read_body(request, _SMALL_BODY_BYTES), SignalBody)
        return _json(self._control.push_signal(signal_of(body), sender(request)))

    async def recording(self, request: Request) -> Answer:
        """What the core takes in and decides, as server-sent events, until the client leaves."""
        return RecordingEvents(self._control.recording(), self._context.limits.keep_alive_s)

    async def policies(self, request: Request) -> Answer:
        """Every policy that can be used, and what is wrong with those that can't."""
        return _json({"policies": await self._control.policies()})

    async def policy_values(self, request: Request) -> Answer:
        """A policy as it counts, each value with where it comes from."""
        return _json(await self._control.policy_values(request.path_params["name"]))

    async def check_policy(self, request: Request) -> Answer:
        """What is wrong with a policy, on this device; changes nothing."""
        body = decode(await read_body(request, _POLICY_BODY_BYTES), PolicyTextBody)
        return _json(await self._control.check_policy(body.text))

    async def begin_trial(self, request: Request) -> Answer:
        """Try a policy in shadow: ``{"text": "version: 1...", "for": "10m"}``."""
        body = decode(await read_body(request, _POLICY_BODY_BYTES), TrialBody)
        text, for_s = trial_of(body)
        return _json({"trial": await self._control.begin_trial(text, for_s, sender(request))})

    async def end_trial(self, request: Request) -> Answer:
        """Stop the trial; its report."""
        return _json({"trial": self._control.end_trial(sender(request))})

    async def use_policy(self, request: Request) -> Answer:
        """Put another policy in force, by its name: ``{"policy": "latency-first"}``."""
        body = decode(await read_body(request, _SMALL_BODY_BYTES), PolicyBody)
        return _json(await self._control.use_policy(body.policy, sender(request)))


def _json(body: Any, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(body),
        status,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def _number(text: str, param: str, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:20]) <= most:
        raise refuse(param, f"{param!r} is a whole number from 1 to {most}.")
    return int(text)
