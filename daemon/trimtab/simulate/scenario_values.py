"""Values of scenarios: the device, what happens to it, and what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.decisions import Decision
from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.policy.compiled import Policy

START_S: Final = 1000.0
"""Simulated monotonic time at the start; no test may depend on it being zero."""


@dataclass(frozen=True, slots=True)
class Device:
    """What stands under the policy.

    Attributes:
        model: With speeds as they are on this device.
        memory_bytes: All of its memory.
        others_bytes: What everything else holds at the start.
        threads: Engine threads.
        rest_celsius: Temperature when idle; None without a sensor.
        full_celsius: Temperature under load at full pace.
        heat_s: Time constant.
    """

    model: ModelSpec
    memory_bytes: float
    others_bytes: float
    threads: int = 1
    rest_celsius: float | None = None
    full_celsius: float = 0.0
    heat_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Happening:
    """What happens at one time; see `scenario_schema.EventFile`."""

    at_s: float
    over_s: float = 0.0
    others_bytes: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    every_s: float | None = None
    stop_requests: bool = False
    prompt: int = 0
    answer: int = 0
    crash: bool = False
    fails: frozenset[str] | None = None
    pin: Mapping[Knob, str | int | float] | None = None
    unpin: bool = False
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What was so after one tick; times are from the scenario's start."""

    at_s: float
    point: OperatingPoint
    available_bytes: float
    celsius: float | None
    rules: tuple[str, ...]
    running: int
    waiting: int
    refused: int
    answered: int
    loading: str = ""

    @property
    def parked(self) -> bool:
        """True if nothing is loaded, and nothing is being loaded either."""
        return self.point.parked and not self.loading

    def describe(self) -> str:
        """What is in force, in words."""
        if not self.loading:
            return self.point.describe()
        return f"loading {self.loading}" if self.point.parked else self.point.describe()


@dataclass(slots=True)
class Trace:
    """Everything that a scenario's run left behind."""

    policy: Policy
    memory_bytes: float
    samples: list[Sample] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    happenings: list[tuple[float, str]] = field(default_factory=list)
    start_s: float = START_S
