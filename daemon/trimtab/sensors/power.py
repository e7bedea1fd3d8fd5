"""Mains, battery, and what processor and board draw."""

from __future__ import annotations

from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.board import Board, matches
from trimtab.sensors.source import Files, Roots, explain
from trimtab.signals.estimators import Rate

_MICRO: Final = 1e-6
_MAINS: Final = frozenset({"Mains", "USB", "UPS", "Wireless"})


class PowerSensor:
    """Power supplies, RAPL and the rails that the board profile names.

    Args:
        roots: Where `/sys` is.
        board: Which rails carry the whole board.
    """

    signals = ("power.mains", "power.battery", "power.package", "power.board")
    period_s = 5.0

    def __init__(self, roots: Roots, board: Board) -> None:
        self._sys = roots.sys
        self._board = board
        self._energy: dict[str, Rate] = {}

    def read(self, at_s: float, files: Files) -> list[Reading]:
        """All that this machine has of it."""
        supplies = self._supplies(files)
        readings = [
            Reading(signal, value, at_s)
            for signal, value in (
                ("power.mains", _mains(supplies)),
                ("power.battery", _charge(supplies)),
            )
            if value is not None
        ]
        package = self._package(at_s, files)
        if package is not None:
            readings.append(package)
        board = self._rails(files)
        if board is None:
            board = _discharge(supplies)
        if board is not None:
            readings.append(Reading("power.board", board, at_s))
        return readings

    def _supplies(self, files: Files) -> list[dict[str, str]]:
        """The machine's own supplies as their files say; those of mice and pens are left out."""
        folder = f"{self._sys}/class/power_supply"
        supplies = []
        for name in files.entries(folder):
            supply = {}
            for key in (
                "type",
                "scope",
                "online",
                "capacity",
                "status",
                "power_now",
                "current_now",
                "voltage_now",
            ):
                try:
                    supply[key] = files.read(f"{folder}/{name}/{key}").strip()
                except OSError:
                    continue
            if supply.get("scope") != "Device":
                supplies.append(supply)
        return supplies

    def _package(self, at_s: float, files: Files) -> Reading | None:
        """RAPL: energy of the packages as power; subzones are in them already."""
        folder = f"{self._sys}/class/powercap"
        total, told = 0.0, False
        waiting = False
        for zone in files.entries(folder):
            if not zone.startswith("intel-rapl:") or zone.count(":") != 1:
                continue
            try:
                if not files.read(f"{folder}/{zone}/name").startswith("package"):
                    continue
                energy = int(files.read(f"{folder}/{zone}/energy_uj"))
                wraps_at = int(files.read(f"{folder}/{zone}/max_energy_range_uj"))
            except PermissionError:
                reason = "energy_uj is readable by root only; give the daemon's user read access"
                return Reading("power.package", None, at_s, Quality.ABSENT, reason)
            except (OSError, ValueError) as error:
                quality, reason = explain(error)
                return Reading("power.package", None, at_s, quality, reason)
            rate = self._energy.setdefault(zone, Rate(wraps_at=wraps_at)).add(at_s, energy)
            if rate is None:
                waiting = True
            else:
                total, told = total + rate * _MICRO, True
        if waiting:
            return Reading("power.package", None, at_s, Quality.ABSENT, "needs a second reading")
        return Reading("power.package", total, at_s) if told else None

    def _rails(self, files: Files) -> float | None:
        """Sum of the named hwmon rails in watts; None if there are none."""
        if not self._board.rails:
            return None
        folder = f"{self._sys}/class/hwmon"
        total, found = 0.0, False
        for chip in files.entries(folder):
            base = f"{folder}/{chip}"
            try:
                name = files.read(f"{base}/name").strip()
            except OSError:
                continue
            for entry in files.entries(base):
                if entry.startswith("in") and entry.endswith("_label"):
                    watts = self._rail(name, base, entry[2 : -len("_label")], files)
                    if watts is not None:
                        total, found = total + watts, True
        return total if found else None

    def _rail(self, chip: str, base: str, number: str, files: Files) -> float | None:
        """One rail: its own power file, or millivolts times milliamperes."""
        try:
            label = files.read(f"{base}/in{number}_label").strip()
            if not matches(f"{chip}/{label}", self._board.rails):
                return None
            volts = int(files.read(f"{base}/in{number}_input")) / 1000
            return volts * int(files.read(f"{base}/curr{number}_input")) / 1000
        except (OSError, ValueError):
            return None


def _mains(supplies: list[dict[str, str]]) -> float | None:
    """1 if any mains supply is on; None if the machine has none to tell and no battery."""
    states = [s.get("online") for s in supplies if s.get("type") in _MAINS and "online" in s]
    if states:
        return float(any(state not in {"0", None} for state in states))
    batteries = [s.get("status") for s in supplies if s.get("type") == "Battery"]
    return float("Discharging" not in batteries) if batteries else None


def _charge(supplies: list[dict[str, str]]) -> float | None:
    """The emptiest battery's charge, 0 to 1."""
    charges = [
        int(s["capacity"]) / 100
        for s in supplies
        if s.get("type") == "Battery" and s.get("capacity", "").isdigit()
    ]
    return min(charges, default=None)


def _discharge(supplies: list[dict[str, str]]) -> float | None:
    """Watts that discharging batteries give, told as negative by some; None if none does."""
    watts = []
    for supply in supplies:
        if supply.get("type") != "Battery" or supply.get("status") != "Discharging":
            continue
        try:
            if "power_now" in supply:
                watts.append(abs(int(supply["power_now"])) * _MICRO)
            elif "current_now" in supply and "voltage_now" in supply:
                amperes = abs(int(supply["current_now"])) * _MICRO
                watts.append(amperes * int(supply["voltage_now"]) * _MICRO)
        except ValueError:
            continue
    return sum(watts) if watts else None
