"""Watches the daemon from outside: its status and signals five times a second, its decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import httpx
import msgspec

from trimtab.api.client import PREFIX
from trimtab.bench.squeeze import Squeeze
from trimtab.demo.stage import Sample, Stage, Timeline, Told
from trimtab.errors import WorkerError
from trimtab.telemetry.explain import decision_of, headline
from trimtab.telemetry.words import clock_time

PERIOD_S: Final = 0.2
MISSES: Final = 25
"""So many looks in a row may fail before the daemon counts as gone."""


class Recorder:
    """Fills the stage.

    Args:
        client: On the daemon's inference socket, where status can be read too.
        streaming: The same without a time limit, for the stream of decisions.
        stage: Is filled.
        squeeze: What it holds is written down beside.
        time: Seconds since the demo began.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        streaming: httpx.AsyncClient,
        stage: Stage,
        squeeze: Squeeze,
        time: Timeline,
    ) -> None:
        self._client = client
        self._streaming = streaming
        self._stage = stage
        self._squeeze = squeeze
        self._time = time
        self._told: set[int] = set()

    async def look_on(self, on_look: Callable[[], None]) -> None:
        """Look until cancelled.

        Args:
            on_look: Called after each look.

        Raises:
            WorkerError: The daemon hasn't answered for seconds.
        """
        missed = 0
        while True:
            begun_s = self._time.now()
            try:
                await self._look()
                missed = 0
            except httpx.HTTPError as error:
                missed += 1
                if missed >= MISSES:
                    raise WorkerError(f"the daemon doesn't answer any more: {error!r}") from error
            on_look()
            await asyncio.sleep(max(0.01, begun_s + PERIOD_S - self._time.now()))

    async def follow_decisions(self) -> None:
        """Write decisions down as they are made, until cancelled."""
        async with self._streaming.stream("GET", f"{PREFIX}/decisions/stream") as answer:
            for record in await self._made_before():
                self._decided(record)
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    self._decided(msgspec.json.decode(line.removeprefix("data: ")))

    async def _made_before(self) -> list[dict[str, Any]]:
        answer = await self._client.get(f"{PREFIX}/decisions")
        records: list[dict[str, Any]] = msgspec.json.decode(answer.content)["decisions"]
        return records

    def _decided(self, record: dict[str, Any]) -> None:
        """A record comes again when its outcome is known; it is told once."""
        decision = decision_of(record)
        if decision.id in self._told:
            return
        self._told.add(decision.id)
        self._stage.told.append(
            Told(
                at_s=self._time.of(decision.at_s),
                direction=str(decision.direction),
                source=decision.source.variant,
                target=decision.target.variant,
                sentence=headline(decision),
                clock=clock_time(float(record.get("wall_s", 0.0))),
            )
        )

    async def _look(self) -> None:
        status = (await self._client.get(f"{PREFIX}/status")).raise_for_status()
        signals = (await self._client.get(f"{PREFIX}/signals")).raise_for_status()
        stage = self._stage
        stage.status = msgspec.json.decode(status.content)
        stage.now_s = self._time.now()
        point, target = stage.status["point"], stage.status["target"]
        coming = target["variant"] if target != point else None
        stage.look(
            Sample(
                at_s=stage.now_s,
                variant=point["variant"],
                coming=coming,
                available_bytes=_available(msgspec.json.decode(signals.content)),
                tokens_per_s=stage.rate_tps(stage.now_s),
                held=int(stage.status["held"]),
                squeeze_bytes=self._squeeze.held_bytes,
            )
        )


def _available(signals: dict[str, Any]) -> float | None:
    for signal in signals["signals"]:
        if signal["name"] == "memory.available":
            value = signal["value"]
            return None if value is None else float(value)
    return None
