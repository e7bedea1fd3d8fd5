"""What surrounds the daemon in a scenario: other tenants' memory, heat, and signals as told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.readings import Quality, Reading, Snapshot
from trimtab.simulate.scenario_values import Device, Happening

SMALLEST_WARMTH: Final = 0.7
"""How warm the smallest variant makes the board, as a share of what the biggest one does."""


@dataclass(slots=True)
class _Ramp:
    """A value on its way."""

    value: float
    goal: float = 0.0
    rate: float = 0.0

    def aim(self, goal: float, over_s: float) -> None:
        if over_s <= 0:
            self.value, self.rate = goal, 0.0
        else:
            self.goal, self.rate = goal, (goal - self.value) / over_s

    def advance(self, elapsed_s: float) -> None:
        if not self.rate:
            return
        self.value += self.rate * elapsed_s
        if (self.value - self.goal) * self.rate >= 0:
            self.value, self.rate = self.goal, 0.0


class Environment:
    """The device around the daemon.

    Args:
        device: As it is at the start.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._others = _Ramp(device.others_bytes)
        self._signals: dict[str, _Ramp] = {}
        self._absent: set[str] = set()
        self._celsius = device.rest_celsius

    @property
    def moving(self) -> bool:
        """True while something is on its way."""
        return bool(self._others.rate) or any(ramp.rate for ramp in self._signals.values())

    @property
    def free_bytes(self) -> float:
        """Memory that nothing but the daemon holds."""
        return self._device.memory_bytes - self._others.value

    @property
    def celsius(self) -> float | None:
        """The temperature as it can be read."""
        if "temperature.max" in self._absent:
            return None
        told = self._signals.get("temperature.max")
        return told.value if told is not None else self._celsius

    def apply(self, event: Happening) -> list[str]:
        """Let something happen; what it was, in words."""
        notes: list[str] = []
        over = f" over {event.over_s:g} s" if event.over_s else ""
        if event.others_bytes is not None:
            self._others.aim(event.others_bytes, event.over_s)
            notes.append(f"others take {event.others_bytes / 2**20:.0f} MiB{over}")
        for name, value in event.values.items():
            ramp = self._signals.get(name)
            if ramp is None:
                begin = self._celsius if name == "temperature.max" else None
                ramp = self._signals[name] = _Ramp(begin if begin is not None else value)
            ramp.aim(value, event.over_s)
            self._absent.discard(name)
            notes.append(f"{name} is {value:g}{over}")
        if event.absent:
            self._absent.update(event.absent)
            notes.append(f"can't be read: {', '.join(event.absent)}")
        return notes

    def advance(self, elapsed_s: float, busy: float, point: OperatingPoint) -> None:
        """Let time pass.

        Args:
            elapsed_s: How much.
            busy: Share of it in which the engine worked.
            point: What was loaded.
        """
        self._others.advance(elapsed_s)
        for ramp in self._signals.values():
            ramp.advance(elapsed_s)
        rest = self._device.rest_celsius
        if self._celsius is not None and rest is not None:
            rise = (self._device.full_celsius - rest) * busy * point.pace_ratio
            goal = rest + rise * self._warmth(point)
            self._celsius += (goal - self._celsius) * min(1.0, elapsed_s / self._device.heat_s)

    def snapshot(
        self, at_s: float, available_bytes: float, latency: Mapping[str, float | None]
    ) -> Snapshot:
        """What the sensors say: what follows from the device, unless a scenario says otherwise."""
        values: dict[str, float | None] = {
            "memory.available": available_bytes,
            "memory.total": self._device.memory_bytes,
            "temperature.max": self._celsius,
            **latency,
        }
        values |= {name: ramp.value for name, ramp in self._signals.items()}
        readings = {
            name: Reading(name, value, at_s) for name, value in values.items() if value is not None
        }
        for name in self._absent:
            readings[name] = Reading(name, None, at_s, Quality.ABSENT, "as the scenario says")
        return Snapshot(at_s, readings)

    def _warmth(self, point: OperatingPoint) -> float:
        """How warm a variant makes the board: the biggest one fully, smaller ones less."""
        variant = self._device.model.variant(point.variant or "")
        if variant is None:
            return 0.0
        biggest = max(one.weights_bytes for one in self._device.model.variants)
        return SMALLEST_WARMTH + (1 - SMALLEST_WARMTH) * variant.weights_bytes / biggest
