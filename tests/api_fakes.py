"""A daemon with everything real but the engine: the API is served on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from trimtab.api.service import ApiService
from trimtab.config.schema import Config
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.errors import PolicyError, RequestError, TrimtabError
from trimtab.serving.control import PointView, PolicyView, SignalView, StatusView, WorkerView
from trimtab.serving.requests import (
    Delta,
    Disclosure,
    Ended,
    FinishReason,
    GenerationRequest,
    Usage,
)
from trimtab.telemetry.metrics import Metrics
from trimtab.workers.protocol import Logprob

DISCLOSURE = Disclosure("int8", 2048, "abc123def456", 0, ("int8",))


def a_model(model_id: str = "tiny") -> ModelSpec:
    variants = tuple(
        VariantSpec(name, name, f"/models/{model_id}/{name}", 1000, 1000, 64, 1.0, "f", 2048)
        for name in ("fp32", "int8")
    )
    return ModelSpec(model_id, "Tiny", "llama", 2048, 2, 2, 16, "hash", True, variants)


class FakeHandle:
    """A stream whose events the test feeds."""

    def __init__(self, number: int, events: Sequence[Any], hold: bool) -> None:
        self.id = number
        self.prompt_tokens = 7
        self.disclosure = DISCLOSURE
        self.variant = DISCLOSURE.variant
        self.cancelled = asyncio.Event()
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        for event in events:
            self.queue.put_nowait(event)
        if not hold and not any(isinstance(event, (Ended, TrimtabError)) for event in events):
            self.queue.put_nowait(Ended(FinishReason.STOP, Usage(7, len(events))))

    async def next(self, timeout_s: float) -> Delta | Ended | None:
        try:
            came = await asyncio.wait_for(self.queue.get(), timeout_s)
        except TimeoutError:
            return None
        if isinstance(came, BaseException):
            raise came
        result: Delta | Ended = came
        return result

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass
class FakeInference:
    """Takes requests and answers each with the same events.

    Attributes:
        events: Deltas, an `Ended`, an exception.
        hold: Leave streams open after their events.
        refuse: Raised by `submit`.
        slow: `submit` waits for this.
    """

    events: list[Any] = field(default_factory=lambda: deltas("Hello", " wörld", "!"))
    hold: bool = False
    refuse: TrimtabError | None = None
    slow: asyncio.Event | None = None
    served: ModelSpec | None = field(default_factory=a_model)
    requests: list[GenerationRequest] = field(default_factory=list)
    handles: list[FakeHandle] = field(default_factory=list)

    def model(self) -> ModelSpec | None:
        return self.served

    def effective_context(self) -> int:
        return 2048

    async def submit(self, request: GenerationRequest) -> FakeHandle:
        self.requests.append(request)
        if self.slow:
            await self.slow.wait()
        if self.refuse:
            raise self.refuse
        if self.served is None or request.model != self.served.model_id:
            raise RequestError(
                f"there is no model {request.model!r}",
                param="model",
                status=404,
                code="model_not_found",
            )
        handle = FakeHandle(len(self.handles) + 1, self.events, self.hold)
        self.handles.append(handle)
        return handle


def deltas(*texts: str) -> list[Any]:
    return [Delta(text, (number,)) for number, text in enumerate(texts)]


def with_logprobs(*texts: str) -> list[Any]:
    return [
        Delta(text, (number,), (Logprob(-0.5, text, [(number, text, -0.5), (99, "x", -1.5)]),))
        for number, text in enumerate(texts)
    ]


POINT = PointView("int8", 2048, 1, "off", "memory", 1.0)

STATUS = StatusView(
    version="0.1.0",
    pid=4242,
    uptime_s=61.5,
    state="ready",
    reason="",
    tokens_can_flow=True,
    model="tiny",
    variants=["fp32", "int8"],
    point=POINT,
    target=POINT,
    policy=PolicyView("balanced", "abc123def456", "In the middle", "/p/balanced.yaml", False, ""),
    workers=[WorkerView("int8", "ready", 77, 1, "kv", "", 123_000_000, 0.4, 1)],
    running=1,
    waiting_turn=0,
    queued=0,
    held=0,
    tokens_total=12,
    requests_total=3,
    shed_total=0,
    tokens_per_s=41.5,
    switches_total=2,
    restarts_total=0,
    pinned={},
    pin_expires_in_s=None,
    paused=False,
    last_decision=None,
)


def a_record(number: int, **changes: Any) -> dict[str, Any]:
    point = {"variant": "int8", "context": 2048, "threads": 1, "speculation": "off"}
    record = {
        "id": number,
        "wall_s": 1_764_000_000.0 + number,
        "at_s": float(number),
        "direction": "down",
        "trigger": {
            "signal": "memory.available",
            "value": 480 * 2**20,
            "threshold": 512 * 2**20,
            "for_s": 0.0,
            "text": "",
        },
        "source": point | {"kv_placement": "memory", "pace_ratio": 1.0},
        "target": point | {"variant": "int4", "kv_placement": "memory", "pace_ratio": 1.0},
        "predicted": None,
        "runner_up": None,
        "excluded": [],
        "policy": "balanced",
        "revision": "abc123def456",
        "outcome": None,
    }
    return record | changes


def a_point(variant: str, *, in_force: bool = False, reason: str = "") -> dict[str, Any]:
    return {
        "point": {"variant": variant, "context": 2048},
        "predicted": {"memory_bytes": 123_000_000, "decode_tps": 41.5, "quality_ratio": 0.99},
        "in_force": in_force,
        "reason": reason,
        "passed_over": "",
    }


class FakeControl:
    """State that tests set, and the orders that came."""

    def __init__(self) -> None:
        self.now = STATUS
        self.snapshot = [
            SignalView("memory.available", 5e8, "bytes", "good", "", 0.2),
            SignalView("temperature.max", None, "celsius", "absent", "no zone", 0.2),
        ]
        self.records = [a_record(number) for number in range(1, 4)]
        self.values: list[dict[str, Any]] = []
        self.orders: list[tuple[Any, ...]] = []
        self.refuse: TrimtabError | None = None
        self.live: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def look(self) -> None:
        """Fixed readings are always fresh."""

    def status(self) -> StatusView:
        return self.now

    def signals(self) -> list[SignalView]:
        return self.snapshot

    def points(self) -> list[dict[str, Any]]:
        return [a_point("int8", in_force=True), a_point("fp32", reason="needs 90 MiB more memory")]

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        return self.records[-limit:]

    def decision(self, number: int) -> dict[str, Any] | None:
        return next((record for record in self.records if record["id"] == number), None)

    async def decision_stream(self) -> AsyncIterator[dict[str, Any]]:
        while (record := await self.live.get()) is not None:
            yield record

    def pin(self, knobs: dict[str, str | int | float], for_s: float | None, by: str) -> None:
        self._order("pin", knobs, for_s, by)

    def unpin(self, by: str) -> None:
        self._order("unpin", by)

    def pause(self, paused: bool, by: str) -> None:
        self._order("pause", paused, by)

    async def policies(self) -> list[dict[str, Any]]:
        return [{"name": "balanced", "problems": []}]

    async def policy_values(self, name: str) -> dict[str, Any]:
        if name != "balanced":
            raise PolicyError(f"there is no policy {name!r}")
        return {"name": name, "revision": self.now.policy.revision, "values": []}

    def policy_in_force(self) -> dict[str, Any]:
        view = self.now.policy
        return {"name": view.name, "revision": view.revision, "values": self.values}

    async def check_policy(self, text: str) -> dict[str, Any]:
        return {"sound": text.startswith("version"), "problems": []}

    async def use_policy(self, name: str, by: str) -> PolicyView:
        self._order("use_policy", name, by)
        return replace_policy(self.now.policy, name=name)

    async def begin_trial(self, text: str, for_s: float, by: str) -> dict[str, Any]:
        self._order("begin_trial", text, for_s, by)
        return a_trial(running=True)

    def end_trial(self, by: str) -> dict[str, Any] | None:
        self._order("end_trial", by)
        return a_trial(running=False)

    def trial(self) -> dict[str, Any] | None:
        return None

    async def reload(self, by: str) -> PolicyView:
        self._order("reload", by)
        return replace_policy(self.now.policy, revision="new")

    def _order(self, *order: Any) -> None:
        if self.refuse:
            raise self.refuse
        self.orders.append(order)


def a_trial(*, running: bool) -> dict[str, Any]:
    """A trial's report."""
    side = {
        "quality_ratio": 0.99,
        "decode_tps": 21.0,
        "parked_s": 0.0,
        "below_headroom_s": 12.0,
        "least_available_bytes": 400 * 2**20,
        "switches": 2,
        "decisions": 5,
    }
    span = {
        "from_s": 10.0,
        "to_s": 130.0,
        "in_force": "int8, 4096 tokens",
        "candidate": "int4, 4096 tokens",
        "why": "300 MiB of memory are available",
    }
    return {
        "policy": "mine",
        "revision": "abc123def456",
        "running": running,
        "compared_s": 600.0,
        "apart_s": 120.0,
        "in_force": side,
        "candidate": {**side, "quality_ratio": None},
        "spans": [span],
    }


