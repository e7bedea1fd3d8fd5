"""What a worker process holds, from its ``status`` file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import WorkerError

_FIELDS: Final = ("RssAnon", "RssFile", "RssShmem")


@dataclass(frozen=True, slots=True)
class Holdings:
    """Resident memory by kind.

    Attributes:
        anonymous_bytes: Nobody else's: weights as the engine packed them, arenas, the interpreter.
        file_bytes: Pages of files; the kernel can take them back.
        shmem_bytes: KV segments that are mapped.
    """

    anonymous_bytes: int
    file_bytes: int
    shmem_bytes: int


def parse_holdings(text: str) -> Holdings:
    """Parses ``/proc/PID/status``.

    Raises:
        ValueError: A field is missing.
    """
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found[name] = int(value.split()[0]) * 1024
    missing = [name for name in _FIELDS if name not in found]
    if missing:
        raise ValueError(f"the process's status has no {', '.join(missing)}")
    return Holdings(found["RssAnon"], found["RssFile"], found["RssShmem"])


def read_holdings(pid: int, proc_root: Path) -> Holdings:
    """What a process holds now.

    Raises:
        WorkerError: It is gone, or the kernel doesn't say.
    """
    try:
        return parse_holdings((proc_root / str(pid) / "status").read_text("ascii", "replace"))
    except (OSError, ValueError) as error:
        raise WorkerError(f"the memory of process {pid} can't be read: {error}") from error
