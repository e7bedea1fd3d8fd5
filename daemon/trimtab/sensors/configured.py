"""The sensors' settings as the configuration file has them."""

from __future__ import annotations

from trimtab.config.schema import Config
from trimtab.sensors.config import NumberFile, SensorConfig


def sensor_config(config: Config) -> SensorConfig:
    """The sensors' part of the configuration, and the state directory, whose disk is watched."""
    sensors = config.sensors
    files = tuple(
        NumberFile(name, one.path, one.unit, one.scale, one.low, one.high, one.period_s)
        for name, one in sensors.custom.items()
    )
    return SensorConfig(sensors.proc_root, sensors.sys_root, sensors.board, config.state, files)
