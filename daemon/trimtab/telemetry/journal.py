"""The decision journal: JSON lines in two files that take turns, so that it never outgrows its cap.

A decision is one line. When its outcome is known, a second line with the same id carries it. Lines
that can't be read (the last one after a power cut) are passed over, never a reason not to start.
The journal never stops the daemon either: what can't be written stays in memory, and `fault` says
why.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.domain.decisions import Decision, Outcome
from trimtab.errors import StateError

CURRENT: Final = "decisions.jsonl"
PREVIOUS: Final = "decisions.1.jsonl"
KEPT: Final = 256
"""Records that are answered from memory."""


class DecisionLine(msgspec.Struct, frozen=True, tag="decision", tag_field="kind"):
    """A decision as it was made."""

    v: int
    wall_s: float
    decision: Decision


class OutcomeLine(msgspec.Struct, frozen=True, tag="outcome", tag_field="kind"):
    """What came of it."""

    v: int
    wall_s: float
    id: int
    outcome: Outcome


_decoder: Final = msgspec.json.Decoder(DecisionLine | OutcomeLine)
_encoder: Final = msgspec.json.Encoder()


def record(line: DecisionLine) -> dict[str, Any]:
    """The record as the API and the command line show it: the decision's fields and `wall_s`."""
    fields: dict[str, Any] = msgspec.to_builtins(line.decision)
    return {"id": fields.pop("id"), "wall_s": line.wall_s, **fields}


class Journal:
    """The decisions of this state directory.

    Args:
        folder: Where the two files are; made if it is missing.
        cap_bytes: Both files together never hold more.

    Raises:
        StateError: The folder can't be made, or isn't one.
    """

    def __init__(self, folder: Path, cap_bytes: int = 4 * 1024 * 1024) -> None:
        self._folder = folder
        self._half_bytes = max(cap_bytes // 2, 4096)
        self._recent: OrderedDict[int, DecisionLine] = OrderedDict()
        self._file: int | None = None
        self._size_bytes = 0
        self._dirty = False
        self.fault = ""
        self.unreadable_lines = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"{folder}: the state directory can't be made: {error.strerror}",
                hint="Set `state` in the configuration to a folder that trimtab may write.",
            ) from error
        self._last_id = 0
        for line in self._lines():
            self._take(line)

    @property
    def next_id(self) -> int:
        """The id that the next decision must have: ids count up over restarts."""
        return self._last_id + 1

    def append(self, decision: Decision, wall_s: float) -> dict[str, Any]:
        """Write a decision down.

        Returns:
            Its record, for those who follow the journal.
        """
        line = DecisionLine(v=1, wall_s=wall_s, decision=decision)
        self._take(line)
        self._write(line)
        return record(line)

    def finish(self, number: int, outcome: Outcome, wall_s: float) -> dict[str, Any] | None:
        """Write down what came of a decision.

        Returns:
            The whole record; None if the decision is too old to be in memory.
        """
        line = OutcomeLine(v=1, wall_s=wall_s, id=number, outcome=outcome)
        self._write(line)
        self._take(line)
        known = self._recent.get(number)
        return record(known) if known else None

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The newest records, oldest first."""
        if limit <= 0:
            return []
        return [record(line) for line in list(self._recent.values())[-limit:]]

    def get(self, number: int) -> dict[str, Any] | None:
        """One record, from memory or from the files; None if it is gone."""
        if number in self._recent:
            return record(self._recent[number])
        found: DecisionLine | None = None
        for line in self._lines():
            if isinstance(line, DecisionLine) and line.decision.id == number:
                found = line
            elif isinstance(line, OutcomeLine) and line.id == number and found:
                found = _with_outcome(found, line.outcome)
        return record(found) if found else None

    def sync(self) -> None:
        """Bring what was written onto the disk. It can take long: call it off the loop, rarely."""
        if self._dirty and self._file is not None:
            self._dirty = False
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self.fault = f"{self._folder / CURRENT}: {error.strerror}"

    def close(self) -> None:
        """Sync and close; the journal can still be read."""
        self.sync()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take(self, line: DecisionLine | OutcomeLine) -> None:
        if isinstance(line, OutcomeLine):
            known = self._recent.get(line.id)
            if known:
                self._recent[line.id] = _with_outcome(known, line.outcome)
            return
        self._recent[line.decision.id] = line
        self._last_id = max(self._last_id, line.decision.id)
        while len(self._recent) > KEPT:
            self._recent.popitem(last=False)

    def _write(self, line: DecisionLine | OutcomeLine) -> None:
        content = _encoder.encode(line) + b"\n"
        try:
            descriptor = self._open_for(len(content))
            os.write(descriptor, content)
        except OSError as error:
            self.fault = f"{self._folder / CURRENT}: {error.strerror}"
            return
        self.fault = ""
        self._size_bytes += len(content)
        self._dirty = True

    def _open_for(self, wanted_bytes: int) -> int:
        """The descriptor to append to, after a change of files if this one would grow too large."""
        if self._file is None:
            self._file = _open_for_appending(self._folder / CURRENT)
            self._size_bytes = os.fstat(self._file).st_size
        if self._size_bytes and self._size_bytes + wanted_bytes > self._half_bytes:
            os.close(self._file)
            self._file = None
            (self._folder / CURRENT).replace(self._folder / PREVIOUS)
            self._file = _open_for_appending(self._folder / CURRENT)
            self._size_bytes = 0
        return self._file

    def _lines(self) -> Iterator[DecisionLine | OutcomeLine]:
        """Every line that can be read, oldest first."""
        self.unreadable_lines = 0
        for name in (PREVIOUS, CURRENT):
            try:
                content = (self._folder / name).read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StateError(
                    f"{self._folder / name}: can't be read: {error.strerror}"
                ) from error
            for text in content.splitlines():
                try:
                    yield _decoder.decode(text)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    self.unreadable_lines += 1


def _with_outcome(line: DecisionLine, outcome: Outcome) -> DecisionLine:
    return DecisionLine(
        v=line.v, wall_s=line.wall_s, decision=replace(line.decision, outcome=outcome)
    )


def _open_for_appending(path: Path) -> int:
    """Open a journal file; a last line without its end gets one, so that it spoils no other."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
        os.write(descriptor, b"\n")
    return descriptor
