"""The daily budget of writes to disk over restarts and reboots."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from real_daemon import RealDaemon
from trimtab.runtime.kept_writes import AGE_EVERY_S, EVERY_S, FILE, KeptWrites, boot_of
from trimtab.serving.write_budget import DAY_S, HOUR_S, Claim, WriteBudget, Written

LIMIT = 6_400
"""A budget of which 100 bytes are worth a write at once."""


class SetClock:
    """Time that tests set."""

    def __init__(self, monotonic_s: float = 1000.0, wall_s: float = 1.8e9) -> None:
        self.monotonic, self.wall = monotonic_s, wall_s

    def monotonic_s(self) -> float:
        return self.monotonic

    def wall_s(self) -> float:
        return self.wall

    async def sleep(self, seconds: float) -> None:
        self.monotonic += seconds


class Life:
    """One controller's life, on one boot of the system."""

    def __init__(self, state: Path, clock: SetClock, boot: str = "one") -> None:
        self.clock = clock
        self._state = state
        self.budget = WriteBudget()
        self.budget.limit_bytes = LIMIT
        self.warnings: list[str] = []
        self.failed: list[str] = []
        report = lambda name, _: self.failed.append(name)  # noqa: E731
        self.kept = KeptWrites(state, self.budget, clock, boot, self, report)
        self.kept.restore()

    def warning(self, event: str, **_: Any) -> None:
        self.warnings.append(event)

    def wrote(self, size_bytes: int) -> None:
        self.budget.count(Claim(self.clock.monotonic, size_bytes, written=True))

    def has_room(self, size_bytes: int, after_s: float = 0.0) -> bool:
        return self.budget.has_room(size_bytes, self.clock.monotonic + after_s)

    async def tick(self) -> bool:
        """A tick; whether something was written on it."""
        before = self._file()
        self.kept.seen(self.clock.monotonic)
        await self.kept.written()
        return self._file() != before

    def _file(self) -> tuple[int, int] | None:
        """The file that is there: each write makes another one."""
        path = self._state / FILE
        return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


async def used_up(state: Path, clock: SetClock, boot: str = "one") -> None:
    """An earlier controller has used up the budget, and was killed after its next tick."""
    life = Life(state, clock, boot)
    life.wrote(LIMIT)
    await life.tick()


async def test_what_was_written_before_a_restart_counts_for_a_day(tmp_path: Path) -> None:
    clock = SetClock()
    await used_up(tmp_path, clock)
    clock.monotonic += HOUR_S
    clock.wall += HOUR_S
    later = Life(tmp_path, clock)

    assert not later.has_room(1)
    assert not later.has_room(1, after_s=DAY_S - HOUR_S)
    assert later.has_room(LIMIT, after_s=DAY_S - HOUR_S + 1)
    assert later.warnings == []


async def test_it_counts_for_a_day_over_a_reboot_too(tmp_path: Path) -> None:
    await used_up(tmp_path, SetClock(90_000.0))
    later = Life(tmp_path, SetClock(20.0, 1.8e9 + HOUR_S), boot="two")

    assert not later.has_room(1, after_s=DAY_S - HOUR_S)
    assert later.has_room(LIMIT, after_s=DAY_S - HOUR_S + 1)


async def test_what_is_older_than_a_day_is_not_counted(tmp_path: Path) -> None:
    await used_up(tmp_path, SetClock())
    later = Life(tmp_path, SetClock(20.0, 1.8e9 + DAY_S + 1), boot="two")

    assert later.has_room(LIMIT)


async def test_writes_grow_old_however_often_the_daemon_is_restarted(tmp_path: Path) -> None:
    clock = SetClock()
    for _ in range(3 * 48):  # a restart each half hour, for three days
        life = Life(tmp_path, clock)
        life.wrote(1)
        await life.kept.close()
        clock.monotonic += HOUR_S / 2
        clock.wall += HOUR_S / 2

    assert 48 <= Life(tmp_path, clock).budget.spent_bytes <= 50


