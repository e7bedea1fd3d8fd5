"""Finds calls of tools in an answer while it comes. No I/O.

The grammar that the answer was held to writes calls in exactly one way (`domain.tools`): they are
found by comparing text, and their arguments are passed on as they come.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from trimtab.domain.held_back import held_back
from trimtab.domain.tools import SHAPES, ToolFormat


@dataclass(frozen=True, slots=True)
class ToolTalk:
    """How calls are found in one answer.

    Attributes:
        format: How the model writes them.
        names: Of the tools that it may call.
    """

    format: ToolFormat
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call, as soon as its tool is known."""

    number: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments: JSON text."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call's arguments are whole."""

    number: int


Found: TypeAlias = str | CallBegun | CallArguments | CallEnded
"""Text that isn't part of a call, or what has come of one."""


class _State(Enum):
    TEXT = auto()
    ARGUMENTS = auto()
    AFTER_CALL = auto()


class ToolReader:
    """Takes an answer's text in pieces, and tells text from calls.

    Args:
        talk: How calls are written.
        new_id: Makes the id of a call; by default a random one as the format wants it.

    Attributes:
        calls: Calls that have begun.
    """

    def __init__(self, talk: ToolTalk, new_id: Callable[[], str] | None = None) -> None:
        shape = SHAPES[talk.format]
        self.calls = 0
        self._new_id = new_id or (lambda: _random_id(shape.id_length))
        leads = [shape.first] + ([shape.prelude + shape.first] if shape.prelude else [])
        self._starts = {lead + shape.head(name): name for lead in leads for name in talk.names}
        self._nexts = {
            shape.tail + shape.between + shape.head(name): name
            for name in talk.names
            if shape.between is not None
        }
        self._close = shape.tail + shape.last
        self._trigger = shape.trigger
        self._only_first = not shape.trigger
        self._state = _State.TEXT
        self._held = ""
        self._said = False
        self._scan = _ObjectScan()

    def feed(self, text: str) -> list[Found]:
        """What has become certain with the next piece of text."""
        self._held += text
        found: list[Found] = []
        steps = {
            _State.TEXT: self._text,
            _State.ARGUMENTS: self._arguments,
            _State.AFTER_CALL: self._after_call,
        }
        while self._held and steps[self._state](found):
            pass
        return found

    def rest(self) -> str:
        """Text that was held back and is no call's, when the answer has ended.

        An answer that was cut off may have begun a call whose tool isn't known: that is no text.
        """
        held, self._held = self._held, ""
        begun = self._state is _State.AFTER_CALL or (
            bool(self._trigger) and held.startswith(self._trigger)
        )
        return "" if begun else held

    # ------------------------------------------------------------ each state; False: wait for more

    def _text(self, found: list[Found]) -> bool:
        if self._only_first and self._said:
            return self._say(len(self._held), found)
        at, start = min(
            ((at, start) for start in self._starts if (at := self._held.find(start)) >= 0),
            default=(-1, ""),
        )
        if at > 0 and self._only_first:
            return self._say(len(self._held), found)
        if at >= 0:
            self._say(at, found)
            return self._begin(start, self._starts[start], found)
        keep = held_back(self._held, self._starts)
        if self._only_first and keep < len(self._held):
            keep = 0
        self._say(len(self._held) - keep, found)
        return False

    def _arguments(self, found: list[Found]) -> bool:
        end = self._scan.end(self._held)
        found.append(CallArguments(self.calls - 1, self._held[:end]))
        self._held = self._held[end:]
        if self._scan.whole:
            found.append(CallEnded(self.calls - 1))
            self._state = _State.AFTER_CALL
        return True

    def _after_call(self, found: list[Found]) -> bool:
        held = self._held
        for start, name in self._nexts.items():
            if held.startswith(start):
                return self._begin(start, name, found)
        if any(text.startswith(held) for text in (*self._nexts, self._close)):
            return False
        self._held = held.removeprefix(self._close)
        self._state = _State.TEXT
        return True

    def _say(self, length: int, found: list[Found]) -> bool:
        if length:
            found.append(self._held[:length])
            self._held = self._held[length:]
            self._said = True
        return False

    def _begin(self, start: str, name: str, found: list[Found]) -> bool:
        self._held = self._held.removeprefix(start)
        found.append(CallBegun(self.calls, self._new_id(), name))
        self.calls += 1
        self._said = True
        self._scan = _ObjectScan()
        self._state = _State.ARGUMENTS
        return True


class _ObjectScan:
    """Where a JSON object ends, read in pieces."""

    def __init__(self) -> None:
        self.whole = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int:
        """How much of a piece belongs to the object."""
        for at, letter in enumerate(text):
            if self._in_string:
                self._string(letter)
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.whole = True
                    return at + 1
        return len(text)

    def _string(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            self._in_string = False


def _random_id(length: int) -> str:
    return secrets.token_hex(length)[:length] if length else f"call_{secrets.token_hex(12)}"


@dataclass(slots=True)
class Call:
    """A call put together from its pieces."""

    id: str
    name: str
    arguments: str = ""
    whole: bool = False


def put_together(found: Sequence[Found], calls: list[Call]) -> str:
    """Add what was found to the calls so far; returns the text among it."""
    text = ""
    for one in found:
        match one:
            case str():
                text += one
            case CallBegun():
                calls.append(Call(one.id, one.name))
            case CallArguments():
                calls[one.number].arguments += one.text
            case CallEnded():
                calls[one.number].whole = True
    return text
