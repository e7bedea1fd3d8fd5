"""Recordings: everything that the core took in and decided, as a file that can be run again.

Lines of JSON, compressed with gzip and flushed line by line, so that a recording that was cut off
is readable up to the cut. The first line holds the core's state and the policy; from then on each
event stands with its time, in order, and each decision after the event that it was made on. They
hold signals, lengths and settings, and never any text of anybody's.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from trimtab.domain.decisions import Decision
from trimtab.domain.events import Event
from trimtab.errors import StateError
from trimtab.planner import State, step
from trimtab.policy.compiled import Policy
from trimtab.telemetry.values import from_plain, to_plain

VERSION: Final = 1
START: Final = "start"
_LONGEST_LINE: Final = 16 << 20


def start_line(state: State, policy: Policy, version: str, wall_s: float) -> dict[str, Any]:
    """The first line: where the core stands."""
    return {
        "kind": START,
        "v": VERSION,
        "trimtab": version,
        "wall_s": wall_s,
        "state": to_plain(state),
        "policy": to_plain(policy),
    }


def policy_line(policy: Policy) -> dict[str, Any]:
    """Another policy is in force from the next event on."""
    return {"kind": "policy", "policy": to_plain(policy)}


def event_line(event: Event) -> dict[str, Any]:
    """An event that the core took in."""
    return {"kind": "event", "event": to_plain(event)}


def decision_line(decision: Decision) -> dict[str, Any]:
    """What was decided on the event before."""
    return {"kind": "decision", "decision": to_plain(decision)}


class RecordingWriter:
    """Writes lines to a file; one without any line isn't left behind.

    Args:
        path: The file; it must not exist.

    Raises:
        StateError: If it exists or can't be made.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._raw = path.open("xb")
        except OSError as error:
            raise StateError(f"{path}: {error.strerror}") from error
        self._path = path
        self._gzip = gzip.GzipFile(fileobj=self._raw, mode="wb", mtime=0)
        self.lines = 0

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gzip.close()
        self._raw.close()
        if not self.lines:
            self._path.unlink(missing_ok=True)

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line; it is in the file when this returns."""
        self._gzip.write(msgspec.json.encode(line) + b"\n")
        self._gzip.flush(zlib.Z_SYNC_FLUSH)
        self._raw.flush()
        self.lines += 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One line after the first.

    Attributes:
        event: The event, if it is one.
        decision: The decision, if it is one.
        policy: The policy, if it is one.
    """

    event: Event | None = None
    decision: Decision | None = None
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording that was read.

    Attributes:
        state: Where the core stood.
        policy: What was in force.
        version: The trimtab that made it.
        wall_s: When it began.
        entries: All that followed.
        cut: True if its end is missing.
    """

    state: State
    policy: Policy
    version: str
    wall_s: float
    entries: tuple[Entry, ...]
    cut: bool = False


def read_recording(path: Path) -> Recording:
    """Reads a recording, up to where it was cut off.

    Raises:
        StateError: If the file can't be read, is no recording or comes from a newer version.
    """
    entries: list[Entry] = []
    lines = _lines(path)
    first = next(lines, None)
    if first is None or first.get("kind") != START:
        raise StateError(f"{path} is no recording", hint="`trimtab record FILE` makes one.")
    if first["v"] > VERSION:
        raise StateError(
            f"{path} was made by trimtab {first['trimtab']} in a newer form", hint="Update trimtab."
        )
    cut = False
    for line in lines:
        if line["kind"] == "cut":
            cut = True
        else:
            entries.append(_entry(line))
    return Recording(
        from_plain(first["state"]),
        from_plain(first["policy"]),
        first["trimtab"],
        first["wall_s"],
        tuple(entries),
        cut,
    )


def _entry(line: dict[str, Any]) -> Entry:
    kind = line["kind"]
    return (
        Entry(**{kind: from_plain(line[kind])})
        if kind in {"event", "decision", "policy"}
        else (Entry())
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines; a last one of the kind ``cut`` if the file ends in the middle."""
    try:
        with gzip.open(path, "rb") as file:
            while text := file.readline(_LONGEST_LINE):
                if not text.endswith(b"\n"):
                    yield {"kind": "cut"}
                    return
                yield msgspec.json.decode(text, type=dict[str, Any])
    except EOFError:
        yield {"kind": "cut"}
    except gzip.BadGzipFile as error:
        raise StateError(f"{path} is no recording: {error}") from error
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}") from error
    except (zlib.error, msgspec.DecodeError):
        yield {"kind": "cut"}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run took another decision than was recorded.

    Attributes:
        at_s: The event's time.
        recorded: What was decided then; None if nothing.
        again: What is decided now; None if nothing.
    """

    at_s: float
    recorded: Decision | None
    again: Decision | None


@dataclass(frozen=True, slots=True)
class Rerun:
    """What running a recording again gave.

    Attributes:
        events: How many events went through `step`.
        decisions: What is decided now.
        differences: Where that isn't what was decided then.
        state: Where the core stands afterwards.
    """

    events: int
    decisions: tuple[Decision, ...]
    differences: tuple[Difference, ...]
    state: State


def rerun(recording: Recording, policy: Policy | None = None) -> Rerun:
    """Runs the recorded events through `step`.

    Args:
        recording: What was recorded.
        policy: Another policy to decide by, instead of those that were in force.

    Returns:
        The decisions, and each that differs from what was recorded: none with the same policies.
    """
    state, in_force = recording.state, policy or recording.policy
    made: list[Decision] = []
    differences: list[Difference] = []
    events = 0
    expected: Decision | None = None
    for at, entry in enumerate(recording.entries):
        if entry.policy is not None and policy is None:
            in_force = entry.policy
        if entry.event is None:
            continue
        events += 1
        result = step(state, entry.event, in_force)
        state = result.state
        after = recording.entries[at + 1] if at + 1 < len(recording.entries) else Entry()
        expected = after.decision
        if result.decision is not None:
            made.append(result.decision)
        if result.decision != expected and not (recording.cut and after == Entry()):
            differences.append(Difference(entry.event.at_s, expected, result.decision))
    return Rerun(events, tuple(made), tuple(differences), state)
