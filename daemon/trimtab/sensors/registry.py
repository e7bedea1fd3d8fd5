"""All sensors. Adding one is a file, a line here, a fixture and its signals in the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trimtab.sensors.board import Board
from trimtab.sensors.config import SensorConfig
from trimtab.sensors.cpu import CpuSensor
from trimtab.sensors.disk import DiskSensor
from trimtab.sensors.gpu import GpuSensor
from trimtab.sensors.memory import MemorySensor
from trimtab.sensors.paging import PagingSensor
from trimtab.sensors.power import PowerSensor
from trimtab.sensors.processes import ProcessSensor, Watched
from trimtab.sensors.psi import PressureSensor
from trimtab.sensors.source import FastSource, Roots, SlowSource
from trimtab.sensors.thermal import ThermalSensor
from trimtab.sensors.throttle import ThrottleSensor
from trimtab.sensors.zram import ZramSensor


@dataclass(frozen=True, slots=True)
class Setting:
    """What a sensor is made from."""

    config: SensorConfig
    board: Board
    watched: Watched

    @property
    def roots(self) -> Roots:
        """Where `/proc` and `/sys` are."""
        return self.config.roots


FAST_SENSORS: Final[dict[str, Callable[[Setting], FastSource]]] = {
    "memory": lambda setting: MemorySensor(setting.roots),
    "psi": lambda setting: PressureSensor(setting.roots),
    "cpu": lambda setting: CpuSensor(setting.roots, setting.watched),
    "paging": lambda setting: PagingSensor(setting.roots),
}

SLOW_SENSORS: Final[dict[str, Callable[[Setting], SlowSource]]] = {
    "thermal": lambda setting: ThermalSensor(setting.roots, setting.board),
    "throttle": lambda setting: ThrottleSensor(setting.roots, setting.board),
    "gpu": lambda setting: GpuSensor(setting.roots, setting.board),
    "power": lambda setting: PowerSensor(setting.roots, setting.board),
    "zram": lambda setting: ZramSensor(setting.roots),
    "processes": lambda setting: ProcessSensor(setting.roots, setting.watched),
    "disk": lambda setting: DiskSensor(setting.roots, setting.config.state_dir),
}
