"""How often the loop looks, and what makes it look at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.domain.readings import Quality, Reading, Snapshot
from trimtab.runtime.ticks import (
    NEAR_S,
    OVERSLEPT_S,
    POLL_MIN_S,
    FillRate,
    TickLoop,
    poll_interval_s,
)

MIB = 1024 * 1024
LIMIT = 500 * MIB


class OverError(Exception):
    """The time of the test is over."""


class SteppingClock:
    """Time that passes when the loop sleeps; ends the loop after a while.

    Attributes:
        events: What happens at which time while the loop sleeps.
    """

    def __init__(self, until_s: float) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        self.events: list[tuple[float, Callable[[], None]]] = []
        self._until_s = until_s

    def monotonic_s(self) -> float:
        return self.now

    def wall_s(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        until_s = self.now + seconds
        while self.events and self.events[0][0] <= until_s:
            self.now, happen = self.events.pop(0)
            happen()
            await asyncio.sleep(0)  # where a loop that was woken goes on
        self.now = until_s
        if self.now > self._until_s:
            raise OverError
        await asyncio.sleep(0)


class FallingMemory:
    """Memory that falls from a moment on."""

    def __init__(self, clock: SteppingClock, from_s: float, rate_bytes_s: float) -> None:
        self._clock = clock
        self._from_s = from_s
        self._rate = rate_bytes_s
        self.broken = False

    def memory_available(self, at_s: float) -> Reading:
        if self.broken:
            return Reading("memory.available", None, at_s, Quality.FAILED)
        fallen = max(0.0, at_s - self._from_s) * self._rate
        return Reading("memory.available", max(100 * MIB, 2000 * MIB - fallen), at_s)

    def snapshot(self, at_s: float, wall_s: float) -> Snapshot:
        return Snapshot(at_s, {"memory.available": self.memory_available(at_s)}, wall_s)


def never() -> bool:
    return False


def always() -> bool:
    return True


async def looks(
    rate_bytes_s: float,
    until_s: float,
    calm: Callable[[], bool] = never,
    wake_s: float | None = None,
    from_s: float = 3.0,
) -> tuple[list[Snapshot], SteppingClock]:
    """Every full look of a loop over falling memory."""
    clock = SteppingClock(until_s)
    seen: list[Snapshot] = []
    memory = FallingMemory(clock, from_s, rate_bytes_s)
    loop = TickLoop(memory, clock, 1.0, lambda: LIMIT, seen.append, calm, lambda *_: None)
    if wake_s is not None:
        clock.events.append((wake_s, loop.wake))
    with pytest.raises(OverError):
        await loop.run()
    return seen, clock


class FrozenClock(SteppingClock):
    """A clock of a service that stands still for a while as it sleeps."""

    def __init__(self, until_s: float, from_s: float, frozen_s: float) -> None:
        super().__init__(until_s)
        self._from_s = from_s
        self._frozen_s = frozen_s

    async def sleep(self, seconds: float) -> None:
        if self._frozen_s and self.now + seconds > self._from_s:
            self.now += self._frozen_s
            self._frozen_s = 0.0
        await super().sleep(seconds)


@pytest.mark.parametrize(
    ("frozen_s", "from_s"), [(40.0, 5.0), (6.0, 5.0), (2.0, 5.0), (40.0, 30.0)]
)
async def test_a_service_that_stood_still_knows_since_when_it_looks_again(
    frozen_s: float, from_s: float
) -> None:
    clock = FrozenClock(100.0, from_s, frozen_s)
    memory = FallingMemory(clock, 0.0, 0.0)
    awake: list[float] = []
    loop = TickLoop(
        memory,
        clock,
        1.0,
        lambda: LIMIT,
        lambda _: awake.append(loop.awake_s),
        always,
        lambda *_: None,
    )
    with pytest.raises(OverError):
        await loop.run()

    if frozen_s < OVERSLEPT_S:
        assert set(awake) == {float("-inf")}
    else:
        assert awake[0] == float("-inf")
        assert from_s + frozen_s - 1 < awake[-1] < from_s + frozen_s + 1


async def test_a_look_that_comes_before_the_loop_goes_on_knows_it_too() -> None:
    clock = FrozenClock(100.0, 5.0, 40.0)
    seen: list[tuple[float, float]] = []
    loop = TickLoop(
        FallingMemory(clock, 0.0, 0.0),
        clock,
        1.0,
        lambda: LIMIT,
        lambda _: seen.append((clock.now, loop.awake_s)),
        never,
        lambda *_: None,
    )
    clock.events.append((45.0, loop.fresh))  # somebody asks for the status
    with pytest.raises(OverError):
        await loop.run()

    assert seen[-1][0] > 60
    assert all(45 <= awake_s < 46 for at_s, awake_s in seen if at_s >= 45.0)


async def test_what_has_been_calm_for_a_while_is_looked_at_twice_a_minute() -> None:
    seen, clock = await looks(0.0, 130.0, always)

    assert [round(one.at_s) for one in seen] == [*range(10), 39, 69, 99, 129]
    assert sum(clock.sleeps[-200:]) / 200 == pytest.approx(1500 / 4096 + 0.05, abs=0.02)


async def test_whatever_happens_is_looked_at_at_once_and_at_the_usual_pace_from_then_on() -> None:
    seen, _ = await looks(0.0, 60.0, always, wake_s=32.5)
    times = [one.at_s for one in seen if 30.5 < one.at_s < 42.0]

    assert times == pytest.approx([32.5 + second for second in range(10)], abs=0.05)


async def test_memory_that_begins_to_fall_while_all_is_calm_is_watched_at_the_usual_pace() -> None:
    seen, _ = await looks(20 * MIB, 60.0, always, from_s=30.0)
    times = [one.at_s for one in seen if 36.0 < one.at_s < 50.0]

    assert len(times) >= 13


async def test_a_crossing_is_seen_as_fast_when_all_was_calm() -> None:
    seen, _ = await looks(1000 * MIB, 60.0, always, from_s=33.0)
    first = next(one.at_s for one in seen if one.readings["memory.available"].value < LIMIT)

    assert 34.5 <= first <= 34.56


async def test_somebody_who_watches_gets_readings_no_older_than_a_tick_and_a_half() -> None:
    clock = SteppingClock(60.0)
    seen: list[Snapshot] = []
    told: list[float] = []
    memory = FallingMemory(clock, 99.0, 0.0)
    loop = TickLoop(memory, clock, 1.0, lambda: LIMIT, seen.append, always, lambda *_: None)

    def watch() -> None:
        loop.fresh()
        told.append(clock.now - seen[-1].at_s)

    clock.events += [(4.6, watch), (33.2, watch), (34.1, watch)]
    with pytest.raises(OverError):
        await loop.run()

    assert all(age_s <= 1.5 for age_s in told)
    assert len(told) == 3


async def test_a_quiet_machine_is_looked_at_once_a_tick_and_polled_a_few_times_a_second() -> None:
    seen, clock = await looks(0.0, 10.0)

    assert 10 <= len(seen) <= 11
    assert len(clock.sleeps) <= 60


@pytest.mark.parametrize("rate_mib_s", [100, 500, 1000, 4000])
async def test_a_crossing_is_seen_within_hundredths_of_a_second(rate_mib_s: int) -> None:
    seen, _ = await looks(rate_mib_s * MIB, 20.0)
    crossed_s = 3.0 + 1500 / rate_mib_s
    first = next(one.at_s for one in seen if one.readings["memory.available"].value < LIMIT)

    assert crossed_s <= first <= crossed_s + (NEAR_S if rate_mib_s >= 1000 else POLL_MIN_S) + 1e-6


async def test_a_crossing_is_told_once_not_at_every_poll() -> None:
    seen, _ = await looks(1000 * MIB, 12.0)
    below = [one for one in seen if one.readings["memory.available"].value < LIMIT]

    assert len(below) <= 12


class ChangingMemory(FallingMemory):
    """Memory as told: what is available from which time on."""

    def __init__(self, clock: SteppingClock, *steps: tuple[float, int]) -> None:
        super().__init__(clock, 99.0, 0.0)
        self._steps = steps

    def memory_available(self, at_s: float) -> Reading:
        mib = [mib for since_s, mib in self._steps if since_s <= at_s][-1]
        return Reading("memory.available", mib * MIB, at_s)


async def told(*steps: tuple[float, int]) -> list[float]:
    """When the loop looks at memory that is under the limit, over ten seconds."""
    clock = SteppingClock(10.0)
    seen: list[Snapshot] = []
    memory = ChangingMemory(clock, *steps)
    loop = TickLoop(memory, clock, 5.0, lambda: LIMIT, seen.append, never, lambda *_: None)
    with pytest.raises(OverError):
        await loop.run()
    return [one.at_s for one in seen if one.readings["memory.available"].value < LIMIT]


async def test_a_limit_that_is_crossed_again_before_the_next_tick_is_told_again() -> None:
    times = await told((0.0, 700), (1.0, 450), (1.5, 700), (2.5, 450), (3.0, 700))

    assert len(times) == 2
    assert times[1] - 2.5 < 0.15


async def test_memory_that_goes_on_falling_under_the_limit_is_told_again() -> None:
    times = await told((0.0, 700), (1.0, 450), (2.0, 300), (3.0, 700))

    assert len(times) == 2
    assert times[1] - 2.0 <= 0.2 + 1e-6


async def test_memory_that_trembles_around_the_limit_is_told_a_few_times_a_second() -> None:
    steps = [(0.07 * number, 495 if number % 2 else 505) for number in range(150)]
    times = await told(*steps)

    assert 5 <= len(times) <= 50


async def test_a_look_that_fails_is_reported_and_the_next_one_comes() -> None:
    clock = SteppingClock(5.0)
    reported: list[BaseException] = []
    seen: list[float] = []

    def on_tick(snapshot: Snapshot) -> None:
        seen.append(snapshot.at_s)
        if len(seen) == 2:
            raise RuntimeError("a bad look")

    loop = TickLoop(
        FallingMemory(clock, 99.0, 0.0),
        clock,
        1.0,
        lambda: LIMIT,
        on_tick,
        never,
        lambda _, error: reported.append(error),
    )
    with pytest.raises(OverError):
        await loop.run()

    assert [str(error) for error in reported] == ["a bad look"]
    assert len(seen) >= 5


def test_the_worst_rate_is_forgotten_by_half_every_five_seconds() -> None:
    rate = FillRate()
    rate.update(0.0, 1000.0 * MIB)
    rate.update(1.0, 900.0 * MIB)
    rate.update(6.0, 900.0 * MIB)

    assert rate.worst_bytes_s == pytest.approx(50 * MIB)


def test_a_reading_that_fails_holds_what_is_known_of_the_fall() -> None:
    rate = FillRate()
    rate.update(0.0, 1000.0 * MIB)
    rate.update(1.0, 900.0 * MIB)
    rate.update(2.0, None)
    rate.update(3.0, 900.0 * MIB)

    assert rate.worst_bytes_s == pytest.approx(100 * MIB)


@given(
    above=st.floats(0, 1e12),
    worst=st.floats(0, 1e11),
    tick_s=st.floats(0.05, 60),
)
def test_the_interval_is_never_longer_than_a_tick_nor_shorter_than_ten_milliseconds(
    above: float, worst: float, tick_s: float
) -> None:
    interval_s = poll_interval_s(above, worst, tick_s)

    assert POLL_MIN_S <= interval_s <= tick_s
