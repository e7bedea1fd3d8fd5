"""The reading thread, its timetable, and what is told about sensors that break."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sensor_trees import Ticker, Tree

from trimtab.domain.readings import Quality, Reading, Unit
from trimtab.sensors import SensorConfig
from trimtab.sensors.changes import QualityChanges
from trimtab.sensors.config import NumberFile
from trimtab.sensors.reading_thread import natural_key
from trimtab.sensors.slow import SlowReader
from trimtab.sensors.source import Files

Start = Callable[[SensorConfig], Ticker]


class GatedSensor:
    """Answers when the test lets it; reads one file name that doesn't exist in between."""

    signals = ("cpu.frequency",)

    def __init__(self, period_s: float = 1.0) -> None:
        self.period_s = period_s
        self.gate = threading.Event()
        self.gate.set()
        self.reads = 0

    def read(self, at_s: float, files: Files) -> list[Reading]:
        self.reads += 1
        self.gate.wait(10)
        return [Reading(self.signals[0], float(self.reads), at_s)]


def last(reader: SlowReader, at_s: float) -> Reading:
    (reading,) = reader.readings(at_s)
    return reading


def run(reader: SlowReader, at_s: float) -> Reading:
    reader.take(at_s)
    reader.ask(at_s)
    reader.settle(timeout_s=5.0)
    return last(reader, at_s)


def test_before_its_first_answer_a_slow_sensor_is_stale() -> None:
    sensor = GatedSensor()
    sensor.gate.clear()
    reader = SlowReader({"s": sensor}, deadline_s=5.0)

    reader.take(0.0)

    reader.ask(0.0)
    waiting = last(reader, 0.0)
    sensor.gate.set()
    reader.settle(timeout_s=5.0)
    answered = last(reader, 0.0)
    reader.close()

    assert (waiting.value, waiting.quality) == (None, Quality.STALE)
    assert (answered.value, answered.quality) == (1.0, Quality.GOOD)


def test_an_answer_that_grows_old_says_how_old_it_is() -> None:
    sensor = GatedSensor()
    reader = SlowReader({"s": sensor}, deadline_s=30.0)
    run(reader, 0.0)
    sensor.gate.clear()

    reader.take(10.0)

    reader.ask(10.0)
    fresh, old = last(reader, 33.0), last(reader, 34.0)
    sensor.gate.set()
    reader.close()

    assert fresh.quality is Quality.GOOD
    assert (old.value, old.quality) == (1.0, Quality.STALE)
    assert "34 s ago" in old.reason


def test_a_sensor_is_asked_no_more_often_than_its_period() -> None:
    sensor = GatedSensor(period_s=10.0)
    reader = SlowReader({"s": sensor}, deadline_s=5.0)

    for at_s in range(31):
        run(reader, float(at_s))
    reader.close()

    assert sensor.reads == 4


class MissingSensor(GatedSensor):
    """A device that isn't there until the test plugs it in."""

    plugged = False

    def read(self, at_s: float, files: Files) -> list[Reading]:
        self.reads += 1
        if self.plugged:
            return [Reading(self.signals[0], 1.0, at_s)]
        return [Reading(self.signals[0], None, at_s, Quality.ABSENT, "not there")]


def test_what_the_machine_lacks_is_looked_for_twice_a_minute_and_found_when_it_comes() -> None:
    sensor = MissingSensor()
    reader = SlowReader({"s": sensor}, deadline_s=5.0)

    qualities = {run(reader, float(at_s)).quality for at_s in range(61)}
    reads = sensor.reads
    sensor.plugged = True
    found = next(at_s for at_s in range(61, 200) if run(reader, float(at_s)).value is not None)
    reader.close()

    assert qualities == {Quality.ABSENT}
    assert reads == 3
    assert found <= 61 + 30


def test_readings_stay_good_while_ticks_are_rare() -> None:
    sensor = GatedSensor()
    reader = SlowReader({"s": sensor}, deadline_s=2.0)

    for at_s in range(10):
        run(reader, float(at_s))
    qualities = set()
    for at_s in range(14, 60, 5):
        reader.take(float(at_s))
        qualities.add(last(reader, float(at_s)).quality)
        reader.ask(float(at_s))
        reader.settle(timeout_s=5.0)
    reader.close()

    assert qualities == {Quality.GOOD}


def test_a_sensor_that_hangs_outside_of_any_file_is_replaced_and_named() -> None:
    stuck, fine = GatedSensor(), GatedSensor()
    stuck.gate.clear()
    fine.signals = ("cpu.busy",)
    reader = SlowReader({"stuck": stuck, "fine": fine}, deadline_s=2.0)

    for at_s in range(6):
        reader.take(float(at_s))
        reader.ask(float(at_s))
        reader.settle(timeout_s=0.1)
    hung = reader.hung
    readings = {reading.signal: reading for reading in reader.readings(6.0)}
    stuck.gate.set()
    reader.close()

    assert hung == ("stuck",)
    assert readings["cpu.frequency"].quality is Quality.FAILED
    assert "doesn't answer" in readings["cpu.frequency"].reason
    assert readings["cpu.busy"].quality is Quality.GOOD


def test_only_a_few_threads_are_lost_to_hanging_sensors() -> None:
    sensors = {f"s{number}": GatedSensor() for number in range(20)}
    for sensor in sensors.values():
        sensor.gate.clear()
    before = threading.active_count()
    reader = SlowReader(sensors, deadline_s=1.0)

    for at_s in range(60):
        reader.take(float(at_s))
        reader.ask(float(at_s))
    lost = threading.active_count() - before
    for sensor in sensors.values():
        sensor.gate.set()
    reader.close()

    assert lost <= 9


