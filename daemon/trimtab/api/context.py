"""What the routes share."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from trimtab.api.peer import Peer
from trimtab.api.protocol import HttpProtocol
from trimtab.config.schema import ApiConfig
from trimtab.domain.clock import Clock
from trimtab.serving.control import Control
from trimtab.serving.requests import Inference, Priority
from trimtab.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The daemon, as the routes reach it.

    Attributes:
        inference: Takes requests.
        control: State and orders.
        metrics: Where requests are counted.
        clock: The daemon's clock.
        limits: Sizes and deadlines.
        priorities: The highest that a user's requests may have, by user id.
        started_s: Wall-clock time of the start, in seconds since the epoch.
    """

    inference: Inference
    control: Control
    metrics: Metrics
    clock: Clock
    limits: ApiConfig
    priorities: Mapping[int, Priority]
    started_s: float


def priorities_by_uid(users: Mapping[str, str]) -> dict[int, Priority]:
    """The configured priorities by numeric user id; unknown users have none."""
    known = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    return {known[name]: Priority(value) for name, value in users.items() if name in known}


def connection_of(request: Request) -> HttpProtocol:
    """The connection that a request came on."""
    connection: HttpProtocol = request.scope["state"]["connection"]
    return connection


def peer_of(request: Request) -> Peer | None:
    """Who sent it; None over TCP."""
    return connection_of(request).peer


def sender(request: Request) -> str:
    """Who sent it, for records."""
    peer = peer_of(request)
    return peer.describe() if peer else "a client over TCP"
