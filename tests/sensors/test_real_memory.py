"""The real kernel: a child in a memory cgroup with a limit, and tasks that really stall."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_group import GroupChild, memory_group
from sensor_trees import MIB, Ticker

from trimtab.domain.readings import Quality
from trimtab.sensors import SensorConfig, SensorSuite
from trimtab.sensors.psi_trigger import PsiTrigger
from trimtab.sensors.source import Roots

Start = Callable[[SensorConfig], Ticker]
LIMIT = 320 * MIB
STALL_LIMIT = 24 * MIB
TAKEN = 128 * MIB

READS_ITS_OWN = """
import sys
from trimtab.sensors import SensorConfig, SensorSuite
suite = SensorSuite(SensorConfig())
kept = []
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "take":
        kept.append(bytearray(b"x" * int(rest)))
    elif word == "drop":
        kept.clear()
    elif word == "cache":
        with open(rest, "rb") as file:
            while file.read(1 << 20):
                pass
    available = suite.snapshot(0.0, 0.0).readings["memory.available"]
    fast = suite.memory_available(0.0)
    print(int(available.value), int(fast.value), available.reason, sep="|", flush=True)
"""

READS_AT_RANDOM = """
import os, random, threading
fd = os.open(os.environ["BIG_FILE"], os.O_RDONLY)
size = 48 << 20  # twice the limit: pages come back soon after they were dropped
def read():
    while True:
        os.pread(fd, 4096, random.randrange(0, size - 4096, 4096))
for _ in range(4):
    threading.Thread(target=read).start()
"""


@pytest.fixture
def group() -> Iterator[Path]:
    with memory_group(LIMIT) as folder:
        yield folder


@pytest.fixture
def child(group: Path) -> Iterator[GroupChild]:
    child = GroupChild(group, READS_ITS_OWN)
    yield child
    child.end()


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    """160 MiB on disk, not in the page cache."""
    file = tmp_path / "big"
    with file.open("wb") as out:
        for _ in range(160):
            out.write(b"\1" * MIB)
        out.flush()
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file


def numbers(answer: str) -> tuple[int, int, str]:
    available, fast, reason = answer.split("|")
    return int(available), int(fast), reason


def test_a_child_in_a_real_memory_group_sees_what_its_limit_leaves(child: GroupChild) -> None:
    before, fast, reason = numbers(child.ask("look"))
    taken, taken_fast, _ = numbers(child.ask(f"take {TAKEN}"))
    dropped, _, _ = numbers(child.ask("drop"))

    assert LIMIT - 100 * MIB < before < LIMIT
    assert "trimtab-test-" in reason
    assert abs(fast - before) < 8 * MIB
    assert before - taken == pytest.approx(TAKEN, rel=0.1)
    assert abs(taken_fast - taken) < 8 * MIB
    assert dropped - taken == pytest.approx(TAKEN, rel=0.1)


def test_page_cache_in_a_real_memory_group_stays_available(
    child: GroupChild, big_file: Path
) -> None:
    before, _, _ = numbers(child.ask("look"))

    after, _, reason = numbers(child.ask(f"cache {big_file}"))

    assert before - after < 48 * MIB  # of 160 MiB that were read
    assert "inactive file" in reason


def test_the_daemon_sees_the_real_limit_of_a_worker_in_another_group(
    child: GroupChild, start: Start
) -> None:
    child.ask(f"take {TAKEN}")
    ticker = start(SensorConfig())
    alone = ticker.tick().readings["memory.available"]

    ticker.suite.watch_processes([child.process.pid])
    bounded = ticker.tick().readings["memory.available"]
    own = ticker.tick(11).readings["memory.own.anonymous"]
    child.end()
    ticker.suite.watch_processes([])
    after = ticker.tick(2).readings["memory.available"]

    assert (alone.value or 0) > LIMIT
    assert (bounded.value or 0) < LIMIT - TAKEN
    assert (own.value or 0) > TAKEN
    assert (after.value or 0) > LIMIT
    assert after.quality is Quality.GOOD


def test_real_stalls_show_in_the_next_ticks_and_fire_the_trigger(
    big_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIG_FILE", str(big_file))
    trigger = PsiTrigger(Roots(), stall_ratio=0.01)
    suite = SensorSuite(SensorConfig())
    began = time.monotonic()
    suite.snapshot(began, 0.0)
    most, fired = 0.0, False
    with memory_group(STALL_LIMIT) as folder:
        child = GroupChild(folder, READS_AT_RANDOM)
        try:
            while time.monotonic() - began < 30 and not (most > 0.01 and fired):
                fired = trigger.wait(timeout_s=0.5) or fired
                snapshot = suite.snapshot(time.monotonic(), 0.0)
                most = max(most, snapshot.value("memory.psi.some_now") or 0.0)
        finally:
            child.end()
    suite.close()
    trigger.close()

    assert most > 0.01
    assert fired
