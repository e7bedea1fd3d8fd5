"""What a process holds, from the text of its ``/proc/PID/status``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
    """Parse it.

    Raises:
        ValueError: A field is missing, as in the status of a process that has ended, or no number.
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
