"""The one place of the command line that runs the system's own tools: short, awaited, reported."""

from __future__ import annotations

import subprocess
from typing import Final

from trimtab.errors import TrimtabError

_PATIENCE_S: Final = 180.0


def run(*argv: str, must: bool = True) -> None:
    """Run one of the system's tools.

    Args:
        argv: Its name and arguments.
        must: False where a failure means that there was nothing to do.

    Raises:
        TrimtabError: It is missing, or it failed, in its words.
    """
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if must:
            raise TrimtabError(f"{argv[0]}: {error}", code="system_tool_failed") from error
        return
    if must and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise TrimtabError(
            f"`{' '.join(argv)}` failed: {said}",
            hint="`journalctl -u trimtab -n 50` may say more.",
            code="system_tool_failed",
        )
