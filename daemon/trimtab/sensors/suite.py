"""All sensors behind one door: the tick loop asks for a snapshot and never waits for hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trimtab.domain.readings import Quality, Reading, Snapshot, Unit
from trimtab.sensors.board import Board, find_board
from trimtab.sensors.changes import QualityChange, QualityChanges
from trimtab.sensors.config import SensorConfig
from trimtab.sensors.custom import NumberFileSensor, PushedSignals, check_name
from trimtab.sensors.memory import MemorySensor
from trimtab.sensors.periodic import SHORTEST_S, PeriodicReads, Scheduler
from trimtab.sensors.processes import Watched
from trimtab.sensors.registry import FAST_SENSORS, SLOW_SENSORS, Setting
from trimtab.sensors.slow import SlowReader
from trimtab.sensors.source import FastSource, SlowSource, missing, unreadable
from trimtab.signals.clock import ClockWatch
from trimtab.signals.derived import DerivedSignals
from trimtab.signals.registry import SIGNALS, unit_of


class SensorSuite:
    """Reads all sensors of this machine.

    `snapshot` reads the kernel files that answer in microseconds itself, takes what the reading
    thread has brought of the others, and adds what is derived. It never raises and never waits.

    Args:
        config: Where to read, and what else to read.
        on_change: Told when a signal's quality changes, at most once a minute for each signal;
            for the log.

    Raises:
        ConfigError: If the board profile that the configuration names is missing or wrong.
    """

    def __init__(
        self,
        config: SensorConfig,
        *,
        on_change: Callable[[QualityChange], None] | None = None,
    ) -> None:
        self.config = config
        self.board: Board = find_board(config.board, config.roots)
        self._watched = Watched()
        self._pushed = PushedSignals()
        setting = Setting(config, self.board, self._watched)
        self._fast: dict[str, FastSource] = {
            name: make(setting) for name, make in FAST_SENSORS.items()
        }
        memory = self._fast["memory"]
        if not isinstance(memory, MemorySensor):
            raise TypeError("the sensor named memory is the one with the fast path")
        self._memory = memory
        slow: dict[str, SlowSource] = {name: make(setting) for name, make in SLOW_SENSORS.items()}
        slow |= {f"file {entry.name}": NumberFileSensor(entry) for entry in config.files}
        self._slow = SlowReader(slow, config.deadline_s)
        self._periodic: PeriodicReads | None = None
        self._clock = ClockWatch()
        self._derived = DerivedSignals()
        self._changes = QualityChanges()
        self._on_change = on_change

    def snapshot(self, at_s: float, wall_s: float) -> Snapshot:
        """All readings of one tick.

        Args:
            at_s: Monotonic time of the tick.
            wall_s: Wall-clock time of the tick.
        """
        self._slow.take(at_s)
        readings = {reading.signal: reading for reading in self._slow.readings(at_s)}
        for source in self._fast.values():
            for reading in _guarded(source, at_s):
                readings[reading.signal] = reading
        for reading in self._pushed.readings(at_s):
            readings[reading.signal] = reading
        readings[ClockWatch.signal] = self._look_at_clock(at_s, wall_s)
        for signal, reading in readings.items():
            if reading.value is not None:
                readings[signal] = plausible(reading)
        if self._on_change is not None:  # of sensors only: what is derived comes and goes
            for change in self._changes.update(readings, at_s):
                self._on_change(change)
        for reading in self._derived.update(readings, at_s):
            readings[reading.signal] = plausible(reading)
        self._slow.ask(at_s)
        return Snapshot(at_s, readings, wall_s)

    def _look_at_clock(self, at_s: float, wall_s: float) -> Reading:
        """`clock.jump`; periodic readers are laid out again when the clock was set."""
        jump = self._clock.update(at_s, wall_s)
        if jump.value and self._periodic is not None:
            self._periodic.lay_out_again()
        return jump

    def memory_available(self, at_s: float) -> Reading:
        """`memory.available` alone, in some tens of microseconds, for polling every 10 ms."""
        return self._memory.available(at_s)

    def watch_processes(self, pids: Iterable[int]) -> None:
        """Tells which processes are ours besides this one: the workers."""
        pids = tuple(pids)
        self._watched.watch(pids)
        self._memory.watch_processes(pids)

    def push(
        self,
        name: str,
        value: float,
        unit: Unit,
        *,
        at_s: float,
        ttl_s: float,
        low: float | None = None,
        high: float | None = None,
    ) -> Reading:
        """Takes in a value that someone pushed (see `PushedSignals.push`).

        Raises:
            UsageError: If name, value, unit or time to live can't be.
        """
        return self._pushed.push(name, value, unit, at_s, ttl_s, low, high)

    def unit_of(self, signal: str) -> Unit | None:
        """The unit of a signal, an owner's own included; None if it is unknown."""
        unit = unit_of(signal) or self._pushed.unit(signal)
        if unit is None:
            for entry in self.config.files:
                if check_name(entry.name) == signal:
                    return entry.unit
        return unit

    def attach(self, scheduler: Scheduler) -> None:
        """Has the slow periodic sensors asked for by jobs on an APScheduler scheduler.

        Without this they are asked for by the ticks, which serves as well; call it once.
        """
        periods = self._slow.periods(SHORTEST_S)
        self._slow.leave_to_schedule(periods)
        self._periodic = PeriodicReads(scheduler, periods, self._slow.request)

    def settle(self, timeout_s: float) -> bool:
        """Waits until the reading thread has brought what the last snapshot asked for.

        Only for those who read once and end, such as `trimtab signals --json`; never in a tick.

        Returns:
            False if something hangs.
        """
        return self._slow.settle(timeout_s)

    @property
    def hung(self) -> tuple[str, ...]:
        """Files whose reads don't come back."""
        return self._slow.hung

    def close(self) -> None:
        """Closes all files and lets the reading thread end."""
        if self._periodic is not None:
            self._periodic.stop()
            self._periodic = None
        self._slow.close()
        for source in self._fast.values():
            source.close()


def _guarded(source: FastSource, at_s: float) -> list[Reading]:
    """Reads one source; the supervising catch-all, so that one bad sensor never ends the tick."""
    try:
        readings = list(source.read(at_s))
    except Exception as error:
        return unreadable(source.signals, at_s, error)
    told = {reading.signal for reading in readings}
    untold = [signal for signal in source.signals if signal not in told]
    if untold:
        readings += missing(untold, at_s, Quality.ABSENT, "this machine doesn't have it")
    return readings


def plausible(reading: Reading) -> Reading:
    """The reading, marked as suspect if its value is outside of what the signal can be."""
    value, spec = reading.value, SIGNALS.get(reading.signal)
    if value is None or spec is None or reading.quality is not Quality.GOOD:
        return reading
    low, high = spec.low, spec.high
    if (low is None or value >= low) and (high is None or value <= high):
        return reading
    bounds = f"{low if low is not None else '-∞'} to {high if high is not None else '∞'}"
    return Reading(
        reading.signal,
        value,
        reading.at_s,
        Quality.SUSPECT,
        f"{value:g} is outside the plausible {bounds}",
    )
