"""What is made of workers that die on a stream, one after the other.

All that a worker has dies with it. Once those that may be why are tried one by one, each death
tells of one alone: the others get their tokens, and it is given up in the end.
"""

from __future__ import annotations

from typing import Final

from trimtab.planner.faults import BARREN_ALLOWED
from trimtab.serving.stream import Stream

LOSSES_MAX: Final = BARREN_ALLOWED + 3
"""Some more than it takes to quarantine a variant, so that another one may try."""

LOSSES_SUSPECT: Final = 2
"""Workers that may die on a stream before it is tried with no other such stream beside it."""

LOSSES_ON_DISK: Final = 2
LOSSES_IN_MEMORY: Final = BARREN_ALLOWED
"""Workers that may die on a stream one after the other before its KV on disk is blamed.

A bad block ends whoever reads it. Memory is blamed for the last try only: workers that are killed
from outside come back soonest with the KV that there is.
"""


def was_at_work_for(stream: Stream) -> bool:
    """Whether its worker, which has died, can have been computing or moving something of it."""
    return stream.moving is not None or not (stream.paused or stream.starved)


def is_suspect(stream: Stream) -> bool:
    """True if it may be what workers die on."""
    return stream.losses >= LOSSES_SUSPECT


def suspicion(stream: Stream) -> int:
    """How much speaks against it: who is suspected least is tried first."""
    return stream.losses if is_suspect(stream) else 0


def blames_kv(stream: Stream) -> bool:
    """True if its KV is to be computed again, since it may be what workers die on."""
    on_disk = stream.lease is not None and stream.lease.segment.on_disk
    return stream.losses >= (LOSSES_ON_DISK if on_disk else LOSSES_IN_MEMORY)
