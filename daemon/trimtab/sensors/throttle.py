"""Whether the board is being slowed down, whoever does it: kernel, firmware or the processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.board import Board, matches
from trimtab.sensors.source import Files, Roots

# Cooling devices that take speed away. A list of what counts, since most others move air or dim a
# screen, and some (TCC Offset) are never at zero.
_SLOWING: Final = (
    "*cpufreq*",
    "*devfreq*",
    "Processor",
    "intel_powerclamp",
    "*cpu-idle*",
    "*-throttle*",
    "soctherm*",
)
_FIRMWARE: Final = (
    "devices/platform/soc/soc:firmware/get_throttled",
    "devices/platform/axi/axi:firmware/get_throttled",
)
_MOST_CPUS: Final = 64
_CAP_TOLERANCE: Final = 0.98
_UNDERVOLTAGE, _CAPPED, _THROTTLED, _SOFT_LIMIT = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class FirmwareFlags:
    """What Raspberry Pi's firmware says of now; bits 16 to 19 say the same of all since boot.

    Attributes:
        undervoltage: The supply is too weak.
        cause: What slows the cores down; empty if nothing does.
    """

    undervoltage: bool
    cause: str


def parse_throttled(text: str) -> FirmwareFlags:
    """Parses `get_throttled`, a hexadecimal number; only the low bits mean now.

    Raises:
        ValueError: If it is none.
    """
    bits = int(text.strip().removeprefix("throttled="), 16)
    names = [
        name
        for bit, name in (
            (_CAPPED, "frequency capped"),
            (_THROTTLED, "throttled"),
            (_SOFT_LIMIT, "soft temperature limit"),
        )
        if bits & bit
    ]
    cause = f"firmware: {', '.join(names)}" if names else ""
    return FirmwareFlags(bool(bits & _UNDERVOLTAGE), cause)


@dataclass(frozen=True, slots=True)
class Frequencies:
    """cpufreq over all policies, in hertz.

    Attributes:
        fastest: The fastest core's frequency now; None if none tells.
        cap: The least share of its top frequency that a policy may use.
    """

    fastest: float | None
    cap: float | None


class ThrottleSensor:
    """Throttling, frequency and undervoltage.

    Args:
        roots: Where `/sys` is.
        board: Whose firmware flags there may be, and which cooling devices don't count.
    """

    signals = ("cpu.throttled", "cpu.frequency", "cpu.frequency_cap", "power.undervoltage")
    period_s = 1.0

    def __init__(self, roots: Roots, board: Board) -> None:
        self._sys = roots.sys
        self._board = board
        self._highest_cap = 0.0
        self._counts: dict[str, int] = {}

    def read(self, at_s: float, files: Files) -> list[Reading]:
        """Asks everyone who could slow the board down; one yes is enough."""
        frequencies = self._frequencies(files)
        flags = self._firmware(files)
        causes: list[str | None] = [
            self._cooling(files),
            self._cap(frequencies),
            self._counters(files),
            None if flags is None else flags.cause,
        ]
        asked = [cause for cause in causes if cause is not None]
        readings = []
        if asked:
            yes = [cause for cause in asked if cause]
            readings.append(
                Reading("cpu.throttled", float(bool(yes)), at_s, Quality.GOOD, "; ".join(yes))
            )
        undervoltage = flags.undervoltage if flags is not None else self._rpi_volt(files)
        for signal, value in (
            ("cpu.frequency", frequencies.fastest),
            ("cpu.frequency_cap", frequencies.cap),
            ("power.undervoltage", undervoltage),
        ):
            if value is not None:
                readings.append(Reading(signal, float(value), at_s))
        return readings

    def _firmware(self, files: Files) -> FirmwareFlags | None:
        for path in (*self._board.firmware, *_FIRMWARE):
            try:
                return parse_throttled(files.read(f"{self._sys}/{path}"))
            except FileNotFoundError:
                continue
            except (OSError, ValueError):
                return None  # the mailbox is busy or the kernel is too old: no news
        return None

    def _rpi_volt(self, files: Files) -> bool | None:
        """The undervoltage alarm of kernels that hide the firmware's flags; None without one."""
        folder = f"{self._sys}/class/hwmon"
        for chip in files.entries(folder):
            if _read(f"{folder}/{chip}/name", files) == "rpi_volt":
                alarm = _read(f"{folder}/{chip}/in0_lcrit_alarm", files)
                return alarm == "1" if alarm else None
        return None

    def _cooling(self, files: Files) -> str | None:
        """Which cooling devices slow something down; None if there are none of that kind."""
        folder = f"{self._sys}/class/thermal"
        active, found = [], False
        for device in files.entries(folder):
            if not device.startswith("cooling_device"):
                continue
            kind = _read(f"{folder}/{device}/type", files)
            if not matches(kind, _SLOWING) or self._board.cooling.ignored(kind):
                continue
            found = True
            state = _read(f"{folder}/{device}/cur_state", files)
            if state.isdigit() and int(state) > 0:  # intel_powerclamp idles at −1
                active.append(f"{kind} at {state}")
        return ", ".join(active) if found else None

    def _frequencies(self, files: Files) -> Frequencies:
        folder = f"{self._sys}/devices/system/cpu/cpufreq"
        now, caps = [], []
        for policy in files.entries(folder):
            if not policy.startswith("policy"):
                continue
            base = f"{folder}/{policy}"
            current = _number(f"{base}/scaling_cur_freq", files)
            limit = _number(f"{base}/scaling_max_freq", files)
            top = _number(f"{base}/cpuinfo_max_freq", files)
            if current:
                now.append(current * 1000.0)
            if limit and top:
                caps.append(min(1.0, limit / top))
        return Frequencies(max(now, default=None), min(caps, default=None))

    def _cap(self, frequencies: Frequencies) -> str | None:
        """A cap that is lower than it has been: a person's setting stays, throttling comes."""
        cap = frequencies.cap
        if cap is None:
            return None
        self._highest_cap = max(self._highest_cap, cap)
        if cap < self._highest_cap * _CAP_TOLERANCE:
            return f"frequency limited to {cap:.0%} of its top"
        return ""

    def _counters(self, files: Files) -> str | None:
        """x86 counts each throttling; None where it doesn't."""
        folder = f"{self._sys}/devices/system/cpu"
        if not _read(f"{folder}/cpu0/thermal_throttle/core_throttle_count", files):
            return None
        cpus = [name for name in files.entries(folder) if name[:3] == "cpu" and name[3:].isdigit()]
        rose = []
        for cpu in cpus[:_MOST_CPUS]:
            for which in ("core", "package"):
                path = f"{folder}/{cpu}/thermal_throttle/{which}_throttle_count"
                count = _number(path, files)
                if count is None:
                    continue
                if count > self._counts.get(path, count):
                    rose.append(which)
                self._counts[path] = count
        return f"{' and '.join(sorted(set(rose)))} throttle count rises" if rose else ""


def _read(path: str, files: Files) -> str:
    """The file's text; empty if it can't be read: other causes are asked all the same."""
    try:
        return files.read(path).strip()
    except OSError:
        return ""


def _number(path: str, files: Files) -> int | None:
    text = _read(path, files)
    return int(text) if text.isdigit() else None
