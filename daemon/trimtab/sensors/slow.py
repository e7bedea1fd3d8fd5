"""Sensors that may be slow or hang, read in a thread of their own.

One thread reads them in turn. If a single file keeps it past the deadline, that file is marked as
hung, the thread is left to it, and another goes on with the rest: one dead zone silences nobody
else. When the hung read comes back, its file is taken in again. A few threads may be lost that way
at a time; then the readings just grow old, and say so.

The tick owns all state here. The threads get tasks and give results through queues, and no clock:
how long a read takes is judged from the times of the ticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.reading_thread import ReadingThread, Result
from trimtab.sensors.source import SlowSource, missing

_MOST_LOST_THREADS: Final = 8
_PERIODS_UNTIL_STALE: Final = 3
_PERIODS_UNASKED: Final = 2
_ABSENT_READS: Final = 2
"""After so many reads that found nothing, this machine doesn't have it (a rate needs two reads)."""

_ABSENT_S: Final = 30.0
"""How often to look for what this machine doesn't have: a fan hat or a USB battery may come."""

_SETTLE_STEP_S: Final = 0.05


@dataclass(slots=True)
class _Lane:
    """What the tick knows about one source.

    Attributes:
        source: The source.
        asked_s: Since when a read is under way; None while none is.
        due_s: When the tick asks for it.
        absent: How many reads in a row found nothing.
        gap_s: Time between the last two reads: a daemon at rest asks less often than could be.
        scheduled: Somebody else asks for it, the tick only if that fails.
        read_s: When what is known was asked for.
        readings: What is known.
    """

    source: SlowSource
    asked_s: float | None = None
    due_s: float = float("-inf")
    absent: int = 0
    gap_s: float = 0.0
    scheduled: bool = False
    read_s: float | None = None
    readings: tuple[Reading, ...] = ()

    def take(self, result: Result) -> None:
        """What a read brought, and when the next one is due."""
        absent = all(reading.quality is Quality.ABSENT for reading in result.readings)
        self.absent = self.absent + 1 if absent else 0
        self.gap_s = 0.0 if self.read_s is None else result.at_s - self.read_s
        self.asked_s = None
        self.read_s = result.at_s
        self.readings = result.readings
        self.due_s = result.at_s + self.wait_s

    @property
    def lacking(self) -> bool:
        """True if this machine doesn't have it, as far as its last reads say."""
        return self.absent >= _ABSENT_READS

    @property
    def wait_s(self) -> float:
        """Until the tick asks for it again."""
        periods = _PERIODS_UNASKED if self.scheduled else 1
        return max(_ABSENT_S if self.lacking else 0.0, periods * self.source.period_s)

    @property
    def fresh_s(self) -> float:
        """For how long its readings count, besides what a read may take.

        Somebody else's schedule is no excuse: what it asks for too late is stale.
        """
        often_s = _ABSENT_S if self.lacking else self.source.period_s
        return _PERIODS_UNTIL_STALE * max(often_s, self.source.period_s, self.gap_s)


@dataclass(slots=True)
class _Watch:
    """The step that the thread was seen in, and since when."""

    what: str | None = None
    steps: int = -1
    since_s: float = 0.0


