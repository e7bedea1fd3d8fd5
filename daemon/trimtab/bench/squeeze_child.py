"""The process that takes memory from the machine: ``python -m trimtab.bench.squeeze_child --fd N``.

Each line on the socket is an order. A number is how many bytes to hold; it is answered with the
number that is held once every page of it has been written. An object in JSON is a crossing
(`crossing.Order`): fill as fast as can be until available memory is under a limit and somewhat
beyond, and tell when that was and when another process gave memory back.

The memory is really used: it is filled with noise, so that nothing below can compress it away. It
goes when the socket ends, when the parent ends, or, should the machine really run out of memory,
as the kernel's first victim.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import msgspec

from trimtab.bench import crossing
from trimtab.bench.leash import tie_to_parent

CHUNK_BYTES: Final = 1024 * 1024
MOST_BYTES: Final = 8 * 1024**3
"""A bound on what a wrong order could do."""


class Hold:
    """Memory in chunks, each filled when it is taken."""

    def __init__(self) -> None:
        self._noise = os.urandom(CHUNK_BYTES)
        self._chunks: list[mmap.mmap] = []

    def more(self) -> None:
        """Take one chunk more, up to the bound."""
        self.resize(self.held_bytes + CHUNK_BYTES)

    @property
    def held_bytes(self) -> int:
        """What is held now."""
        return len(self._chunks) * CHUNK_BYTES

    def resize(self, wanted_bytes: int) -> None:
        """Take or give back whole chunks until this much is held, rounded down."""
        wanted = min(max(0, wanted_bytes), MOST_BYTES) // CHUNK_BYTES
        while len(self._chunks) < wanted:
            chunk = mmap.mmap(-1, CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            chunk[:] = self._noise
            self._chunks.append(chunk)
        while len(self._chunks) > wanted:
            self._chunks.pop().close()


def serve(connection: socket.socket) -> None:
    """Follow orders until the other side closes."""
    hold = Hold()
    with connection, connection.makefile("rw", encoding="ascii", newline="\n") as lines:
        for line in lines:
            if line.startswith("{"):
                answer = crossing.cross(hold, msgspec.json.decode(line, type=crossing.Order))
                lines.write(msgspec.json.encode(answer).decode() + "\n")
            else:
                hold.resize(int(line))
                lines.write(f"{hold.held_bytes}\n")
            lines.flush()


def main() -> int:
    """Run until the parent lets go."""
    parser = argparse.ArgumentParser(prog="trimtab.bench.squeeze_child")
    parser.add_argument("--fd", type=int, required=True, help="the socket to the parent")
    parser.add_argument("--parent", type=int, required=True, help="the parent's process number")
    told = parser.parse_args()
    tie_to_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if os.getppid() != told.parent:
        return 0
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        pass  # a sandbox may forbid it; the amount is bounded anyway
    serve(socket.socket(fileno=told.fd))
    return 0


if __name__ == "__main__":
    sys.exit(main())
