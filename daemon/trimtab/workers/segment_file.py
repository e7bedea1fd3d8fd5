"""The file of a KV segment, as both sides make it: a sealed, sparse memfd.

Sealed against growing and shrinking, so that nobody who maps it can be killed by SIGBUS through a
change of its size; punching holes still works. What was never written takes no memory.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Final

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make_segment_file(size_bytes: int) -> int:
    """Make one of a size; returns its descriptor.

    Raises:
        OSError: The kernel gives no memory or no descriptor.
    """
    return make_sealed_memfd("trimtab-kv", lambda made: os.ftruncate(made, size_bytes), SEALS)


def make_sealed_memfd(name: str, fill: Callable[[int], object], seals: int) -> int:
    """Make a file in memory, fill it and seal it; returns its descriptor.

    Args:
        name: For whoever looks at the process's descriptors.
        fill: Is given the descriptor; it stays ours.
        seals: As `fcntl` has them.

    Raises:
        OSError: The kernel gives no memory or no descriptor.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        fill(descriptor)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_sealed(descriptor: int) -> bool:
    """True if the file's size can't change any more.

    Raises:
        OSError: It is no file in memory.
    """
    return int(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)) & SEALS == SEALS
