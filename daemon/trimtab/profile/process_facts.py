"""What a worker process holds, from its ``status`` file."""

from __future__ import annotations

from pathlib import Path

from trimtab.domain.process_memory import Holdings, parse_holdings
from trimtab.errors import WorkerError


def read_holdings(pid: int, proc_root: Path) -> Holdings:
    """What a process holds now.

    Raises:
        WorkerError: It is gone, or the kernel doesn't say.
    """
    try:
        return parse_holdings((proc_root / str(pid) / "status").read_text("ascii", "replace"))
    except (OSError, ValueError) as error:
        raise WorkerError(f"the memory of process {pid} can't be read: {error}") from error
