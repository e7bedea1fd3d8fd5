"""Policy files: read within bounds, built on each other, compiled.

`load_policy` does blocking input and takes milliseconds: call it from a thread, not in the loop.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from trimtab.errors import PolicyError
from trimtab.policy.compile import DeviceVariants, compile_document
from trimtab.policy.compiled import Policy
from trimtab.policy.document import Mapping, PathParts, Position, Scalar, dotted, find, plain
from trimtab.policy.merge import merge, tidy
from trimtab.policy.problems import Problem, Severity, describe, in_order
from trimtab.policy.read import MAX_BYTES, read_document
from trimtab.policy.shelf import (
    NotFound,
    declared_name,
    find_policy,
    is_path,
    policy_files,
    real_path,
    same_name,
    shipped_folder,
    stem,
)

_MAX_CHAIN: Final = 8


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What came of loading a policy.

    Attributes:
        policy: None if there is an error.
        problems: Errors and warnings, in the order of their places.
        files: Every file that it was made of or waits for: what a watcher looks at.
        document: All of it merged, each value with its place; None if the text can't be read.
    """

    policy: Policy | None
    problems: tuple[Problem, ...]
    files: tuple[Path, ...] = ()
    document: Mapping | None = None

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep it from being put in force."""
        return tuple(p for p in self.problems if p.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems that don't."""
        return tuple(p for p in self.problems if p.severity is Severity.WARNING)

    def require(self) -> Policy:
        """The policy.

        Raises:
            PolicyError: With every problem in its message, if there is an error.
        """
        if self.policy is None:
            count = len(self.errors)
            raise PolicyError(
                f"{count} error{'s' * (count != 1)} in the policy\n{describe(self.problems)}",
                hint="correct it; 'trimtab policy check FILE' looks at it again",
            )
        return self.policy


def load_policy(
    path_or_name: Path | str,
    folder: Path,
    device: DeviceVariants | None,
) -> LoadResult:
    """Load one policy, with all that it extends and schedules.

    Args:
        path_or_name: A path, or the name of a policy in the folder or among the shipped ones.
        folder: Where names are looked for first; `extends` and `schedule` look beside the file.
        device: What this device's model has; None if unknown.

    Returns:
        The policy or its errors. Never raises for anything that a file can contain.
    """
    loader = _Loader(folder, device)
    if isinstance(path_or_name, Path) or is_path(path_or_name):
        return loader.load(Path(path_or_name))
    found = loader.find(path_or_name)
    if isinstance(found, NotFound):
        problem = _problem(Position(str(folder), 0, 0), "", found.message, found.suggestion)
        return LoadResult(None, (problem,), (folder / f"{path_or_name[:64]}.yaml",))
    return loader.load(found)


def load_folder(folder: Path, device: DeviceVariants | None = None) -> dict[Path, LoadResult]:
    """Load every policy of a folder. Two files with one name are an error of both.

    Raises:
        PolicyError: If the folder can't be read or holds no policy.
    """
    paths = policy_files(folder)
    if not paths:
        raise PolicyError(f"{folder} holds no policy", hint="policies are files called NAME.yaml")
    results = {path: load_policy(path, folder, device) for path in paths}
    first_by_name: dict[str, Path] = {}
    for path in paths:
        name = declared_name(path)
        first = first_by_name.setdefault(name, path) if name else path
        if real_path(first) != real_path(path):
            for one, other in ((first, path), (path, first)):
                problem = _problem(Position(str(one), 0, 0), "name", same_name(one, other, name))
                problems = in_order((*results[one].problems, problem))
                results[one] = replace(results[one], policy=None, problems=problems)
    return results


def compile_text(raw: bytes, file: str, device: DeviceVariants | None) -> LoadResult:
    """Compile a policy that stands by itself: nothing is extended, and no other file is looked at.

    Args:
        raw: The policy's text.
        file: What problems call it.
        device: As for `load_policy`.
    """
    document, found = read_document(raw, file)
    problems = list(found)
    if document is None:
        return LoadResult(None, in_order(problems))
    document, found_in_tidy = tidy(document)
    problems += found_in_tidy
    if "extends" in document.entries:
        at = document.entries["extends"].name_at
        problems.append(_problem(at, "extends", "this policy must stand by itself"))
    policy, found_in_compile = compile_document(document, sha256(raw).hexdigest()[:12], device)
    problems += found_in_compile
    if any(problem.severity is Severity.ERROR for problem in problems):
        policy = None
    return LoadResult(policy, in_order(problems), (), document)