async def test_a_wall_clock_that_is_set_is_kept_at_once(tmp_path: Path) -> None:
    clock = SetClock(20.0, 0.0)  # of a board without a clock of its own, before it has the time
    life = Life(tmp_path, clock)
    life.wrote(LIMIT)
    at_first = await life.tick()
    clock.monotonic += 30
    clock.wall += 1.8e9
    then = await life.tick(), await life.tick()
    later = Life(tmp_path, SetClock(20.0, clock.wall + HOUR_S), boot="two")

    assert (at_first, then) == (True, (True, False))
    assert not later.has_room(1)


@pytest.mark.parametrize("jump_s", [-10 * DAY_S, -1.8e9, 10 * DAY_S])
async def test_a_clock_that_jumps_within_a_boot_changes_nothing(
    tmp_path: Path, jump_s: float
) -> None:
    clock = SetClock()
    await used_up(tmp_path, clock)
    clock.monotonic += HOUR_S
    clock.wall += HOUR_S + jump_s
    later = Life(tmp_path, clock)

    assert not later.has_room(1, after_s=DAY_S - HOUR_S)
    assert later.has_room(LIMIT, after_s=DAY_S - HOUR_S + 1)


async def test_a_clock_that_jumps_backwards_over_a_reboot_frees_and_freezes_nothing(
    tmp_path: Path,
) -> None:
    await used_up(tmp_path, SetClock(90_000.0))
    later = Life(tmp_path, SetClock(20.0, 0.0), boot="two")

    assert not later.has_room(1, after_s=DAY_S)
    assert later.has_room(LIMIT, after_s=DAY_S + 1)


async def test_hours_of_running_count_where_each_boot_begins_at_the_same_time(
    tmp_path: Path,
) -> None:
    await used_up(tmp_path, SetClock(20.0, 20.0), boot="0")
    lives = 0
    while not (life := Life(tmp_path, SetClock(20.0, 20.0), boot=str(lives + 1))).has_room(LIMIT):
        lives += 1
        for _ in range(5):  # hours; then the power goes
            life.clock.monotonic += AGE_EVERY_S
            life.clock.wall += AGE_EVERY_S
            await life.tick()
        assert lives < 10

    assert 4 <= lives <= 7


async def test_little_is_kept_seldom_and_much_at_once(tmp_path: Path) -> None:
    life = Life(tmp_path, SetClock())
    nothing = await life.tick()
    told = []
    for _ in range(2):
        life.wrote(LIMIT // 64)
        told.append(await life.tick())
    for seconds in (0.0, EVERY_S - 1, 1.0, EVERY_S):
        life.wrote(1)
        life.clock.monotonic += seconds
        told.append(await life.tick())
    again = await life.tick()

    assert (nothing, again) == (False, False)
    assert told == [True, True, False, False, True, True]
    assert Life(tmp_path, life.clock).budget.spent_bytes == 2 * (LIMIT // 64) + 4


async def test_an_orderly_end_keeps_the_rest(tmp_path: Path) -> None:
    life = Life(tmp_path, SetClock())
    life.wrote(LIMIT // 2)
    await life.tick()
    life.wrote(1)
    await life.kept.close()

    assert Life(tmp_path, life.clock).budget.spent_bytes == LIMIT // 2 + 1


async def test_nothing_is_written_where_nothing_was(tmp_path: Path) -> None:
    life = Life(tmp_path, SetClock())
    life.clock.monotonic += 10 * DAY_S
    await life.tick()
    await life.kept.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"version": 2, "data": {}}',
        b'{"version": 1, "data": {"boot": "one", "at_s": 0, "wall_s": 0, "writes": [[1, 2]]}}',
        b'{"version": 1, "data": {"boot": "one", "at_s": 0, "wall_s": 0,'
        b' "writes": [{"age_s": 0, "size_bytes": -99999}]}}',
        b'{"version": 1, "data": {"boot": "one", "at_s": 0, "wall_s": 0,'
        b' "writes": [{"age_s": -1e300, "size_bytes": 1}]}}',
    ],
)
async def test_a_damaged_file_is_told_and_written_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    life = Life(tmp_path, SetClock())
    free = life.has_room(LIMIT)
    life.wrote(LIMIT)
    await life.tick()
    later = Life(tmp_path, life.clock)

    assert life.warnings == ["kv_writes_not_known"]
    assert free
    assert later.warnings == []
    assert not later.has_room(1)


