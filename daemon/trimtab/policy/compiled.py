"""A compiled policy: immutable values in base units, everything checked. The core sees only this.

Made by `policy.compile` from YAML. Ratios are 0–1, times are seconds, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trimtab.domain.knobs import KvPlacement


class Corner(StrEnum):
    """The corners of the triangle; a policy protects two and gives up some of the third."""

    LATENCY = "latency"
    MEMORY = "memory"
    ACCURACY = "accuracy"


class Carry(StrEnum):
    """How a stream crosses to another worker."""

    KV = "kv"
    REPLAY = "replay"


class Share(StrEnum):
    """Between whom a cached prefix may be shared."""

    USER = "user"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objectives over a window; None where the policy has none."""

    ttft_p95_s: float | None
    tpot_p95_s: float | None
    window_s: float


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Available memory stays above ``headroom_bytes``; a step up must leave ``leave_bytes``."""

    headroom_bytes: int
    leave_bytes: int


@dataclass(frozen=True, slots=True)
class TemperatureLimit:
    """Step down at ``enter_celsius``, up again below ``leave_celsius``."""

    enter_celsius: float
    leave_celsius: float


@dataclass(frozen=True, slots=True)
class Floor:
    """What the policy never goes below (short of parking)."""

    quality_ratio: float
    context: int


@dataclass(frozen=True, slots=True)
class Window:
    """What happens at the end of the context: refuse, or shift and keep ``keep`` tokens.

    ``keep`` is None for the whole system prompt.
    """

    shift: bool
    keep: int | None


@dataclass(frozen=True, slots=True)
class KnobBounds:
    """Within what each knob may move. Empty ``variants`` means every variant of the model."""

    variants: tuple[str, ...]
    context_min: int
    context_max: int
    window: Window
    speculation: tuple[str, ...]
    kv_placement: tuple[KvPlacement, ...]
    threads_min: int
    threads_max: int | None
    pace_min_ratio: float
    pace_max_ratio: float


@dataclass(frozen=True, slots=True)
class Tightening:
    """What one rule in force demands of the knobs; None leaves a knob as it is."""

    variants: frozenset[str] | None = None
    context_at_most: int | None = None
    context_at_least: int | None = None
    speculation: frozenset[str] | None = None
    kv_placement: frozenset[KvPlacement] | None = None
    threads_at_most: int | None = None
    threads_at_least: int | None = None
    pace_at_most_ratio: float | None = None
    pace_at_least_ratio: float | None = None


class Comparison(StrEnum):
    """Which side of the threshold makes a condition true."""

    ABOVE = "above"
    BELOW = "below"
    RISING = "rising"  # the signal's slope, per second, is above the threshold
    FALLING = "falling"  # the slope is below minus the threshold


@dataclass(frozen=True, slots=True)
class SignalCondition:
    """A threshold on a signal, or on its slope.

    Attributes:
        signal: The signal's name.
        comparison: Which side counts.
        threshold: In the signal's unit (per second for a slope).
        for_s: How long it must hold without a break.
        window_s: Over how long a slope is taken; 0 for a plain threshold.
        path: Where it stands in the file, for records.
    """

    signal: str
    comparison: Comparison
    threshold: float
    for_s: float
    window_s: float
    path: str


@dataclass(frozen=True, slots=True)
class AllOf:
    """True if every part is."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True if some part is."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True if the part is false; unknown stays unknown."""

    part: Condition


@dataclass(frozen=True, slots=True)
class BetweenTimes:
    """True between two wall-clock times of the day, in minutes since midnight; may cross it."""

    start_min: int
    end_min: int


Condition = SignalCondition | AllOf | AnyOf | Not | BetweenTimes


@dataclass(frozen=True, slots=True)
class Rule:
    """When a condition has come true its tightening holds until ``leave`` has come true."""

    name: str
    when: Condition
    leave: Condition
    then: Tightening


@dataclass(frozen=True, slots=True)
class Stability:
    """How much the controller may move."""

    dwell_s: float
    cooldown_s: float
    switches_per_hour: int


@dataclass(frozen=True, slots=True)
class Handover:
    """How streams cross to another worker, for each direction, and how long they may be held."""

    down: Carry
    up: Carry
    hold_max_s: float


@dataclass(frozen=True, slots=True)
class Admission:
    """How many requests may wait and run, and for how long."""

    queue: int
    max_wait_s: float
    conversations: int
    priorities: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class KvPolicy:
    """The KV budget; None for the pool means what the memory limit leaves."""

    pool_bytes: int | None
    disk_quota_bytes: int
    writes_per_day_bytes: int
    share: Share


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """Another policy from each time that a cron expression gives, for ``for_s`` seconds.

    Cron goes by wall-clock time, in ``timezone`` or, if that is None, in the device's own.
    """

    cron: str
    policy: str
    timezone: str | None
    for_s: float


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy, compiled.

    Attributes:
        name: Its name, unique in a folder.
        revision: Content hash of everything that it was made of, 12 hex digits.
        protect: The two protected corners, most important first.
        sacrifice: The third.
    """

    name: str
    revision: str
    description: str
    protect: tuple[Corner, Corner]
    sacrifice: Corner
    slo: Slo
    memory: MemoryLimit | None
    temperature: TemperatureLimit | None
    floor: Floor
    knobs: KnobBounds
    rules: tuple[Rule, ...]
    stability: Stability
    handover: Handover
    admission: Admission
    kv: KvPolicy
    schedule: tuple[ScheduleEntry, ...] = ()
