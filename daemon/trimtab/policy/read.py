"""YAML text → values with places. The only module of the policy that knows YAML.

Types follow YAML 1.2's core schema: `on`, `off`, `yes`, `no` and `22:30` are text. Bounds keep any
file harmless: size before reading, depth, number of values, and what aliases may expand to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from trimtab.policy.document import Entry, Listing, Mapping, Node, Position, Scalar
from trimtab.policy.problems import Problem, Severity
from trimtab.policy.scalars import core_value

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 24
MAX_NODES: Final = 5_000
MAX_ALIASES: Final = 100

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff]")


_HALF: Final = re.compile("[\ud800-\udfff]")


class _TextError(Exception):
    """The text can't be read; carries the one problem that ended the reading."""

    def __init__(self, line: int, column: int, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.message = message
        self.suggestion = suggestion


def read_document(raw: bytes, file: str) -> tuple[Mapping | None, tuple[Problem, ...]]:
    """A policy file's content as values with places.

    Args:
        raw: The file's bytes.
        file: Its name, for the problems.

    Returns:
        The top-level mapping, or None if it can't be had, and every problem of the text itself.
        Repeated fields are problems, and all of them are reported.
    """
    builder = _Builder(file)
    try:
        text = _decode(raw)
        node = builder.build(_events(text))
    except _TextError as refused:
        problem = builder.problem(refused.line, refused.column, refused.message, refused.suggestion)
        return None, (*builder.problems, problem)
    if not isinstance(node, Mapping):
        kind = "a list" if isinstance(node, Listing) else "a single value"
        message = f"found {kind}; a policy is a mapping that starts with 'version: 1'"
        return None, (*builder.problems, builder.problem(node.at.line, node.at.column, message))
    return node, tuple(builder.problems)


def _decode(raw: bytes) -> str:
    """The text of a UTF-8 file.

    Raises:
        _TextError: If it is too large, empty, in another encoding, or holds control characters.
    """
    if len(raw) > MAX_BYTES:
        raise _TextError(
            0, 0, f"the file is larger than {MAX_BYTES // 1024} KiB; that is no policy"
        )
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _TextError(0, 0, "the file is in UTF-16; policies are in UTF-8", "save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        raise _TextError(line, column, "this byte isn't UTF-8", "save the file as UTF-8") from error
    control = _CONTROL.search(text)
    if control is not None:
        start = control.start()
        line = text.count("\n", 0, start) + 1
        column = start - text.rfind("\n", 0, start)
        message = f"control character U+{ord(control[0]):04X}; only text is allowed"
        raise _TextError(line, column, message)
    if not text.strip():
        raise _TextError(0, 0, "the file is empty", "start with 'version: 1'")
    return text


def _events(text: str) -> Iterator[Event]:
    """The parser's events; its faults become refusals with a place and plain words."""
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
        raise _TextError(line, column, *_explain(text, line, error)) from error
    except YAMLError as error:
        raise _TextError(0, 0, f"not YAML: {str(error).splitlines()[0]}") from error
    except (ValueError, IndexError, KeyError, AttributeError, TypeError, AssertionError) as error:
        # ruamel's scanner trips over some malformed directives, tags and escapes with these.
        raise _TextError(0, 0, "not YAML: the text can't be parsed") from error


def _explain(text: str, line: int, error: MarkedYAMLError) -> tuple[str, str]:
    """The parser's complaint in plain words, and what to do."""
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    said = " ".join(str(part) for part in (error.context, error.problem) if part)
    if "\t" in here[: len(here) - len(here.lstrip())] or "'\\t'" in said:
        return "a tab stands where YAML wants spaces", "indent with spaces"
    if "mapping values are not allowed" in said:
        return "a ':' where no field can begin", "check the indentation, or quote the text"
    if "cannot start any token" in said and "'%'" in said:
        return "a value can't begin with '%'", "write the number first: 25%"
    return f"not YAML: {said}", ""


@dataclass(slots=True)
class _Builder:
    """Builds the values from events, without recursion, within bounds."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, tuple[Node, int]] = field(default_factory=dict)
    stack: list[_Open] = field(default_factory=list)
    root: Node | None = None
    nodes: int = 0
    aliases: int = 0
    documents: int = 0

    def build(self, events: Iterator[Event]) -> Node:
        """The value of the only document."""
        for event in events:
            self._take(event)
        if self.root is None:
            raise _TextError(0, 0, "the file is empty", "start with 'version: 1'")
        return self.root

    def problem(self, line: int, column: int, message: str, suggestion: str = "") -> Problem:
        return Problem(Severity.ERROR, self.file, line, column, "", message, suggestion)

    def _take(self, event: Event) -> None:
        match event:
            case ScalarEvent():
                self._count(event, 1)
                self._add(self._scalar(event), event, 1)
            case AliasEvent():
                self._alias(event)
            case MappingStartEvent() | SequenceStartEvent():
                self._open(event)
            case MappingEndEvent() | SequenceEndEvent():
                closed = self.stack.pop()
                self._add(closed.close(), closed.start, self.nodes - closed.first_node + 1)
            case DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    line, column = _mark(event)
                    raise _TextError(line, column, "a second document; one policy a file")
            case DocumentEndEvent() | _:
                pass

    def _open(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        self._count(event, 1)
        self._no_tag(event)
        if len(self.stack) >= MAX_DEPTH:
            line, column = _mark(event)
            raise _TextError(line, column, f"nested deeper than {MAX_DEPTH} levels")
        at = Position(self.file, *_mark(event))
        is_mapping = isinstance(event, MappingStartEvent)
        self.stack.append(_Open(event, at, is_mapping, self.nodes, self))

    def _alias(self, event: AliasEvent) -> None:
        line, column = _mark(event)
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise _TextError(line, column, f"more than {MAX_ALIASES} aliases; write the values out")
        known = self.anchors.get(event.anchor)
        if known is None:
            raise _TextError(line, column, f"no anchor &{event.anchor} stands before this alias")
        node, size = known
        self._count(event, size)
        self._add(node, event, size)

    def _count(self, event: Event, size: int) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            line, column = _mark(event)
            raise _TextError(line, column, f"more than {MAX_NODES} values, aliases counted in full")

    def _scalar(self, event: ScalarEvent) -> Scalar:
        self._no_tag(event)
        text = _whole_characters(event)
        plain = event.style is None or event.style == ""
        value = core_value(text) if plain else text
        return Scalar(value, text, Position(self.file, *_mark(event)))

    def _no_tag(self, event: ScalarEvent | MappingStartEvent | SequenceStartEvent) -> None:
        if event.tag is not None:
            line, column = _mark(event)
            message = "YAML tags (!...) aren't used here"
            raise _TextError(line, column, message, "leave the tag out")

    def _add(self, node: Node, event: Event, size: int) -> None:
        anchor = None if isinstance(event, AliasEvent) else getattr(event, "anchor", None)
        if anchor is not None:
            self.anchors[anchor] = (node, size)
        if self.stack:
            self.stack[-1].add(node)
        else:
            self.root = node


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end hasn't come yet."""

    start: Event
    at: Position
    is_mapping: bool
    first_node: int
    builder: _Builder
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    name: Scalar | None = None

    def add(self, node: Node) -> None:
        """Take the next value: an item, a field's name, or a field's value."""
        if not self.is_mapping:
            self.items.append(node)
        elif self.name is None:
            self.name = self._name(node)
        else:
            self._set(self.name, node)
            self.name = None

    def close(self) -> Node:
        if self.is_mapping:
            return Mapping(self.entries, self.at)
        return Listing(tuple(self.items), self.at)

    def _name(self, node: Node) -> Scalar:
        if isinstance(node, Scalar):
            return node
        raise _TextError(node.at.line, node.at.column, "a field's name must be a word")

    def _set(self, name: Scalar, node: Node) -> None:
        if name.text == "<<":
            message = "merge keys (<<) aren't used here"
            raise _TextError(
                name.at.line, name.at.column, message, "build on a policy with 'extends:'"
            )
        earlier = self.entries.get(name.text)
        if earlier is None:
            self.entries[name.text] = Entry(name.at, node)
            return
        message = f"{name.text!r} is here a second time; it stands in line {earlier.name_at.line}"
        self.builder.problems.append(
            self.builder.problem(name.at.line, name.at.column, message, "keep one of the two")
        )


def _whole_characters(event: ScalarEvent) -> str:
    """The scalar's text; characters that JSON escapes as two halves are put together."""
    text: str = event.value
    if not _HALF.search(text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        line, column = _mark(event)
        raise _TextError(line, column, "half a character (a lone surrogate)") from error


def _mark(event: Event) -> tuple[int, int]:
    """Line and column of an event, from 1."""
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
