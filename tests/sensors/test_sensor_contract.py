"""What every sensor keeps to, whatever its files do."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_trees import GIB, Ticker, Tree, board_names, grow_board

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors import SensorConfig, SensorSuite
from trimtab.sensors.board import find_board
from trimtab.sensors.cgroups import parse_cgroup, parse_limit, parse_mountinfo, stat_field
from trimtab.sensors.cpu import parse_process_ticks, parse_stat
from trimtab.sensors.disk import parse_life_time
from trimtab.sensors.meminfo import parse_available, parse_meminfo
from trimtab.sensors.processes import Watched, parse_io, parse_rollup
from trimtab.sensors.psi import parse_pressure
from trimtab.sensors.registry import FAST_SENSORS, SLOW_SENSORS, Setting
from trimtab.sensors.throttle import parse_throttled
from trimtab.sensors.zones import parse_millidegrees, slug
from trimtab.sensors.zram import parse_mm_stat
from trimtab.serving.claims import Ledger
from trimtab.serving.meter import kv_readings
from trimtab.signals.latency import LatencyWindow
from trimtab.signals.registry import DYNAMIC_PREFIXES, SIGNALS, unit_of

Start = Callable[[SensorConfig], Ticker]
TICK_AT_MOST_S = 0.5  # far above the millisecond that it takes, far below a hang


@pytest.fixture
def crowded(tmp_path: Path) -> Tree:
    """A machine that has everything that any described board has."""
    for name in board_names():
        tree = grow_board(name, tmp_path)
    tree.machine()
    tree.cgroup2("/app")
    tree.level2("app", limit=GIB, current=GIB // 2, inactive=0)
    tree.put("proc/stat", "cpu 100 0 0 900 0 0 0 0\n")
    tree.put("proc/self/stat", f"1 (x) S {' '.join(['1'] * 30)}\n")
    tree.put("proc/self/smaps_rollup", "Pss: 100 kB\n")
    tree.put("proc/self/io", "write_bytes: 1\ncancelled_write_bytes: 0\n")
    return tree


def files_of(tree: Tree) -> list[Path]:
    return [path for root in (tree.proc, tree.sys) for path in root.rglob("*") if path.is_file()]


def timed_ticks(suite: SensorSuite, count: int, first_s: float = 1000.0) -> dict[str, Reading]:
    """Snapshots that must each come back at once, settled or not."""
    readings: dict[str, Reading] = {}
    for step in range(count):
        began = time.perf_counter()
        readings = dict(suite.snapshot(first_s + step, first_s + step).readings)
        assert time.perf_counter() - began < TICK_AT_MOST_S
        suite.settle(timeout_s=0.1)
    return readings


def check(readings: dict[str, Reading], promised: set[str]) -> None:
    """The contract: all promised, all known, no value that can't be, no silence without reason."""
    assert promised <= readings.keys()
    for signal, reading in readings.items():
        assert reading.signal == signal
        assert signal in SIGNALS or any(signal.startswith(p) for p in DYNAMIC_PREFIXES)
        if reading.quality is Quality.GOOD:
            assert reading.value is not None
            assert math.isfinite(reading.value)
            spec = SIGNALS.get(signal)
            if spec is not None:
                assert spec.low is None or reading.value >= spec.low
                assert spec.high is None or reading.value <= spec.high
        else:
            assert reading.reason, reading


@pytest.fixture
def promised() -> set[str]:
    """All signals that some sensor always answers for."""
    nowhere = SensorConfig(proc_root=Path("/nowhere"), sys_root=Path("/nowhere"))
    setting = Setting(nowhere, find_board("generic", nowhere.roots), Watched())
    fast = [make(setting).signals for make in FAST_SENSORS.values()]
    slow = [make(setting).signals for make in SLOW_SENSORS.values()]
    return {signal for signals in fast + slow for signal in signals}


def test_every_promised_signal_is_in_the_registry(promised: set[str]) -> None:
    assert promised <= SIGNALS.keys()


def test_every_signal_in_the_registry_comes_from_somewhere(
    promised: set[str], tree: Tree, start: Start
) -> None:
    told = start(tree.config()).readings().keys()
    serving = {reading.signal for reading in LatencyWindow().readings(0.0)}
    serving |= {reading.signal for reading in kv_readings(Ledger(), 0.0)}

    assert SIGNALS.keys() == told | serving
    assert promised <= told


def test_no_two_sensors_promise_the_same_signal(tree: Tree) -> None:
    setting = Setting(tree.config(), find_board("generic", tree.config().roots), Watched())
    makers = [*FAST_SENSORS.values(), *SLOW_SENSORS.values()]
    names = [signal for make in makers for signal in make(setting).signals]

    assert len(names) == len(set(names))


def test_an_empty_machine_has_only_absent_signals(
    tmp_path: Path, promised: set[str], start: Start
) -> None:
    readings = start(Tree(tmp_path / "empty").config()).readings()

    check(readings, promised)
    assert {r.quality for s, r in readings.items() if s != "clock.jump"} == {Quality.ABSENT}


def test_a_crowded_machine_has_sound_readings(
    crowded: Tree, promised: set[str], start: Start
) -> None:
    readings = start(crowded.config()).readings()

    check(readings, promised)
    good = [signal for signal, r in readings.items() if r.quality is Quality.GOOD]
    assert len(good) > 50


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"garbage in every file\n",
        b"\0\xff\xfe" * 30,
        b"-1\n",
        b"99999999999999999999999999\n",
        b"nan\n",
        b"1e400\n",
        b"0x7fffffff\n",
        b"some avg10=nan avg60=nan avg300=inf total=1\n",
        b"MemTotal: 99999999999999999 kB\nMemFree: 5 kB\nMemAvailable: 88888888888888888 kB\n",
        b"cpu -5 -5 -5 -5\n",
        b"x" * 200_000,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_garbage_in_every_file_gives_no_good_reading_that_cannot_be(
    crowded: Tree, promised: set[str], start: Start, content: bytes
) -> None:
    suite = start(crowded.config()).suite
    timed_ticks(suite, 2)

    for file in files_of(crowded):
        file.write_bytes(content)
    suite.watch_processes([77])
    readings = timed_ticks(suite, 3, first_s=1002.0)

    check(readings, promised)


