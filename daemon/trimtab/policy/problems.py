"""What is wrong with a policy, each with its place, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum


class Severity(StrEnum):
    """Whether the policy can be used all the same."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault or doubt.

    Attributes:
        severity: A policy with an error is never put in force.
        file: As the caller named it.
        line: From 1; 0 if the problem is about the file as a whole.
        column: From 1; 0 likewise.
        path: The field, such as ``rules[0].when.all[1].above``.
        message: What was found and what is allowed.
        suggestion: What to write instead; empty if there is nothing obvious.
    """

    severity: Severity
    file: str
    line: int
    column: int
    path: str
    message: str
    suggestion: str = ""

    def text(self) -> str:
        """One line for people: place, severity, field, message, suggestion."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        field = f"{self.path}: " if self.path else ""
        hint = f" Try: {self.suggestion}" if self.suggestion else ""
        end = "" if self.message.endswith((".", "?", "!")) or not hint else "."
        return f"{place}: {self.severity}: {field}{self.message}{end}{hint}"


def describe(problems: Iterable[Problem]) -> str:
    """All problems, one a line, in the order of their places."""
    return "\n".join(problem.text() for problem in in_order(problems))


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Sorted by file, line and column; what is said twice about one place is said once."""
    unique = dict.fromkeys(problems)
    return tuple(sorted(unique, key=lambda item: (item.file, item.line, item.column)))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, or an empty string."""
    names = list(known)
    folded = {candidate.lower().replace("_", "-"): candidate for candidate in names}
    wanted = name.lower().replace("_", "-")
    matches = get_close_matches(wanted[:80], folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else ""
