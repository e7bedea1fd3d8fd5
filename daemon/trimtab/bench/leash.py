"""``python -m trimtab.bench.leash PROGRAM ARGS...``: run a program that ends with its parent.

The kernel sends the program SIGTERM when the process that started it is gone, however it went. The
setting survives the exec, so the program itself knows nothing of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
_USAGE: Final = 2


def tie_to_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def leashed(argv: list[str], parent: int) -> list[str]:
    """The command line that runs ``argv`` tied to the process ``parent``."""
    return [sys.executable, "-m", "trimtab.bench.leash", str(parent), *argv]


def main(argv: list[str]) -> int:
    """Tie, check that the parent is still the one that is meant, and become the program.

    Returns:
        An exit status, if there is nothing to become.
    """
    if len(argv) < 2 or not argv[0].isdigit():
        sys.stderr.write("usage: python -m trimtab.bench.leash PARENT PROGRAM ARGS...\n")
        return _USAGE
    tie_to_parent(signal.SIGTERM)
    if os.getppid() == int(argv[0]):
        os.execvp(argv[1], argv[1:])  # noqa: S606  # the caller's own program, no shell
    return 0  # the parent was gone before the kernel knew whom to watch


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
