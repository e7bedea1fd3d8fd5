"""What a check looks at, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trimtab.domain.readings import Reading, Snapshot
from trimtab.sensors.board import Board, Identity
from trimtab.sensors.source import Roots


class Level(StrEnum):
    """How a check came out."""

    GOOD = "good"
    NOTE = "note"  # something is missing that trimtab does without
    WARNING = "warning"  # it works, and less well than it could
    BAD = "bad"  # trimtab can't do its job here


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says.

    Attributes:
        check: The check's name.
        level: How it came out.
        says: What is so, in a sentence.
        todo: What to do about it, as a sentence or a command; empty if nothing.
    """

    check: str
    level: Level
    says: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What checks look at.

    Attributes:
        snapshot: The sensors' readings, settled.
        board: The board profile in force.
        identity: What the machine says that it is.
        roots: Where `/proc` and `/sys` are; probes that try things run on the real ones only.
        state_dir: The state directory; it need not exist.
        model_dirs: Where models are looked for.
        hung: Sensor files that don't answer.
    """

    snapshot: Snapshot
    board: Board
    identity: Identity
    roots: Roots
    state_dir: Path
    model_dirs: tuple[Path, ...] = ()
    hung: tuple[str, ...] = ()

    def reading(self, signal: str) -> Reading | None:
        """One reading."""
        return self.snapshot.readings.get(signal)

    def value(self, signal: str) -> float | None:
        """Its value, if it can be trusted."""
        return self.snapshot.value(signal)
