"""The last operating point over a restart: what had held is tried again first, if it still fits.

A point counts once it has been in force for a while, so that one which brought the daemon down
isn't tried again. Heat is left out: pace and threads start fresh, since the device may have cooled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.domain.knobs import KvPlacement, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.errors import StateError
from trimtab.runtime.tasks import spawn
from trimtab.telemetry.state import read_state, write_state

FILE: Final = "last-point.json"
VERSION: Final = 1
HELD_S: Final = 10.0


class _Saved(msgspec.Struct, frozen=True):
    """A point, and of which model it is one."""

    model: str
    variant: str
    context: int
    speculation: str
    kv_placement: str


class LastPoint:
    """Keeps the operating point in the state directory.

    Args:
        state: The state directory.
        log: A structlog logger, for a file that can't be read or written.
        report: Told of what nobody foresaw.
    """

    def __init__(self, state: Path, log: Any, report: Callable[[str, BaseException], None]) -> None:
        self._path = state / FILE
        self._log = log
        self._report = report
        self._kept: _Saved | None = None
        self._candidate: _Saved | None = None
        self._since_s = 0.0
        self._writing: asyncio.Task[None] | None = None

    def seen(self, at_s: float, model: ModelSpec | None, point: OperatingPoint) -> None:
        """The point of a tick; it is written, off the loop, once it has held for a while."""
        now = _saved(model, point)
        if now is None or now == self._kept:
            self._candidate = None
        elif now != self._candidate:
            self._candidate, self._since_s = now, at_s
        elif at_s - self._since_s >= HELD_S and (self._writing is None or self._writing.done()):
            self._kept, self._candidate = now, None
            self._writing = spawn(self._write(now), "last_point", self._report)

    async def written(self) -> None:
        """Wait until what has held is on disk."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self, saved: _Saved) -> None:
        try:
            await asyncio.to_thread(write_state, self._path, saved, VERSION)
        except StateError as error:
            self._log.warning("point_not_kept", error=error.message, hint=error.hint)


def load_point(
    state: Path, model: ModelSpec | None, threads: int, log: Any
) -> OperatingPoint | None:
    """The last point of this model; None if there is none, or the variant is gone.

    Args:
        state: The state directory.
        model: What is served.
        threads: Engine threads that the configuration asks for now.
        log: Told of a file that can't be read; the start goes on without it.
    """
    try:
        saved = read_state(state / FILE, _Saved, VERSION)
        if saved is None or model is None or saved.model != model.model_id:
            return None
        placement = KvPlacement(saved.kv_placement)
    except (StateError, ValueError) as error:
        log.warning("last_point_not_used", error=str(error))
        return None
    if model.variant(saved.variant) is None:
        return None
    return OperatingPoint(
        variant=saved.variant,
        context=saved.context,
        threads=threads,
        speculation=saved.speculation,
        kv_placement=placement,
    )


def _saved(model: ModelSpec | None, point: OperatingPoint) -> _Saved | None:
    if model is None or point.variant is None:
        return None
    placement = str(point.kv_placement)
    return _Saved(model.model_id, point.variant, point.context, point.speculation, placement)