def replace_policy(policy: PolicyView, **changes: Any) -> PolicyView:
    fields = {name: getattr(policy, name) for name in policy.__struct_fields__}
    return PolicyView(**(fields | changes))


def disclosed(**changes: Any) -> Disclosure:
    return replace(DISCLOSURE, **changes)


@dataclass
class Gateway:
    """A serving API and what is behind it."""

    config: Config
    inference: FakeInference
    control: FakeControl
    metrics: Metrics
    service: ApiService

    @property
    def inference_socket(self) -> Path:
        return self.config.sockets.inference

    @property
    def control_socket(self) -> Path:
        return self.config.sockets.control

    def client(self, socket: Path | None = None) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(socket or self.inference_socket))
        return httpx.AsyncClient(transport=transport, base_url="http://trimtab", timeout=20)

    def counted(self, line: str) -> float:
        """The value of a metric's line, by how it begins; 0 if it isn't there."""
        for text in self.metrics.exposition().decode().splitlines():
            if text.startswith(line):
                return float(text.rsplit(" ", 1)[1])
        return 0.0


def a_config(folder: Path, users: Mapping[str, str] | None = None, **api: Any) -> Config:
    return Config.model_validate(
        {
            "models": [str(folder / "models")],
            "policies": str(folder / "policies"),
            "state": str(folder / "state"),
            "cache": str(folder / "cache"),
            "sockets": {
                "folder": str(folder / "run"),
                "inference": str(folder / "run" / "inference.sock"),
                "control": str(folder / "run" / "control.sock"),
            },
            "api": api,
            "users": users or {},
        }
    )
