"""Everything that the core remembers between two events: one immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

from trimtab.domain.actions import LongAction
from trimtab.domain.decisions import Decision
from trimtab.domain.events import Demand
from trimtab.domain.knobs import PARKED, Knob, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Snapshot
from trimtab.planner.device import DeviceModel
from trimtab.planner.doubt import Doubt
from trimtab.planner.foresight import ThermalFit
from trimtab.planner.queue_plan import Rate
from trimtab.planner.requests import Queue
from trimtab.policy.evaluate import RulesState

NEVER_S: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A variant that failed and is left out for a while.

    Attributes:
        until_s: Monotonic time of its end.
        wait_s: How long this one lasts; the next is twice as long.
        reason: For people.
    """

    until_s: float
    wait_s: float
    reason: str

    @property
    def since_s(self) -> float:
        """Monotonic time of its beginning, while it lasts."""
        return self.until_s - self.wait_s


@dataclass(frozen=True, slots=True)
class Pin:
    """What a person fixed, by whom and until when (None: until it is taken off)."""

    knobs: Mapping[Knob, str | int | float]
    until_s: float | None
    by: str


@dataclass(frozen=True, slots=True)
class Settling:
    """A decision whose effect is still to be measured.

    Attributes:
        decision: The record.
        done_s: When its last action had ended; None while one runs.
        took_s: How long they took.
        available_bytes: Memory available when it was decided.
        failed: Why an action failed; empty if none did.
        lacking: What couldn't be had though none failed.
        idle_bytes: What idle conversations held when it was decided.
        running_bytes: What running conversations held in memory.
        held_bytes: What the worker held then; None if there was none.
        kv_tokens: Tokens of running streams that were in that.
        judged: Whether its relief has been held against what was measured.
        celsius: The temperature when it was decided.
        seen_s: Engine time over which the target's variant had been observed by then.
        action: Its only action, where it runs beside those of another decision.
    """

    decision: Decision
    available_bytes: int | None
    done_s: float | None = None
    took_s: float = 0.0
    failed: str = ""
    lacking: str = ""
    idle_bytes: int = 0
    running_bytes: int = 0
    held_bytes: int | None = None
    kv_tokens: int = 0
    judged: bool = False
    celsius: float | None = None
    seen_s: float = 0.0
    action: int | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """A means against heat that is in use.

    Attributes:
        at_s: Since when.
        celsius: The temperature then.
        fit: The model of heat then: where it would have gone.
        judged: Whether what it has brought has been looked at.
    """

    at_s: float
    celsius: float
    fit: ThermalFit
    judged: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """A level that was left since it was too hot.

    Attributes:
        at_s: When.
        celsius: Where the temperature tended there.
        brought_celsius: How much cooler the next level is in the end; None while it settles.
    """

    at_s: float
    celsius: float
    brought_celsius: float | None = None