async def test_a_file_that_cannot_be_read_or_written_is_told_once_and_stops_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / FILE).mkdir()
    life = Life(tmp_path, SetClock())
    for _ in range(3):
        life.wrote(LIMIT // 3)
        await life.tick()
    await life.kept.close()

    assert life.warnings == ["kv_writes_not_known", "kv_writes_not_kept"]
    assert life.failed == []
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_writes_are_kept_by_the_hour_and_never_taken_for_older_than_they_are() -> None:
    budget = WriteBudget()
    for at_s in range(30, int(3 * HOUR_S), 60):
        budget.count(Claim(float(at_s), 10))
    hours = budget.by_hour(3 * HOUR_S)

    assert [one.size_bytes for one in hours] == [600, 600, 600]
    assert all(one.age_s <= hour * HOUR_S + 60 for hour, one in zip((2, 1, 0), hours, strict=True))


def test_a_write_that_was_never_made_leaves_the_budget() -> None:
    budget = WriteBudget()
    budget.limit_bytes = 10
    budget.restore([Written(5.0, 4)], 100.0)
    claim = Claim(100.0, 6)
    budget.count(claim)
    full = budget.has_room(1, 100.0)
    budget.settle(claim)
    budget.settle(claim)

    assert not full
    assert budget.has_room(6, 100.0)
    assert not budget.has_room(7, 100.0)


async def test_of_a_running_conversation_what_it_has_written_is_kept_and_not_its_space(
    tmp_path: Path,
) -> None:
    life = Life(tmp_path, SetClock())
    claim = Claim(life.clock.monotonic, LIMIT // 2, fills=True)
    life.budget.count(claim)
    await life.tick()
    claim.filled_bytes = LIMIT // 4
    grown = await life.tick()
    killed = Life(tmp_path, life.clock).budget.spent_bytes
    living = life.budget.spent_bytes
    life.budget.settle(claim)
    life.budget.settle(claim)
    await life.kept.close()

    assert grown
    assert (killed, living) == (LIMIT // 4, LIMIT // 2)
    assert life.budget.spent_bytes == LIMIT // 4
    assert Life(tmp_path, life.clock).budget.spent_bytes == LIMIT // 4


def test_the_boot_of_a_system_is_known_by_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/random"
    folder.mkdir(parents=True)
    (folder / "boot_id").write_text("9a1e\n")

    assert boot_of(tmp_path) == "9a1e"
    assert boot_of(tmp_path / "elsewhere") == ""


# ---------------------------------------------------------------- a real daemon

POLICY = (
    "version: 1\nname: own\nprotect: [latency, memory]\n"
    "limits: {memory: {headroom: 64MiB}}\nknobs: {kv_placement: [disk]}\n"
    "kv: {disk_quota: 64MiB, writes_per_day: 300KiB}\n"
)


def until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def ask(daemon: RealDaemon, text: str) -> None:
    """A conversation whose KV takes more than half of the budget, as it ends."""
    order = {"model": "tiny", "prompt": text, "max_tokens": 350}
    order["trimtab"] = {"ignore_eos": True}
    with daemon.client() as client:
        client.post("/v1/completions", json=order).raise_for_status()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RealDaemon]:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "own.yaml").write_text(POLICY)
    made = RealDaemon(tmp_path, POLICIES=str(tmp_path / "policies"), POLICY="own")
    (tmp_path / "state").mkdir()
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)


def test_a_controller_that_is_killed_does_not_get_another_days_writes(daemon: RealDaemon) -> None:
    daemon.start()
    file = daemon.folder / "state" / FILE
    ask(daemon, "One river")
    until(file.exists)
    _, first_said = daemon.end(signal.SIGKILL)
    written = json.loads(file.read_text())["data"]["writes"]
    daemon.start()
    ask(daemon, "Another hill")
    until(lambda: "kv_not_moved" in daemon.log.read_text())
    _, said = daemon.end()

    assert sum(one["size_bytes"] for one in written) > 150 * 1024
    assert "kv_not_moved" not in first_said
    assert "today's write budget is used up" in said


def test_a_real_daemon_starts_with_a_damaged_file(daemon: RealDaemon) -> None:
    (daemon.folder / "state" / FILE).write_text("{")
    daemon.start()
    status, said = daemon.end()

    assert status == 0
    assert "kv_writes_not_known" in said
