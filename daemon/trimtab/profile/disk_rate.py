"""How fast KV goes to disk and comes back, with the real bytes of a segment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import StateError
from trimtab.serving.segments import Segment

_CHUNK: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Bytes a second, to the disk (synced) and from it (not from the page cache)."""

    offload: float
    restore: float


def measure_disk(
    segment: Segment, length: int, folder: Path, now_s: Callable[[], float]
) -> DiskRates:
    """Write the beginning of a segment to a file without a name, and read it back.

    Args:
        segment: Holds the bytes.
        length: How many of them.
        folder: On the disk in question.
        now_s: The clock.

    Raises:
        StateError: The disk is full, or the folder can't be written.
    """
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, length)
            begun_s = now_s()
            _copy(segment.descriptor, descriptor, length)
            os.fdatasync(descriptor)
            written_s = now_s()
            os.posix_fadvise(descriptor, 0, length, os.POSIX_FADV_DONTNEED)
            middle_s = now_s()
            os.lseek(descriptor, 0, os.SEEK_SET)
            while os.read(descriptor, _CHUNK):
                pass
            read_s = now_s()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StateError(
            f"{folder}: {length / 1e6:.0f} MB of KV can't be written there: {error.strerror}",
            hint="Free some space; what was measured so far is kept.",
        ) from error
    return DiskRates(length / max(1e-9, written_s - begun_s), length / max(1e-9, read_s - middle_s))


def _copy(source: int, target: int, length: int) -> None:
    offset = 0
    while offset < length:
        copied = os.sendfile(target, source, offset, min(_CHUNK, length - offset))
        if copied == 0:
            raise OSError(5, "the segment ended early")
        offset += copied
