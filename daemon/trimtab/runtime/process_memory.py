"""What a process of ours holds that nobody else could have: its anonymous memory."""

from __future__ import annotations

from pathlib import Path


def parse_anonymous(text: str) -> int | None:
    """`RssAnon` of a /proc/PID/status, in bytes; None if the kernel doesn't say."""
    for line in text.splitlines():
        if line.startswith("RssAnon:"):
            words = line.split()
            return int(words[1]) * 1024 if len(words) > 1 and words[1].isdigit() else None
    return None


def anonymous_bytes(pid: int, proc_root: Path) -> int | None:
    """Anonymous resident memory of a process; None if it is gone or the kernel doesn't say."""
    try:
        text = (proc_root / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return parse_anonymous(text)
