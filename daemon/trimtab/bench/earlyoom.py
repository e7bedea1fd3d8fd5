"""earlyoom beside us: Debian's daemon against running out of memory, in dry run.

It is started with the same limit on available memory and writes a line when that is crossed; the
time of the line is its reaction. It kills nobody.
"""

from __future__ import annotations

import os
import shutil
from time import perf_counter
from typing import Final

from trimtab.bench.leash import leashed
from trimtab.errors import TrimtabError
from trimtab.workers.process import ChildProcess

PROGRAM: Final = "earlyoom"
SAYS: Final = "low memory!"
KIB: Final = 1024
END_GRACE_S: Final = 5.0


def installed() -> bool:
    """Whether this machine has it."""
    return shutil.which(PROGRAM) is not None


def check() -> None:
    """See that it is there.

    Raises:
        TrimtabError: It isn't, with the way to get it.
    """
    if not installed():
        raise TrimtabError(
            "this benchmark compares with earlyoom, which isn't installed",
            hint="`apt install earlyoom` brings it; it need not run. --quick goes without it.",
            code="earlyoom_missing",
        )


class Earlyoom:
    """A running earlyoom that only tells.

    Args:
        limit_bytes: It reacts when available memory is at or under this.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._times_s: list[float] = []
        limit = f"{limit_bytes // KIB},1"  # the second number is when it would use SIGKILL
        argv = [PROGRAM, "--dryrun", "-r", "0", "-M", limit, "-s", "100"]
        self._process = ChildProcess(
            leashed(argv, os.getpid()), (), lambda status: None, self._said
        )

    def reacted_s(self, since_s: float) -> float | None:
        """When it first reacted after that; None if it hasn't."""
        return next((at_s for at_s in self._times_s if at_s >= since_s), None)

    @property
    def alive(self) -> bool:
        """False once it has ended."""
        return self._process.alive

    @property
    def said(self) -> str:
        """Its last words."""
        return self._process.stderr_tail

    async def stop(self) -> None:
        """End it."""
        await self._process.end(END_GRACE_S)

    def _said(self, line: str) -> None:
        if SAYS in line:
            self._times_s.append(perf_counter())
