"""How much memory this process holds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trimtab.domain.process_memory import Holdings, parse_holdings

_STATUS: Final = Path("/proc/self/status")
_NOTHING: Final = Holdings(0, 0, 0)


class Held:
    """What this process holds, KV left out but for what is told.

    Pages of KV segments are mapped twice while they are woven into a batch, and the kernel counts
    each mapping: those in memory as shared, those on a disk as files. So shared pages are left out,
    files count as far as they did when this was made, before there was any KV, and what the
    segments really take is added.

    Args:
        status: The process's ``/proc/PID/status``.
    """

    def __init__(self, status: Path = _STATUS) -> None:
        self._status = status
        self._files_bytes = self._read().file_bytes

    def resident_bytes(self, kv_bytes: int = 0) -> int:
        """What it holds now; ``kv_bytes`` alone if the kernel doesn't tell.

        Args:
            kv_bytes: Bytes of memory that the open segments take.
        """
        now = self._read()
        return now.anonymous_bytes + min(now.file_bytes, self._files_bytes) + kv_bytes

    def _read(self) -> Holdings:
        try:
            return parse_holdings(self._status.read_text(encoding="ascii", errors="replace"))
        except (OSError, ValueError):
            return _NOTHING
