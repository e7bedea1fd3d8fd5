"""How much memory this process holds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trimtab.domain.process_memory import parse_holdings

_STATUS: Final = Path("/proc/self/status")


def resident_bytes(kv_bytes: int = 0) -> int:
    """What this process holds; 0 if the kernel doesn't tell.

    Pages of KV segments are mapped twice while they are woven into a batch, and the kernel counts
    each mapping. They are left out, and what the segments really take is added.

    Args:
        kv_bytes: Bytes that the open segments take.
    """
    try:
        held = parse_holdings(_STATUS.read_text(encoding="ascii", errors="replace"))
    except (OSError, ValueError):
        return 0
    return held.anonymous_bytes + held.file_bytes + kv_bytes
