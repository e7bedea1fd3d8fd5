"""Waiting for a quiet, cool machine; and saying so when it isn't."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.domain.clock import Clock
from trimtab.domain.readings import Snapshot

LOOK_S: Final = 0.2
BUSY_RATIO: Final = 0.10
"""Share of all cores' time that others may take before a machine counts as busy."""
BUSY: Final = "busy"
HOT: Final = "hot"
_PAUSE_S: Final = 2.0
_IDLE_FIELDS: Final = (3, 4)  # idle and iowait


@dataclass(frozen=True, slots=True)
class CpuTime:
    """All cores' time since boot, in ticks."""

    busy: int
    total: int


def parse_cpu(text: str) -> CpuTime:
    """The first line of ``/proc/stat``.

    Raises:
        ValueError: It isn't there.
    """
    name, *fields = text.partition("\n")[0].split()
    if name != "cpu" or len(fields) < 8:
        raise ValueError("/proc/stat doesn't begin with a line for all cores")
    numbers = [int(field) for field in fields[:8]]
    total = sum(numbers)
    return CpuTime(total - sum(numbers[field] for field in _IDLE_FIELDS), total)


def busy_ratio(before: CpuTime, after: CpuTime) -> float:
    """Share of all cores' time that was worked between two looks."""
    total = after.total - before.total
    return (after.busy - before.busy) / total if total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a moment is like.

    Attributes:
        busy_ratio: Share of the cores that others use; None if it can't be known.
        celsius: The hottest zone; None without sensors.
        hot: Whether the board is too warm to be measured, or is being throttled.
    """

    busy_ratio: float | None
    celsius: float | None
    hot: bool

    @property
    def marks(self) -> tuple[str, ...]:
        """What makes a sample doubtful."""
        busy = self.busy_ratio is not None and self.busy_ratio > BUSY_RATIO
        return (*((BUSY,) if busy else ()), *((HOT,) if self.hot else ()))


class Quiet:
    """Looks at the machine between measurements, while none of our workers computes.

    Args:
        clock: Time.
        proc_root: Where ``/proc/stat`` is.
        look: A snapshot of the sensors.
        enter_celsius: From here on the board counts as hot.
        patience_s: How long to wait in all for better conditions.
        say: Told once for each wait.
    """

    def __init__(
        self,
        clock: Clock,
        proc_root: Path,
        look: Callable[[], Snapshot],
        enter_celsius: float,
        patience_s: float,
        say: Callable[[str], None],
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._clock = clock
        self._stat = proc_root / "stat"
        self._look = look
        self._enter = enter_celsius
        self._patience_s = patience_s
        self._say = say
        self._sleep = sleep or clock.sleep

    async def wait(self) -> Conditions:
        """Wait until the machine is quiet and cool, or patience has run out.

        Returns:
            The conditions at the end.
        """
        said = False
        while True:
            now = await self._conditions()
            if not now.marks or self._patience_s <= 0:
                return now
            if not said:
                self._say(_why(now))
                said = True
            pause_s = min(_PAUSE_S, self._patience_s)
            self._patience_s -= pause_s
            await self._sleep(pause_s)

    def celsius(self) -> float | None:
        """The hottest zone now; None without sensors."""
        return self._look().value("temperature.max")

    async def _conditions(self) -> Conditions:
        before = self._cpu()
        await self._sleep(LOOK_S)
        after = self._cpu()
        snapshot = self._look()
        celsius = snapshot.value("temperature.max")
        throttled = snapshot.value("cpu.throttled")
        hot = (celsius is not None and celsius >= self._enter) or bool(throttled)
        busy = busy_ratio(before, after) if before is not None and after is not None else None
        return Conditions(busy, celsius, hot)

    def _cpu(self) -> CpuTime | None:
        try:
            return parse_cpu(self._stat.read_text("ascii"))
        except (OSError, ValueError):
            return None


def _why(conditions: Conditions) -> str:
    reasons = []
    if BUSY in conditions.marks:
        reasons.append(f"others use {conditions.busy_ratio or 0:.0%} of the cores")
    if HOT in conditions.marks:
        warm = f"{conditions.celsius:.0f} °C" if conditions.celsius is not None else "throttled"
        reasons.append(f"the board is hot ({warm})")
    return f"waiting: {' and '.join(reasons)}"
