"""All sensors. Adding one is a file, a line here, a fixture and its signals in the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trimtab.sensors.board import Board
from trimtab.sensors.config import SensorConfig
from trimtab.sensors.memory import MemorySensor
from trimtab.sensors.psi import PressureSensor
from trimtab.sensors.source import FastSource, Roots, SlowSource
from trimtab.sensors.thermal import ThermalSensor


@dataclass(frozen=True, slots=True)
class Setting:
    """What a sensor is made from."""

    config: SensorConfig
    board: Board

    @property
    def roots(self) -> Roots:
        """Where `/proc` and `/sys` are."""
        return self.config.roots


FAST_SENSORS: Final[dict[str, Callable[[Setting], FastSource]]] = {
    "memory": lambda setting: MemorySensor(setting.roots),
    "psi": lambda setting: PressureSensor(setting.roots),
}

SLOW_SENSORS: Final[dict[str, Callable[[Setting], SlowSource]]] = {
    "thermal": lambda setting: ThermalSensor(setting.roots, setting.board),
}
