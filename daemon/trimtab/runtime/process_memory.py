"""What a process of ours holds that nobody else could have: its anonymous memory."""

from __future__ import annotations

from pathlib import Path

from trimtab.domain.process_memory import parse_holdings


def anonymous_bytes(pid: int, proc_root: Path) -> int | None:
    """Anonymous resident memory of a process; None if it is gone or the kernel doesn't say."""
    try:
        text = (proc_root / str(pid) / "status").read_text(encoding="ascii", errors="replace")
        return parse_holdings(text).anonymous_bytes
    except (OSError, ValueError):
        return None
