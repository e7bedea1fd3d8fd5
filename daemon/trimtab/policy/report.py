"""Where checks of meaning put what they find, each at its place in the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trimtab.policy.document import Mapping, PathParts, dotted, find
from trimtab.policy.problems import Problem, Severity


@dataclass(slots=True)
class Report:
    """Collects problems of one document.

    Attributes:
        document: What the schema's value was made from.
        removed: Paths that the schema refused. A check that looks at one of them says nothing:
            what it would say follows from a fault that is already reported.
        problems: What was found so far.
    """

    document: Mapping
    removed: set[PathParts] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def error(
        self, path: PathParts, message: str, suggestion: str = "", *, also: Iterable[PathParts] = ()
    ) -> None:
        """A fault. ``also`` names other fields that the check looked at."""
        self._add(Severity.ERROR, path, message, suggestion, also)

    def warning(
        self, path: PathParts, message: str, suggestion: str = "", *, also: Iterable[PathParts] = ()
    ) -> None:
        """A doubt: the policy can be used all the same."""
        self._add(Severity.WARNING, path, message, suggestion, also)

    def place(self, path: PathParts) -> str:
        """The path in the file's own numbering, as people write it."""
        return dotted(find(self.document, path)[1])

    @property
    def failed(self) -> bool:
        """True if there is an error."""
        return any(problem.severity is Severity.ERROR for problem in self.problems)

    def _add(
        self,
        severity: Severity,
        path: PathParts,
        message: str,
        suggestion: str,
        also: Iterable[PathParts],
    ) -> None:
        at, kept = find(self.document, path)
        if self._doubtful(kept) or any(
            self._doubtful(find(self.document, other)[1]) for other in also
        ):
            return
        self.problems.append(
            Problem(severity, at.file, at.line, at.column, dotted(kept), message, suggestion)
        )

    def _doubtful(self, path: PathParts) -> bool:
        """True if the path, in the file's own numbering, lies in or around what was refused."""
        return any(
            path[: len(gone)] == gone or gone[: len(path)] == path for gone in self.removed if path
        )
