"""The tick loop: how often to look, and what a look sees.

A full snapshot is taken once a tick. Between ticks only the available memory is read, as often as
its fall demands: the interval is the time in which what is left above the headroom would be half
gone at the worst rate seen, from one tick down to 10 ms, and to 2 ms for the crossing itself. A
fall that hasn't been seen yet is reckoned with too: however fast memory goes, its crossing is seen
within some hundredths of a second. A fall that has just begun is looked at again at once, since the
rate over a long interval says little of how fast it is now.

On a gateway at rest each look costs more than it tells: caches are cold by then. So once all has
been calm for a while, full looks come twice a minute only, until something happens (`wake`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from trimtab.domain.clock import Clock
from trimtab.domain.readings import Reading, Snapshot
from trimtab.planner.calm import TREND_S

POLL_MIN_S: Final = 0.01
NEAR_S: Final = 0.002
"""Shortest time between two looks, where memory falls now and crosses within the usual shortest."""

WORST_RATE_HALF_LIFE_S: Final = 5.0
ASSUMED_BYTES_S: Final = 4 * 1024**3
"""How fast memory may begin to fall at any moment."""

SURPRISE_S: Final = 0.05
"""How much later than halfway to the limit a fall that is only assumed may be seen; at rest, how
much later than at the limit. An idle gateway is left in peace: with 2 GiB above the limit there are
two looks a second, near it up to twenty."""

SHORT_POLL_S: Final = 0.2
"""Time between two looks at memory while it is short; a crossing that repeats is told no sooner."""

SUDDEN_RATIO: Final = 1 / 16
"""A fall by so much of what was above the limit, between two looks, is a sudden one."""

CALM_AFTER_S: Final = 10.0
"""How long all must have been calm before full looks become rarer."""

CALM_TICK_S: Final = 30.0
"""Time between two full looks then."""

OVERSLEPT_S: Final = 5.0
"""By so much too late it looks again only if the whole service had stood still."""


class Sensors(Protocol):
    """What the loop needs of the sensor suite."""

    def snapshot(self, at_s: float, wall_s: float) -> Snapshot:
        """All readings."""

    def memory_available(self, at_s: float) -> Reading:
        """``memory.available`` alone, cheaply."""


class FillRate:
    """The worst rate at which memory was seen to fall, forgotten by half every five seconds.

    Attributes:
        worst_bytes_s: That rate.
        fallen_bytes: By how much memory fell between the last two readings.
        rate_bytes_s: How fast that was; below 0 if it rose.
    """

    def __init__(self) -> None:
        self.worst_bytes_s = 0.0
        self.fallen_bytes = 0.0
        self.rate_bytes_s = 0.0
        self._last: tuple[float, float] | None = None

    def update(self, at_s: float, available_bytes: float | None) -> None:
        """Take in a reading; a missing one holds what is known."""
        self.fallen_bytes = self.rate_bytes_s = 0.0
        if available_bytes is None:
            self._last = None
            return
        if self._last is not None and at_s > self._last[0]:
            elapsed_s = at_s - self._last[0]
            self.fallen_bytes = self._last[1] - available_bytes
            self.rate_bytes_s = self.fallen_bytes / elapsed_s
            faded = self.worst_bytes_s * 0.5 ** (elapsed_s / WORST_RATE_HALF_LIFE_S)
            self.worst_bytes_s = max(self.rate_bytes_s, faded, 0.0)
        self._last = (at_s, available_bytes)


def poll_interval_s(
    above_bytes: float, worst_bytes_s: float, full_s: float, *, resting: bool = False
) -> float:
    """Time to the next look.

    Args:
        above_bytes: Available memory above the limit.
        worst_bytes_s: The worst fall seen lately.
        full_s: The longest interval: the time between two full looks.
        resting: Whether it will do to see a fall that is only assumed when it has just crossed.
    """
    share = 1.0 if resting else 0.5
    interval_s = SURPRISE_S + above_bytes / ASSUMED_BYTES_S * share
    if worst_bytes_s > 0:
        left_s = above_bytes / worst_bytes_s
        # Halfway each time, and the last look where the limit should just have been crossed.
        interval_s = min(interval_s, left_s / 2 if left_s > 2 * POLL_MIN_S else left_s)
    return min(full_s, max(POLL_MIN_S, interval_s))


class TickLoop:
    """Calls ``on_tick`` once a tick, and at once when memory crosses the limit.

    Args:
        sensors: Read here and nowhere else.
        clock: Time.
        tick_s: Time between two full looks.
        limit_bytes: The memory limit in force; None if there is none.
        on_tick: Takes each full snapshot.
        calm: True if nothing is lost by looking later; asked after each full look.
        report: Told of a look that failed; the next one is taken all the same.

    Attributes:
        awake_s: Since when it has looked without a break. A service that is frozen, stopped or
            starved hears nothing, and its workers, which are so with it, say nothing: silence
            counts from its return.
    """

    def __init__(
        self,
        sensors: Sensors,
        clock: Clock,
        tick_s: float,
        limit_bytes: Callable[[], int | None],
        on_tick: Callable[[Snapshot], None],
        calm: Callable[[], bool],
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._sensors = sensors
        self._clock = clock
        self._tick_s = tick_s
        self._limit_bytes = limit_bytes
        self._on_tick = on_tick
        self._calm = calm
        self._report = report
        self._fill = FillRate()
        self._below = False
        self._told_bytes = 0.0
        self._available: float | None = None
        self._looked_s = float("-inf")
        self._meant_s = float("inf")  # when the present sleep is to end
        self.awake_s = float("-inf")
        self._busy_s = clock.monotonic_s()
        self._rest: asyncio.Future[bool] | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        crossed = False
        while True:
            now = self._clock.monotonic_s()
            try:
                if crossed or now >= self._looked_s + self._full_s(now):
                    self.tick(now)
            except Exception as error:  # the supervising loop: one bad look must not end it
                self._report("tick", error)
            crossed = await self._sleep()

    def wake(self) -> None:
        """Something happens: look at the usual pace from now on, and at once if that is due."""
        now = self._clock.monotonic_s()
        resting = self._full_s(now) > self._tick_s
        self._busy_s = now
        if resting and self._rest is not None:
            self._rest.cancel()

    def fresh(self) -> None:
        """Have readings no older than a tick, for somebody who looks at them."""
        now = self._clock.monotonic_s()
        if now >= self._looked_s + self._tick_s * 1.5:
            self.tick(now)
        self.wake()

    def tick(self, now: float) -> None:
        """One full look, now."""
        self._notice_break(now)
        self._looked_s = now
        snapshot = self._sensors.snapshot(now, self._clock.wall_s())
        available = snapshot.value("memory.available")
        self._fill.update(now, available)
        limit = self._limit_bytes()
        self._below = available is not None and limit is not None and available < limit
        self._available = available
        self._told_bytes = available or 0.0
        self._on_tick(snapshot)
        if not self._calm():
            self._busy_s = now

    def _notice_break(self, now: float) -> None:
        """Whoever looks first after one: a tick can come before the sleep goes on."""
        if now - self._meant_s > OVERSLEPT_S:
            self.awake_s = now

    def _full_s(self, now: float) -> float:
        """Time between two full looks, as things are."""
        calm = now - self._busy_s >= CALM_AFTER_S
        return max(CALM_TICK_S, self._tick_s) if calm else self._tick_s

    async def _sleep(self) -> bool:
        """Rest until the next full look, until memory crosses the limit, or until woken.

        Returns:
            Whether memory has crossed it.
        """
        self._rest = asyncio.ensure_future(self._rest_on())
        try:
            await asyncio.wait([self._rest])
            return not self._rest.cancelled() and self._rest.result()
        finally:
            self._rest.cancel()

    async def _rest_on(self) -> bool:
        """Sleep from one look at available memory to the next, while they tell nothing.

        As little as can be is touched meanwhile: what a gateway at rest hasn't used for seconds is
        slow to come by.
        """
        while True:
            now = self._clock.monotonic_s()
            full_s = self._full_s(now)
            due_s = self._looked_s + full_s
            pause_s = max(NEAR_S, min(self._interval_s(full_s), due_s - now))
            self._meant_s = now + pause_s
            await self._clock.sleep(pause_s)
            now = self._clock.monotonic_s()
            self._notice_break(now)
            if now >= due_s:
                return False
            try:
                if self._crossed(now):
                    return True
            except Exception as error:  # as in `run`: one bad look must not end it
                self._report("tick", error)

    def _crossed(self, now: float) -> bool:
        """True if available memory has fallen under the limit, or much further under it.

        One that trembles around the limit is told a few times a second, not at each poll.
        """
        limit = self._limit_bytes()
        if limit is None:
            return False
        reading = self._sensors.memory_available(now)
        value = reading.value if reading.usable else None
        self._fill.update(now, value)
        self._available = value
        if value is None:
            return False
        if value - limit < self._fill.worst_bytes_s * TREND_S:
            self._busy_s = now
        if value >= limit:
            self._below = self._below and now < self._looked_s + SHORT_POLL_S
            return False
        return not self._below or value < self._told_bytes * (1 - SUDDEN_RATIO)

    def _interval_s(self, full_s: float) -> float:
        """Time to the next look, full or not."""
        limit = self._limit_bytes()
        if limit is None or self._available is None:
            return full_s
        above = self._available - limit
        if 0 <= above < self._fill.fallen_bytes / SUDDEN_RATIO:
            # Where it should just have been crossed, or a little nearer to there.
            left_s = above / self._fill.rate_bytes_s
            return min(POLL_MIN_S, max(NEAR_S, left_s + NEAR_S / 2))
        if above < 0:
            return min(full_s, SHORT_POLL_S)
        resting = full_s > self._tick_s
        return poll_interval_s(above, self._fill.worst_bytes_s, full_s, resting=resting)