def test_names_with_numbers_sort_by_the_numbers() -> None:
    names = ["thermal_zone10", "thermal_zone2", "cpu0", "a"]

    assert sorted(names, key=natural_key) == ["a", "cpu0", "thermal_zone2", "thermal_zone10"]


def test_slow_periodic_sensors_run_on_a_real_apscheduler(tree: Tree, start: Start) -> None:
    scheduler = BackgroundScheduler()
    ticker = start(tree.config())

    ticker.suite.attach(scheduler)
    scheduler.start(paused=True)
    jobs = {job.id: job.trigger.interval.total_seconds() for job in scheduler.get_jobs()}
    before = {job.id: job.next_run_time for job in scheduler.get_jobs()}
    ticker.tick()
    ticker.wall_s += 86400.0  # the network came up and the clock was set
    ticker.tick()
    after = {job.id: job.next_run_time for job in scheduler.get_jobs()}
    ticker.suite.close()
    left = scheduler.get_jobs()
    scheduler.shutdown()

    assert jobs["sensor disk"] == 30.0
    assert "sensor processes" not in jobs  # read so often that it goes with the tick
    assert all(after[job] > before[job] for job in jobs)
    assert left == []


class RecordingScheduler:
    """Keeps what was added, so that the test runs the jobs itself."""

    def __init__(self) -> None:
        self.jobs: dict[str, Callable[[], None]] = {}

    def add_job(self, func: Callable[..., Any], trigger: str, **options: Any) -> Any:
        self.jobs[options["id"]] = lambda: func(*options["args"])
        return self

    def remove(self) -> None:
        self.jobs.clear()

    def reschedule(self, trigger: str, seconds: float) -> None:
        pass


def test_a_scheduled_sensor_is_read_when_its_job_runs_and_late_if_it_never_does(
    tree: Tree, start: Start
) -> None:
    scheduler = RecordingScheduler()
    entry = NumberFile("room", tree.put("room", "10\n"), Unit.CELSIUS, period_s=60.0)
    ticker = start(tree.config(files=(entry,)))
    ticker.suite.attach(scheduler)
    ticker.readings()
    tree.put("room", "20\n")

    early = ticker.tick().value("custom.room")
    scheduler.jobs["sensor file room"]()
    asked = ticker.tick(2).value("custom.room")
    tree.put("room", "30\n")
    unasked = ticker.tick(121).value("custom.room")

    assert (early, asked, unasked) == (10.0, 20.0, 30.0)


def reading(quality: Quality, reason: str = "why") -> Reading:
    return Reading("temperature.max", None, 0.0, quality, reason)


def tell(changes: QualityChanges, at_s: float, quality: Quality) -> list[tuple[str, int]]:
    told = changes.update({"temperature.max": reading(quality)}, at_s)
    return [(change.after.value, change.untold) for change in told]


def test_a_failure_is_told_once_and_not_at_each_read() -> None:
    changes = QualityChanges()

    told = [tell(changes, float(at_s), Quality.FAILED) for at_s in range(100)]

    assert [entry for entry in told if entry] == [[("failed", 0)]]


def test_hardware_that_is_not_there_is_no_news() -> None:
    assert tell(QualityChanges(), 0.0, Quality.ABSENT) == []


def test_a_sensor_that_begins_to_answer_is_no_news_and_its_loss_is() -> None:
    changes = QualityChanges()
    beginning = [
        tell(changes, float(at_s), quality)
        for at_s, quality in enumerate([Quality.STALE, Quality.ABSENT, Quality.GOOD])
    ]

    assert beginning == [[], [], []]
    assert tell(changes, 3.0, Quality.ABSENT) == [("absent", 0)]
    assert tell(changes, 70.0, Quality.GOOD) == [("good", 0)]


def test_a_sensor_that_comes_and_goes_is_told_once_a_minute_with_a_count() -> None:
    changes = QualityChanges()
    tell(changes, 0.0, Quality.GOOD)

    told = [
        tell(changes, float(at_s), Quality.FAILED if at_s % 2 else Quality.GOOD)
        for at_s in range(1, 200)
    ]

    lines = [entry for entry in told if entry]
    assert len(lines) <= 4
    assert lines[0] == [("failed", 0)]
    assert lines[1][0][1] > 50


def test_a_recovery_is_told() -> None:
    changes = QualityChanges()
    tell(changes, 0.0, Quality.FAILED)
    quiet = tell(changes, 30.0, Quality.GOOD)

    assert quiet == []
    assert tell(changes, 61.0, Quality.GOOD) == [("good", 0)]


def test_a_snapshot_is_the_same_whoever_listens(tree: Tree) -> None:
    from trimtab.sensors import SensorSuite

    told: list[str] = []
    suite = SensorSuite(tree.config(), on_change=lambda change: told.append(change.signal))
    tree.put("proc/meminfo", "garbage\n")

    snapshot = suite.snapshot(0.0, 0.0)
    suite.close()

    assert snapshot.readings["memory.available"].quality is Quality.FAILED
    assert "memory.available" in told


@pytest.mark.parametrize("shift_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_is_told_for_one_tick(tree: Tree, start: Start, shift_s: float) -> None:
    ticker = start(tree.config())
    steady = ticker.tick().value("clock.jump")

    ticker.wall_s += shift_s
    jumped = ticker.tick().value("clock.jump")
    after = ticker.tick().value("clock.jump")

    assert (steady, jumped, after) == (0.0, pytest.approx(shift_s), 0.0)
