"""GPUs: by sysfs where the board has one, by NVML where its library is installed; else absent."""

from __future__ import annotations

import importlib
from typing import Any, Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.board import Board
from trimtab.sensors.files import read_once
from trimtab.sensors.meminfo import parse_meminfo
from trimtab.sensors.source import Files, Roots

_NVIDIA: Final = "driver/nvidia/version"  # below /proc: the driver is loaded


class GpuSensor:
    """Load, free memory and temperature of GPUs.

    Args:
        roots: Where `/proc` and `/sys` are.
        board: Where the GPU's load is, and whether it shares the machine's memory.
    """

    signals = ("gpu.busy", "gpu.memory.free", "gpu.temperature")
    period_s = 2.0

    def __init__(self, roots: Roots, board: Board) -> None:
        self._roots = roots
        self._board = board
        self._nvml: Any = None
        self._nvml_reason = ""

    def read(self, at_s: float, files: Files) -> list[Reading]:
        """What the first source that is there says."""
        load = self._board_load(files)
        if self._board.unified_memory:
            return self._unified(load, at_s)
        amd = self._amd(at_s, files)
        if amd:
            return amd
        if load is not None:
            return [Reading("gpu.busy", load, at_s)]
        return self._nvidia(at_s, files)

    def _board_load(self, files: Files) -> float | None:
        """The load file that the board profile names; devfreq writes ``LOAD@FREQUENCYHz``."""
        for path in self._board.gpu_load:
            try:
                text = files.read(f"{self._roots.sys}/{path}")
                return int(text.split("@")[0]) / self._board.gpu_load_full
            except (OSError, ValueError):
                continue
        return None

    def _unified(self, load: float | None, at_s: float) -> list[Reading]:
        """A GPU without memory of its own: MemAvailable, not MemFree, is what it could have."""
        info = parse_meminfo(read_once(f"{self._roots.proc}/meminfo"))
        reason = "shares the machine's memory"
        free = float(info.available_bytes)
        readings = [Reading("gpu.memory.free", free, at_s, Quality.GOOD, reason)]
        if load is not None:
            readings.append(Reading("gpu.busy", load, at_s))
        return readings

    def _amd(self, at_s: float, files: Files) -> list[Reading]:
        """The files of amdgpu; the busiest card and the one with the most room."""
        folder = f"{self._roots.sys}/class/drm"
        busy, free = [], []
        for card in files.entries(folder):
            if not card.startswith("card") or "-" in card:
                continue
            base = f"{folder}/{card}/device"
            try:
                busy.append(int(files.read(f"{base}/gpu_busy_percent")) / 100)
                total = int(files.read(f"{base}/mem_info_vram_total"))
                free.append(total - int(files.read(f"{base}/mem_info_vram_used")))
            except (OSError, ValueError):
                continue
        readings = [Reading("gpu.busy", max(busy), at_s)] if busy else []
        if free:
            readings.append(Reading("gpu.memory.free", float(max(free)), at_s))
        return readings

    def _nvidia(self, at_s: float, files: Files) -> list[Reading]:
        """NVML, if the driver is loaded; without the optional package it says which one to add."""
        try:
            files.read(f"{self._roots.proc}/{_NVIDIA}")
        except OSError:
            return []
        nvml = self._load_nvml()
        if nvml is None:
            return [
                Reading(signal, None, at_s, Quality.ABSENT, self._nvml_reason)
                for signal in self.signals
            ]
        return nvml_readings(nvml, at_s)

    def _load_nvml(self) -> Any:
        if self._nvml is None and not self._nvml_reason:
            try:
                nvml = importlib.import_module("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
            except ImportError:
                self._nvml_reason = "pip install 'trimtab[nvidia]' to read NVIDIA GPUs"
            except Exception as error:  # whatever the library raises, it means: no NVML here
                self._nvml_reason = f"NVML: {error}"
        return self._nvml


def nvml_readings(nvml: Any, at_s: float) -> list[Reading]:
    """Readings from an initialised NVML module.

    Args:
        nvml: The `pynvml` module, or one with the same functions.
        at_s: The time.
    """
    devices = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if not devices:
        return []
    busy = max(nvml.nvmlDeviceGetUtilizationRates(device).gpu for device in devices) / 100
    free = max(nvml.nvmlDeviceGetMemoryInfo(device).free for device in devices)
    celsius = max(
        nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU) for device in devices
    )
    return [
        Reading("gpu.busy", busy, at_s),
        Reading("gpu.memory.free", float(free), at_s),
        Reading("gpu.temperature", float(celsius), at_s),
    ]
