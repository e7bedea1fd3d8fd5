"""What was written to disk today, over a restart: flash doesn't forget it either.

What is kept are ages, not dates. Within one boot they go on by the monotonic clock; over a boot by
the wall clock, and one that has jumped backwards adds nothing to them: what was written neither
becomes free by it nor counts for longer than a day of running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from trimtab.domain.clock import Clock
from trimtab.errors import StateError
from trimtab.runtime.tasks import spawn
from trimtab.serving.write_budget import DAY_S, WriteBudget, Written
from trimtab.telemetry.state import read_state, write_state

FILE: Final = "kv-writes.json"
VERSION: Final = 1
EVERY_S: Final = 60.0
"""What has changed waits so long at most to be kept."""

CLOCK_SET_S: Final = 60.0
"""A wall clock that was set by more than this is kept at once: the next boot goes by it."""

SOON_RATIO: Final = 1 / 64
"""At once if so much of the budget has been spent since."""

AGE_EVERY_S: Final = 3600.0
"""How long ago writes were is kept so often, for a system whose clock begins anew at each boot."""

_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_Bytes = Annotated[int, msgspec.Meta(ge=0)]


class _Write(msgspec.Struct, frozen=True):
    """So much was written, so long before the file was."""

    age_s: _NotNegative
    size_bytes: _Bytes


class _Saved(msgspec.Struct, frozen=True):
    """What was written within a day.

    Attributes:
        boot: Of the system; empty if it isn't known.
        at_s: When this was saved, by the monotonic clock of that boot.
        wall_s: The same in seconds since the epoch.
        writes: Oldest first.
    """

    boot: str
    at_s: float
    wall_s: float
    writes: list[_Write]


class KeptWrites:
    """Keeps what was written in the state directory.

    Args:
        state: The state directory.
        budget: Where writes are counted.
        clock: Time.
        boot: Of the system (`boot_of`).
        log: A structlog logger, for a file that can't be read or written.
        report: Told of what nobody foresaw.
    """

    def __init__(
        self,
        state: Path,
        budget: WriteBudget,
        clock: Clock,
        boot: str,
        log: Any,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._path = state / FILE
        self._budget = budget
        self._clock = clock
        self._boot = boot
        self._log = log
        self._report = report
        self._kept_bytes = 0
        self._kept_s = float("-inf")
        self._kept_boot_s = 0.0  # when this boot was, by the wall clock of then
        self._error = ""
        self._writing: asyncio.Task[None] | None = None

    def restore(self) -> None:
        """Count what an earlier controller wrote; without its file nothing is known of that."""
        try:
            saved = read_state(self._path, _Saved, VERSION)
        except StateError as error:
            self._log.warning("kv_writes_not_known", error=error.message, hint=error.hint)
            return
        if saved is not None:
            now = self._clock.monotonic_s()
            self._budget.restore(self._aged(saved, now), now)

    def seen(self, at_s: float) -> None:
        """Called on each tick: what has changed is written, off the loop, and seldom."""
        if (self._writing is None or self._writing.done()) and self._is_due(at_s):
            self._writing = spawn(self._keep(at_s), "kept_writes", self._report)

    async def written(self) -> None:
        """Wait until what was due is on disk."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Write what counts now, if anything does or did."""
        await self.written()
        if self._budget.spent_bytes or self._budget.counted_bytes != self._kept_bytes:
            await self._keep(self._clock.monotonic_s())

    def _is_due(self, at_s: float) -> bool:
        budget, since_s = self._budget, at_s - self._kept_s
        change = abs(budget.counted_bytes - self._kept_bytes)
        if change and (change >= budget.limit_bytes * SOON_RATIO or since_s >= EVERY_S):
            return True
        was_set = abs(self._clock.wall_s() - at_s - self._kept_boot_s) > CLOCK_SET_S
        return budget.spent_bytes > 0 and (was_set or since_s >= AGE_EVERY_S)

    async def _keep(self, at_s: float) -> None:
        # Tried is as good as kept: a disk that fails isn't tried again at once.
        self._kept_bytes, self._kept_s = self._budget.counted_bytes, at_s
        wall_s = self._clock.wall_s()
        self._kept_boot_s = wall_s - at_s
        writes = [_Write(*one) for one in self._budget.by_hour(at_s)]
        saved = _Saved(self._boot, at_s, wall_s, writes)
        error = ""
        try:
            await asyncio.to_thread(write_state, self._path, saved, VERSION)
        except StateError as failed:
            error = failed.message
            if error != self._error:
                self._log.warning("kv_writes_not_kept", error=error, hint=failed.hint)
        self._error = error

    def _aged(self, saved: _Saved, now_s: float) -> list[Written]:
        same = bool(self._boot) and saved.boot == self._boot
        passed_s = now_s - saved.at_s if same else self._clock.wall_s() - saved.wall_s
        passed_s = max(0.0, passed_s)
        aged = [Written(one.age_s + passed_s, one.size_bytes) for one in saved.writes]
        return [one for one in aged if one.age_s <= DAY_S]


def boot_of(proc_root: Path) -> str:
    """The id of the system's boot; empty if it can't be read."""
    try:
        return (proc_root / "sys/kernel/random/boot_id").read_text(errors="replace").strip()
    except OSError:
        return ""
