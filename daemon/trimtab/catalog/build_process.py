"""The one place of the catalog that starts processes: builders, pip, and proofs.

It isn't `workers.process`: these are short commands of a person at a terminal, run one at a time
and awaited, with no event loop around them.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from trimtab.errors import BuildError

KEPT_LINES: Final = 2000
END_DEADLINE_S: Final = 5.0


def run(
    argv: Sequence[str],
    what: str,
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run a program to its end and hand on what it prints, line by line.

    The program ends with us: whatever leaves this function (Ctrl-C too) ends its whole group.

    Args:
        argv: Program and arguments.
        what: What it does, for the message: `convert the GGUF`.
        on_line: Called with each line of its output and errors.
        cwd: Its folder.
        environ: Added to our environment.

    Raises:
        BuildError: It can't be started or says that it failed. The hint is its last line, and
            the file in which all that it printed is kept.
    """
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=cwd,
            env={**os.environ, **(environ or {})},
            process_group=0,
        )
    except OSError as error:
        raise BuildError(f"can't {what}: {argv[0]}: {error.strerror}") from error
    assert child.stdout is not None
    try:
        with child.stdout:
            for line in child.stdout:
                text = line.rstrip().rpartition("\r")[2]
                if text:
                    tail.append(text)
                    on_line(text)
        status = child.wait()
    finally:
        _end(child)
    if status != 0:
        raise BuildError(f"can't {what}: {_cause(status)}", hint=_hint(tail))


def _hint(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    with tempfile.NamedTemporaryFile(
        "w", prefix="trimtab-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        log.write("\n".join(lines) + "\n")
    return f"{lines[-1]}\n  All that it said is in {log.name}."


def _cause(status: int) -> str:
    if status == -9:
        return "the process was killed (signal 9), as the kernel does when memory runs out"
    return f"it was ended by signal {-status}" if status < 0 else f"it exited with {status}"


def _end(child: subprocess.Popen[str]) -> None:
    """End the child and what it started, if it still runs."""
    if child.poll() is not None:
        return
    for number in (15, 9):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        try:
            child.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            continue
        return
