"""A worker process: ``python -m trimtab.worker --fd N``, started by the controller.

It never outlives the controller: the kernel kills it when its parent ends, and the end of its
channel is the second signal.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Final, NoReturn

from trimtab.errors import LoadError, WorkerError
from trimtab.worker.channel import Channel, ChannelClosedError

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_NAME: Final = b"trimtab-worker"
_LOAD_FAILED: Final = 1
_BROKEN: Final = 3

WORKERS_GROUP_VARIABLE: Final = "TRIMTAB_WORKERS_GROUP"
"""Set by the controller where it has a control group for its workers."""


def main() -> int:
    """Run the worker; returns its exit status."""
    parser = argparse.ArgumentParser(prog="trimtab.worker", description="Started by trimtab run.")
    parser.add_argument("--fd", type=int, required=True, help="the channel to the controller")
    connection = socket.socket(fileno=parser.parse_args().fd)
    if not _tie_to_parent(connection):
        return 0
    channel = Channel(connection)
    try:
        return _serve(channel)
    except SystemExit as end:  # SIGTERM, or there was nothing to load after all
        return int(end.code or 0)
    except ChannelClosedError:
        return 0  # the controller is gone, and nobody is left to answer to
    except WorkerError as error:
        sys.stderr.write(f"{error.message}\n")
        return _BROKEN
    finally:
        channel.close()


def _serve(channel: Channel) -> int:
    # numpy would start a thread for each core; nothing here multiplies matrices with it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The engine takes a third of a second to import: not before the process is tied to its parent.
    from trimtab.worker.loading import load

    try:
        load(channel).run()
    except LoadError as error:
        sys.stderr.write(f"{error.message}\n")
        return _LOAD_FAILED
    return 0


def _tie_to_parent(connection: socket.socket) -> bool:
    """Die with the parent; False if it is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle
    _join_group(os.environ.get(WORKERS_GROUP_VARIABLE, ""))
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    parent, _, _ = struct.unpack("3i", credentials)
    return parent in (0, os.getppid())  # 0: the parent is in another namespace


def _join_group(folder: str) -> None:
    """Leave the controller's control group for the workers', before there is memory to charge."""
    if folder:
        try:
            (Path(folder) / "cgroup.procs").write_text("0", encoding="ascii")
        except OSError as error:
            sys.stderr.write(f"{folder}: can't be joined: {error.strerror}\n")


def _end(status: int) -> NoReturn:
    """End at once: the kernel takes all memory back faster than the engine gives it piece by piece.

    Whoever waits for the memory of an ended worker waits a tenth of a second less.
    """
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _end(main())