def test_files_that_cannot_be_read_fail_with_the_reason(
    crowded: Tree, promised: set[str], start: Start
) -> None:
    for file in files_of(crowded):
        file.unlink()
        file.mkdir()  # root may read everything, but not a folder

    readings = timed_ticks(start(crowded.config()).suite, 3)

    check(readings, promised)
    assert readings["memory.available"].quality is Quality.FAILED
    assert "not a regular file" in readings["memory.available"].reason


@pytest.fixture
def fifos(crowded: Tree) -> Iterator[list[Path]]:
    """Every file a FIFO: a slow sensor that reads one hangs, until the test is over."""
    files = files_of(crowded)
    for file in files:
        file.unlink()
        os.mkfifo(file)
    yield files
    for _ in range(3):
        for file in files:
            os.close(os.open(file, os.O_RDWR | os.O_NONBLOCK))
        time.sleep(0.02)


def test_sensors_that_all_hang_delay_no_tick(
    crowded: Tree, fifos: list[Path], promised: set[str], start: Start
) -> None:
    suite = start(crowded.config(deadline_s=1.0)).suite

    readings = timed_ticks(suite, 25)

    check(readings, promised)
    assert 1 <= len(suite.hung) <= 8
    assert not any(
        reading.quality is Quality.GOOD for s, reading in readings.items() if s != "clock.jump"
    )


@pytest.mark.parametrize("sensor", [*FAST_SENSORS, *SLOW_SENSORS])
def test_what_vanishes_between_two_ticks_becomes_absent_and_comes_back(
    crowded: Tree, promised: set[str], start: Start, sensor: str
) -> None:
    setting = Setting(crowded.config(), find_board(None, crowded.config().roots), Watched())
    maker = FAST_SENSORS.get(sensor) or SLOW_SENSORS[sensor]
    signals = set(maker(setting).signals)
    ticker = start(crowded.config())
    period = 31  # every sensor is asked again within it
    before = {s for s, r in ticker.readings().items() if r.quality is Quality.GOOD} & signals
    kept = crowded.proc.parent / "kept"
    for root in (crowded.proc, crowded.sys):
        shutil.copytree(root, kept / root.name)

    for root in (crowded.proc, crowded.sys):
        shutil.rmtree(root)
    gone = ticker.tick(period)
    for root in (crowded.proc, crowded.sys):
        shutil.copytree(kept / root.name, root)
    back = ticker.tick(period)

    check(dict(gone.readings), promised)
    assert {gone.readings[signal].quality for signal in signals} == {Quality.ABSENT}
    good = {s for s, r in back.readings.items() if r.quality is Quality.GOOD}
    assert before <= good


class ExplodingSensor:
    """A sensor with a programming error."""

    signals = ("cpu.throttled",)
    period_s = 1.0

    def read(self, at_s: float, files: object) -> list[Reading]:
        raise ZeroDivisionError("a bug")


def test_a_sensor_with_a_bug_fails_alone() -> None:
    from trimtab.sensors.slow import SlowReader

    reader = SlowReader({"bad": ExplodingSensor()}, deadline_s=1.0)
    reader.take(0.0)
    reader.ask(0.0)
    reader.settle(timeout_s=5.0)
    reader.take(1.0)
    reader.ask(1.0)

    (reading,) = reader.readings(1.0)
    reader.close()

    assert (reading.quality, reading.reason) == (Quality.FAILED, "a bug")


def test_every_unit_is_known(crowded: Tree, start: Start) -> None:
    readings = start(crowded.config()).readings()

    assert [signal for signal in readings if unit_of(signal) is None] == []


PARSERS: dict[str, Callable[[str], object]] = {
    "meminfo": lambda text: parse_meminfo(text.encode()),
    "available": lambda text: parse_available(text.encode()),
    "pressure": parse_pressure,
    "mountinfo": parse_mountinfo,
    "cgroup": parse_cgroup,
    "limit": lambda text: parse_limit(text.encode()),
    "memory.stat": lambda text: stat_field(text.encode(), b"inactive_file"),
    "stat": parse_stat,
    "process": parse_process_ticks,
    "rollup": parse_rollup,
    "io": parse_io,
    "mm_stat": parse_mm_stat,
    "life_time": parse_life_time,
    "throttled": parse_throttled,
    "millidegrees": parse_millidegrees,
    "slug": slug,
}
WORDS = st.sampled_from(
    ["MemTotal:", "MemFree:", "MemAvailable:", "kB", "some", "full", "avg10=", "avg60=1", "total=",
     "cpu", "inactive_file", "Pss:", "write_bytes: ", "max", "0::/", "9:memory:/", " - cgroup2 ",
     "-1", "0x", "99999999999999999999", "nan", ")", "(", "\n", " ", "\t", "=", ":"]
)  # fmt: skip


@pytest.mark.parametrize("parser", PARSERS)
@given(parts=st.lists(WORDS | st.text(max_size=8), max_size=30))
def test_a_parser_raises_nothing_but_valueerror(parser: str, parts: list[str]) -> None:
    text = "".join(parts).encode(errors="replace").decode()

    try:
        PARSERS[parser](text)
    except ValueError:
        pass
