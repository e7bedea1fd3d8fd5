"""A policy file as plain values that know where they stand. No YAML in here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

PathParts: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file; line and column count from 1, and 0 stands for the file as a whole."""

    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: text, number, true, false or nothing. ``text`` is what stands in the file."""

    value: str | int | float | bool | None
    text: str
    at: Position


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of values.

    Attributes:
        items: The values.
        numbers: Which items of its file they are, where some have been left out or other files'
            items have been added; empty if they are simply all of them.
    """

    items: tuple[Node, ...]
    at: Position
    numbers: tuple[int, ...] = ()

    def number(self, index: int) -> int:
        """The item's number in its own file."""
        return self.numbers[index] if self.numbers else index


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of a mapping, with the place of its name."""

    name_at: Position
    node: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """Fields by name, in the order of the file."""

    entries: dict[str, Entry]
    at: Position


Node: TypeAlias = Scalar | Listing | Mapping


def plain(node: Node) -> object:
    """The values alone: dicts, lists and scalars."""
    match node:
        case Scalar():
            return node.value
        case Listing():
            return [plain(item) for item in node.items]
        case Mapping():
            return {name: plain(entry.node) for name, entry in node.entries.items()}


def find(node: Node, path: Sequence[str | int]) -> tuple[Position, PathParts]:
    """The place of the value at the path, or of its nearest ancestor that exists.

    Steps that don't exist in the document are left out: pydantic adds the tags of unions to its
    paths, and a missing field has no place of its own.

    Returns:
        The place, and the path without the steps that don't exist, but for the last one if that
        is the name of a missing field.
    """
    at = node.at
    kept: list[str | int] = []
    for index, step in enumerate(path):
        inner = _step(node, step)
        if inner is None:
            if index == len(path) - 1 and isinstance(step, str) and isinstance(node, Mapping):
                kept.append(step)
            continue
        kept.append(
            node.number(step) if isinstance(node, Listing) and isinstance(step, int) else step
        )
        at, node = inner
    return at, tuple(kept)


def get(node: Node, path: Sequence[str | int]) -> Node | None:
    """The node at exactly this path, or None."""
    for step in path:
        inner = _step(node, step)
        if inner is None:
            return None
        node = inner[1]
    return node


def leaves(node: Node, path: PathParts = ()) -> Iterator[tuple[PathParts, Scalar]]:
    """Every scalar below the node with its path, in the order of the file."""
    match node:
        case Scalar():
            yield path, node
        case Listing():
            for index, item in enumerate(node.items):
                yield from leaves(item, (*path, index))
        case Mapping():
            for name, entry in node.entries.items():
                yield from leaves(entry.node, (*path, name))


def dotted(path: Sequence[str | int]) -> str:
    """The path as people write it: ``rules[0].when.above``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def _step(node: Node, step: str | int) -> tuple[Position, Node] | None:
    if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
        entry = node.entries[step]
        return (entry.node.at if isinstance(entry.node, Scalar) else entry.name_at), entry.node
    if isinstance(node, Listing) and isinstance(step, int) and 0 <= step < len(node.items):
        item = node.items[step]
        return item.at, item
    return None


def without(node: Node, path: Sequence[str | int]) -> Node:
    """The same document with the value at the path left out; unchanged if there is none."""
    if not path:
        return node
    step, rest = path[0], path[1:]
    if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
        entries = dict(node.entries)
        if rest:
            entry = entries[step]
            entries[step] = Entry(entry.name_at, without(entry.node, rest))
        else:
            del entries[step]
        return Mapping(entries, node.at)
    if isinstance(node, Listing) and isinstance(step, int) and 0 <= step < len(node.items):
        pairs = [(node.number(index), item) for index, item in enumerate(node.items)]
        if rest:
            pairs[step] = (pairs[step][0], without(pairs[step][1], rest))
        else:
            del pairs[step]
        return Listing(
            tuple(item for _, item in pairs), node.at, tuple(number for number, _ in pairs)
        )
    return node
