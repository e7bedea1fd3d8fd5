"""What the sensors are told: where to read, which board this is, which files hold numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trimtab.domain.readings import Unit
from trimtab.sensors.source import Roots


@dataclass(frozen=True, slots=True)
class NumberFile:
    """A number that someone else keeps in a file, as a signal ``custom.NAME``.

    Attributes:
        name: The signal's name without ``custom.``.
        path: The file; its first word is the number.
        unit: Of the signal, after scaling.
        scale: What the number is multiplied by: 0.001 for millidegrees.
        low: Least plausible value after scaling.
        high: Greatest plausible value after scaling.
        period_s: How often it is read.
    """

    name: str
    path: Path
    unit: Unit
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    period_s: float = 5.0


@dataclass(frozen=True, slots=True)
class SensorConfig:
    """The sensors' settings.

    Attributes:
        proc_root: Where `/proc` is; another tree for tests.
        sys_root: Where `/sys` is.
        board: A board profile's name or the path of one; None: recognised by device tree or DMI.
        state_dir: The folder whose disk is watched; None: none is.
        files: Numbers from files.
        deadline_s: How long one file of a slow sensor may take until it counts as hung.
    """

    proc_root: Path = Path("/proc")
    sys_root: Path = Path("/sys")
    board: str | None = None
    state_dir: Path | None = None
    files: tuple[NumberFile, ...] = field(default=())
    deadline_s: float = 2.0

    @property
    def roots(self) -> Roots:
        """Both roots together."""
        return Roots(self.proc_root, self.sys_root)
