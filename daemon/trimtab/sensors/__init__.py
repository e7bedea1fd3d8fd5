"""Sensors: one file per source, all behind `SensorSuite`."""

from trimtab.sensors.config import NumberFile, SensorConfig
from trimtab.sensors.suite import SensorSuite

__all__ = ["NumberFile", "SensorConfig", "SensorSuite"]