@dataclass(slots=True)
class SlowReader:
    """Reads slow sources aside from the tick.

    Args:
        sources: By name.
        deadline_s: After how long in one file a read counts as hung.
    """

    sources: Mapping[str, SlowSource]
    deadline_s: float
    _lanes: dict[str, _Lane] = field(init=False)
    _hung: dict[str, ReadingThread] = field(init=False, default_factory=dict)
    _results: SimpleQueue[Result] = field(init=False, default_factory=SimpleQueue)
    _requests: SimpleQueue[str] = field(init=False, default_factory=SimpleQueue)
    _worker: ReadingThread | None = field(init=False, default=None)
    _watch: _Watch = field(init=False, default_factory=_Watch)

    def __post_init__(self) -> None:
        self._lanes = {name: _Lane(source) for name, source in self.sources.items()}

    @property
    def busy(self) -> bool:
        """True while something that was asked for hasn't come back, hung files aside."""
        return any(lane.asked_s is not None for lane in self._lanes.values())

    @property
    def hung(self) -> tuple[str, ...]:
        """Files whose reads don't come back."""
        return tuple(self._hung)

    def periods(self, shortest_s: float) -> dict[str, float]:
        """The periods of the sources that are read no more often than this, by name."""
        return {
            name: source.period_s
            for name, source in self.sources.items()
            if source.period_s >= shortest_s
        }

    def leave_to_schedule(self, names: Iterable[str]) -> None:
        """These sources are asked for by `request` from now on."""
        for name in names:
            self._lanes[name].scheduled = True

    def request(self, name: str) -> None:
        """Has a source read at the next tick even if it isn't due, unless this machine lacks it.

        Safe from any thread.
        """
        self._requests.put(name)

    def take(self, at_s: float) -> None:
        """Takes in what was read and notices what hangs; at the beginning of a tick."""
        self._take_results()
        self._notice_hang(at_s)

    def ask(self, at_s: float) -> None:
        """Asks for what is due; at the end of a tick, so that the thread doesn't compete with it.

        All that is due is asked for at once: the thread is woken once a tick, not once a source.
        """
        while not self._requests.empty():
            lane = self._lanes[self._requests.get()]
            if not lane.lacking:
                lane.due_s = at_s
        lanes = self._lanes.items()
        due = [name for name, lane in lanes if lane.asked_s is None and at_s >= lane.due_s]
        if due:
            self._ask(due, at_s)

    def _ask(self, names: list[str], at_s: float) -> None:
        if self._worker is None:
            if len(self._hung) >= _MOST_LOST_THREADS:
                return
            self._worker = ReadingThread(self.sources, self._hung, self._results)
        for name in names:
            lane = self._lanes[name]
            lane.asked_s = at_s
        self._worker.tasks.put(tuple((name, at_s) for name in names))

    def _take_results(self) -> None:
        while not self._results.empty():
            result = self._results.get()
            self._lanes[result.name].take(result)

    def _notice_hang(self, at_s: float) -> None:
        for path, worker in list(self._hung.items()):
            if not worker.thread.is_alive():
                del self._hung[path]
        worker_now = self._worker
        if worker_now is None:
            return
        if not worker_now.thread.is_alive():
            self._replace()
            return
        what, steps = worker_now.current, worker_now.steps
        if what is None or (what, steps) != (self._watch.what, self._watch.steps):
            self._watch = _Watch(what, steps, at_s)
        elif at_s - self._watch.since_s >= self.deadline_s:
            worker_now.abandoned = True
            self._hung[what] = worker_now
            self._replace()

    def _replace(self) -> None:
        """Drops the thread; whatever it had been asked is asked again of the next one."""
        self._worker = None
        for lane in self._lanes.values():
            if lane.asked_s is not None:
                lane.asked_s = None
                lane.due_s = float("-inf")

    def settle(self, timeout_s: float) -> bool:
        """Waits until the thread has brought all that was asked for, or hangs; for one-off reads.

        Args:
            timeout_s: How long at most.

        Returns:
            Whether everything came.
        """
        while self.busy and timeout_s > 0:
            try:
                result = self._results.get(timeout=min(timeout_s, _SETTLE_STEP_S))
            except Empty:
                timeout_s -= _SETTLE_STEP_S
            else:
                self._lanes[result.name].take(result)
        return not self.busy

    def readings(self, at_s: float) -> Iterator[Reading]:
        """The latest readings of all sources; those that are too old are marked as stale."""
        for lane in self._lanes.values():
            if lane.read_s is None:
                yield from missing(
                    lane.source.signals, at_s, Quality.STALE, "not read yet; the sensor is slow"
                )
                continue
            age_s = at_s - lane.read_s
            if age_s <= lane.fresh_s + self.deadline_s:
                yield from lane.readings
            else:
                yield from (_stale(reading, age_s) for reading in lane.readings)

    def close(self) -> None:
        """Lets the thread end; hung ones die with the process."""
        if self._worker is not None:
            self._worker.tasks.put(None)
            self._worker.thread.join(timeout=self.deadline_s)
            self._worker = None


def _stale(reading: Reading, age_s: float) -> Reading:
    if reading.value is None:
        return reading
    return Reading(
        reading.signal,
        reading.value,
        reading.at_s,
        Quality.STALE,
        f"last read {age_s:.0f} s ago; the sensor doesn't answer in time",
    )