@dataclass(slots=True)
class _Loader:
    """Loads one policy and remembers the files that it looked at."""

    folder: Path
    device: DeviceVariants | None
    files: list[Path] = field(default_factory=list)

    def load(self, path: Path, *, scheduled: bool = False) -> LoadResult:
        """Read, merge and compile one file; what a scheduled one schedules doesn't count."""
        problems: list[Problem] = []
        digest = sha256()
        document = self._chain(path, (), problems, digest.update)
        if document is None:
            return LoadResult(None, in_order(problems), tuple(self.files))
        policy, found = compile_document(document, digest.hexdigest()[:12], self.device)
        problems += found
        if not scheduled:
            problems += _check_name(path, document)
            problems += self._check_schedule(path, document)
        if any(problem.severity is Severity.ERROR for problem in problems):
            policy = None
        return LoadResult(policy, in_order(problems), tuple(dict.fromkeys(self.files)), document)

    def find(self, name: str, beside: Path | None = None) -> Path | NotFound:
        """The file of a name: beside another policy, in the folder, or among the shipped ones."""
        folders = [self.folder, shipped_folder()]
        return find_policy(name, list(dict.fromkeys(([beside] if beside else []) + folders)))

    def _chain(
        self,
        path: Path,
        above: tuple[Path, ...],
        problems: list[Problem],
        feed: Callable[[bytes], object],
    ) -> Mapping | None:
        """The document of a file with all that it extends; None if it can't be read."""
        self.files.append(path)
        raw = _read(path)
        if isinstance(raw, str):
            problems.append(_problem(Position(str(path), 0, 0), "", raw))
            return None
        feed(len(raw).to_bytes(8, "big") + raw)
        document, found = read_document(raw, str(path))
        problems += found
        if document is None:
            return None
        base = self._base(document, path, above, problems, feed)
        if base is not None:
            document, found_in_merge = merge(base, document)
            problems += found_in_merge
        document, found_in_tidy = tidy(document)
        problems += found_in_tidy
        return document

    def _base(
        self,
        document: Mapping,
        path: Path,
        above: tuple[Path, ...],
        problems: list[Problem],
        feed: Callable[[bytes], object],
    ) -> Mapping | None:
        """The document that another one extends; None if there is none or it can't be had."""
        entry = document.entries.get("extends")
        if entry is None or not isinstance(entry.node, Scalar) or entry.node.value is None:
            return None
        at = entry.node.at
        chain = (*above, real_path(path))
        target = self.find(entry.node.text, path.parent)
        if isinstance(target, NotFound):
            problems.append(_problem(at, "extends", target.message, target.suggestion))
            return None
        if real_path(target) in chain:
            circle = [*chain[chain.index(real_path(target)) :], target]
            message = f"a circle: {' extends '.join(stem(link) for link in circle)}"
            problems.append(_problem(at, "extends", message))
            return None
        if len(chain) >= _MAX_CHAIN:
            message = f"more than {_MAX_CHAIN} policies build on each other"
            problems.append(_problem(at, "extends", message))
            return None
        return self._chain(target, chain, problems, feed)

    def _check_schedule(self, path: Path, document: Mapping) -> list[Problem]:
        """Scheduled policies must be there and be sound, their time zones known."""
        entry = document.entries.get("schedule")
        items = plain(entry.node) if entry is not None else None
        if not isinstance(items, list):
            return []
        problems: list[Problem] = []
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                continue
            for name, check in (("policy", self._check_scheduled), ("timezone", _check_timezone)):
                value = item.get(name)
                message, hint = check(value, path) if isinstance(value, str) else ("", "")
                if message:
                    where: PathParts = ("schedule", index, name)
                    at, _ = find(document, where)
                    problems.append(_problem(at, dotted(where), message, hint))
        return problems

    def _check_scheduled(self, name: str, path: Path) -> tuple[str, str]:
        target = self.find(name, path.parent)
        if isinstance(target, NotFound):
            return target.message, target.suggestion
        if real_path(target) == real_path(path):
            return "a policy can't schedule itself", ""
        result = self.load(target, scheduled=True)
        if result.policy is None:
            return f"{name} has errors: {result.errors[0].text()}", ""
        return "", ""


def _read(path: Path) -> bytes | str:
    """The file's bytes, or why they can't be had. Nothing larger than the limit is read."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            return "this is no regular file"
        if info.st_size > MAX_BYTES:
            return f"larger than {MAX_BYTES // 1024} KiB, so it wasn't read; that is no policy"
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    except ValueError:
        return "this is no path"


def _check_name(path: Path, document: Mapping) -> list[Problem]:
    """The file should be called like the policy, since people look for it by name."""
    entry = document.entries.get("name")
    if entry is None or not isinstance(entry.node, Scalar) or path.is_symlink():
        return []
    name = entry.node.value
    if not isinstance(name, str) or name == stem(path):
        return []
    message = f"the policy is called {name!r} and its file {path.name}"
    problem = _problem(entry.node.at, "name", message, f"call the file {name}.yaml")
    return [replace(problem, severity=Severity.WARNING)]


def _check_timezone(name: str, path: Path) -> tuple[str, str]:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"unknown time zone {name!r}", "a name such as Europe/Berlin"
    return "", ""


def _problem(at: Position, path: str, message: str, suggestion: str = "") -> Problem:
    return Problem(Severity.ERROR, at.file, at.line, at.column, path, message, suggestion)