@dataclass(frozen=True, slots=True)
class Heat:
    """How far heat has pushed the point down: a ratchet.

    Attributes:
        level: 0 when cool; each level takes away one more of the hottest settings.
        changed_s: When it last moved.
        cool_since_s: Since when a level could be given back: the temperature is below the leave
            threshold, and would stay below the limit.
        tried: The means in use, by the name of their knob.
        wait_s: How long that has to last; grows when a level that was given back had to be taken
            again.
        given: When levels were given back that haven't been taken again, the last one last.
        left: Levels that were too hot, by the name of the step that was taken from there: the
            number would mean another one under other bounds.
    """

    level: int = 0
    changed_s: float = NEVER_S
    cool_since_s: float | None = None
    tried: Mapping[str, Tried] = field(default_factory=dict)
    wait_s: float = 0.0
    given: tuple[float, ...] = ()
    left: Mapping[str, Left] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """The controller's memory.

    Attributes:
        model: What is served; None without one.
        threads: Engine threads that the configuration asks for.
        point: What is really in force.
        running: What is under way and takes its time: a hand-over, parking, or a draft's load.
        waiting_for: Ids of all actions whose outcome is still to come.
        snapshot: The last tick's readings.
        demand: The last tick's workload.
        resident: Anonymous bytes of a worker just after loading, by variant, as measured here.
        doubt: How far predictions of that may be wrong.
        working: What a worker holds beyond that once it has served, by variant.
        device: The model of the device; None before there is a model.
        load_s: Load times as measured here.
        losses: Times at which a worker of a variant died, by variant.
        barren: Times at which workers of a variant died in a row without a token, by variant.
        retry_s: Before this time no worker is started in the place of one that was lost.
        lost_point: What was in force when the serving worker died; it is tried again.
        quarantine: Variants left out, and those that were until an hour ago.
        drafts_out: Variants that are left out as drafts alone, likewise.
        heat: The heat ratchet.
        rules: What the policy's rules remember, and which are in force.
        pin: A person's override.
        paused: No steps but those for memory safety.
        better_since_s: Since when the better point `better` could have been taken.
        up_wait_s: How long a better point must hold; grows when a step up had to be taken back.
        last_up_s: When the last step up was done.
        changed_s: When the point last changed.
        handovers: Times of the hand-overs of the last hour.
        wanted: A request waits while nothing is loaded.
        parked: Nothing is loaded because it was decided so, not because something failed.
        unparked_s: When something was last loaded after that.
        unpark_wait_s: How long it stays parked at least; grows when such a load is taken back.
        relieved_s: When idle KV was last given back while other actions ran.
        fall_bytes_s: How fast others took memory between the last two ticks; 0 if they didn't.
        fill_bytes_s: How fast they go on taking it: the lesser of the last two, since memory that
            is taken once is no trend.
        falls_bytes_s: The last few of those rates: a trend is what all of them show.
        settling: The decision whose outcome is still to be measured.
        beside: Relief that was decided while that one's actions ran, likewise.
        distrust: Actuators that changed nothing when they were used, by name.
        thermal: The model of heat, as far as it has been fitted.
        queue: The requests, and what past ones taught.
        rates: Speeds of the model's variants as they were known before, in the model's order, with
            the threads and the mode of drafting in force.
        shed: Requests that were refused and are in no decision record yet.
        shed_reason: Why the last of them was.
        shed_recorded_s: When refusals were last recorded.
        next_action: Number of the next action.
        next_decision: Number of the next decision.
    """

    model: ModelSpec | None = None
    threads: int = 1
    point: OperatingPoint = PARKED
    running: LongAction | None = None
    waiting_for: frozenset[int] = frozenset()
    snapshot: Snapshot | None = None
    demand: Demand = field(default_factory=Demand)
    resident: Mapping[str, int] = field(default_factory=dict)
    doubt: Doubt = field(default_factory=Doubt)
    working: Mapping[str, int] = field(default_factory=dict)
    device: DeviceModel | None = None
    load_s: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    barren: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    retry_s: float = NEVER_S
    lost_point: OperatingPoint | None = None
    quarantine: Mapping[str, Quarantine] = field(default_factory=dict)
    drafts_out: Mapping[str, Quarantine] = field(default_factory=dict)
    heat: Heat = field(default_factory=Heat)
    rules: RulesState = field(default_factory=RulesState)
    pin: Pin | None = None
    paused: bool = False
    better: OperatingPoint | None = None
    better_since_s: float = NEVER_S
    up_wait_s: float = 0.0
    last_up_s: float = NEVER_S
    changed_s: float = NEVER_S
    handovers: tuple[float, ...] = ()
    wanted: bool = False
    parked: bool = False
    unparked_s: float = NEVER_S
    unpark_wait_s: float = 0.0
    relieved_s: float = NEVER_S
    fall_bytes_s: float = 0.0
    fill_bytes_s: float = 0.0
    falls_bytes_s: tuple[float, ...] = ()
    settling: Settling | None = None
    beside: tuple[Settling, ...] = ()
    distrust: Mapping[str, Quarantine] = field(default_factory=dict)
    thermal: ThermalFit = field(default_factory=ThermalFit)
    queue: Queue = field(default_factory=Queue)
    rates: tuple[Rate, ...] = ()
    shed: int = 0
    shed_reason: str = ""
    shed_recorded_s: float = NEVER_S
    next_action: int = 1
    next_decision: int = 1


_NAMES: Final = tuple(one.name for one in fields(State))
_READ_ALL: Final = attrgetter(*_NAMES)
_WRITE: Final = {name: vars(State)[name].__set__ for name in _NAMES}
_WRITE_ALL: Final = tuple(_WRITE.values())


def changed(state: State, **values: Any) -> State:
    """``replace(state, **values)`` at less than half of its cost: it happens at every token mark.

    Raises:
        KeyError: The state has no such field.
    """
    new = object.__new__(State)
    for write, value in zip(_WRITE_ALL, _READ_ALL(state), strict=True):
        write(new, value)
    for name, value in values.items():
        _WRITE[name](new, value)
    return new
