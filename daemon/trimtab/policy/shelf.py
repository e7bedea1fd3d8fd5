"""Where policies lie: files of a folder, names, the shipped ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import PolicyError
from trimtab.policy.problems import nearest
from trimtab.policy.read import MAX_BYTES
from trimtab.policy.shipped import shipped_folder as shipped_folder

SUFFIXES: Final = (".yaml", ".yml")
SCENARIO_SUFFIXES: Final = (".test.yaml", ".test.yml")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_NAME_LINE: Final = re.compile(
    rb"^name:[ \t]*[\"']?([A-Za-z0-9._:-]+)[\"']?[ \t]*(?:#.*)?\r?$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class NotFound:
    """No file for a name: why, and what was probably meant."""

    message: str
    suggestion: str = ""


def is_path(text: str) -> bool:
    """True if the text is meant as a file's path rather than a policy's name."""
    return "/" in text or text.endswith(SUFFIXES)


def real_path(path: Path) -> Path:
    """The path without links; one whose links lead in a circle stays as it is."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


def stem(path: Path) -> str:
    """The file's name without its suffix."""
    return path.name.removesuffix(path.suffix) if path.suffix in SUFFIXES else path.name


def policy_files(folder: Path) -> list[Path]:
    """The policy files of a folder in the order of their names; scenario tests are left aside.

    Raises:
        PolicyError: If the folder can't be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if _is_policy(path))
    except FileNotFoundError as error:
        raise PolicyError(f"there is no folder {folder}") from error
    except NotADirectoryError as error:
        raise PolicyError(f"{folder} is no folder") from error
    except OSError as error:
        raise PolicyError(
            f"the folder {folder} can't be read: {error.strerror}",
            hint="trimtab's user needs permission to read and to enter it",
        ) from error


def scenario_files(folder: Path) -> list[Path]:
    """The scenario files of a folder, which lie beside its policies.

    Raises:
        PolicyError: If the folder can't be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(SCENARIO_SUFFIXES))
    except OSError as error:
        raise PolicyError(f"the folder {folder} can't be read: {error.strerror}") from error


def declared_name(path: Path) -> str:
    """The name that a file gives its policy, read without parsing it; empty if it gives none."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return ""
        match = _NAME_LINE.search(path.read_bytes())
    except OSError:
        return ""
    return match[1].decode("ascii") if match is not None else ""


def find_policy(name: str, folders: list[Path]) -> Path | NotFound:
    """The file of a policy's name: in the first folder that has one.

    A file called NAME.yaml counts, whatever it declares, and so does any file that declares the
    name. Two different files of one folder that declare it are refused.
    """
    if not _NAME.fullmatch(name):
        return NotFound(f"{name[:80]!r} is no name of a policy")
    known: set[str] = set()
    for folder in folders:
        found = _find_in(name, folder, known)
        if found is not None:
            return found
    there = ", ".join(sorted(known)) or "none"
    return NotFound(f"there is no policy {name!r}; there are: {there}", nearest(name, known))


def same_name(one: Path, other: Path, name: str) -> str:
    """What is said when two files declare one name."""
    return f"two policies are called {name!r}: {one} and {other}"


def _find_in(name: str, folder: Path, known: set[str]) -> Path | NotFound | None:
    """The name's file in one folder; adds the names that the folder has to ``known``."""
    try:
        files = policy_files(folder)
    except PolicyError:
        return None
    declared = {path: declared_name(path) or stem(path) for path in files}
    known.update(declared.values())
    candidates = [path for path in files if declared[path] == name]
    different = sorted({real_path(path) for path in candidates})
    if len(different) > 1:
        return NotFound(same_name(different[0], different[1], name), "rename one of them")
    exact = [path for path in files if stem(path) == name]
    return next(iter(exact or candidates), None)


def _is_policy(path: Path) -> bool:
    return (
        path.name.endswith(SUFFIXES)
        and not path.name.endswith(SCENARIO_SUFFIXES)
        and not path.name.startswith(".")
    )
