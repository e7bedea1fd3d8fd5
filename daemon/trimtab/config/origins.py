"""Where each value of the configuration came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class OriginKind(StrEnum):
    """Kinds of places, the strongest first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """One place.

    Attributes:
        kind: What it is.
        where: The flag, the variable, or ``file:line``; empty for a default.
    """

    kind: OriginKind
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".strip()


DEFAULT: Final = Origin(OriginKind.DEFAULT)

_HEADER: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested tables with its dotted path; an empty table is a leaf."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def lines_of(text: str) -> dict[str, int]:
    """The line on which each key of a TOML file stands, by dotted path, from 1.

    Only for messages: a key that this simple reading misses is named without a line.
    """
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        key = _KEY.match(line)
        if header:
            section = _bare(header[1])
            found.setdefault(section, number)
        elif key:
            name = _bare(key[1])
            found.setdefault(f"{section}.{name}" if section else name, number)
    return found


def _bare(name: str) -> str:
    return name.replace('"', "").replace("'", "").replace(" ", "")
