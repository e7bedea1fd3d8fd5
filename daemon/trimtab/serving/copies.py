"""KV of other conversations for prompts that begin like them.

The next turn of a conversation takes its KV over. A prompt that leaves it early, is another user's,
or shares it with somebody who reads or writes it at the moment, gets a copy of what it shares: what
a later turn may still need stays where and whose it is. Many may copy from one at the same time.
What lies on disk is read into memory, by one at a time; a conversation whose next turn that is
leaves the disk, any other stays there, so that nothing is written again. Where there is no room for
it now, or the disk takes longer than computing would, the prompt is computed and nothing is
forgotten.

A conversation that runs may lose what it has while it is copied: it is computed again in place, or
turns out to be wrong. Then the copy is worth nothing, and isn't believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from trimtab.domain.clock import Clock
from trimtab.domain.models import VariantSpec
from trimtab.errors import ServingError
from trimtab.serving.claims import Found, Idle, Lease
from trimtab.serving.pool import Pool
from trimtab.serving.segments import Segment
from trimtab.serving.threads import in_time, on_disk

LEAST_WAIT_S: Final = 2.0
"""A card that sleeps takes a second to answer."""

UNMEASURED_TPS: Final = 200.0
"""How fast a variant reads prompts that was never measured on such a processor."""


def worth_waiting_s(positions: int, variant: VariantSpec) -> float:
    """How long KV of so many positions may take to come: as long as computing it, at least 2 s."""
    return max(LEAST_WAIT_S, positions / (variant.prefill_tps or UNMEASURED_TPS))


@dataclass(frozen=True, slots=True)
class Copying:
    """A thread writes what was found into a claim's segment.

    Attributes:
        found: What is copied.
        lease: The claim; nothing of it is valid yet.
        filling: The thread's work: whether what it has read is whole.
        rewound: How often the source had lost something before that.
    """

    found: Found
    lease: Lease
    filling: asyncio.Future[bool]
    rewound: int

    @property
    def source_stood(self) -> bool:
        """True if the source has held what was found all the time."""
        source, lease = self.found.source, self.found.source.lease
        stood = lease.rewound == self.rewound and lease.valid >= self.found.positions
        return stood and not source.wrong


class Copies:
    """Gives prompts what conversations have for them.

    Args:
        pool: Whose conversations they are.
        clock: For their age.
    """

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    async def lease(self, found: Found, user: int | None, patience_s: float) -> Lease | None:
        """A claim that begins with what was found.

        Args:
            found: As `Pool.find` gives it.
            user: Whose prompt it is.
            patience_s: How long it may take.

        Returns:
            None if it can't be had now: the prompt is to be computed.
        """
        if (lease := self.taken_over(found, user)) is not None:
            return lease
        source = found.source
        if (copying := self._begin(found, user)) is None:
            return None
        if not await in_time(copying.filling, patience_s, partial(self._leave_alone, copying)):
            return None
        lease = self._made(copying)
        if lease is not None and source.stored is not None and _goes_on(found, user):
            self._pool.leave_disk(source)
        return lease

    def taken_over(self, found: Found, user: int | None) -> Lease | None:
        """The claim itself that was found, where the prompt goes on with it and it is in memory.

        Args:
            found: As `Pool.find` gives it.
            user: Whose prompt it is.

        Returns:
            None if it has to be copied.
        """
        if found.source.stored is not None or found.source.lease.readers:
            return None
        return self._pool.take(found) if _goes_on(found, user) else None

    def begin(
        self, found: Found, user: int | None, then: Callable[[Lease | None], None]
    ) -> Lease | None:
        """Begin to copy what was found, for somebody who can't wait.

        Args:
            found: As `Pool.find` gives it, in memory.
            user: Whose prompt it is.
            then: Is given the claim once it begins with what was found, or None if that failed.

        Returns:
            The claim, with nothing in it yet; None if there is no room for it.
        """
        copying = self._begin(found, user)
        if copying is None:
            return None
        copying.filling.add_done_callback(lambda _: then(self._made(copying)))
        return copying.lease

    def _begin(self, found: Found, user: int | None) -> Copying | None:
        source = found.source
        rewound = source.lease.rewound
        self._pool.read(source)  # it doesn't make way for its own copy
        lease = self._room_for(found, user)
        if lease is None:
            self._pool.was_read(source)
            return None
        try:
            return Copying(found, lease, self._fill(found, lease), rewound)
        except (ServingError, RuntimeError):  # there is no descriptor left, or no thread
            self._pool.was_read(source)
            self._pool.drop(lease)
            return None

    def _room_for(self, found: Found, user: int | None) -> Lease | None:
        like = found.source.lease
        shape, capacity = like.segment.shape, like.segment.capacity
        try:
            return self._pool.open(shape, capacity, like.fingerprint, user, found.positions)
        except ServingError:
            return None

    def _fill(self, found: Found, lease: Lease) -> asyncio.Future[bool]:
        """Begin to write the first positions of a conversation into a claim's segment.

        Raises:
            ServingError: There is no descriptor for it.
            RuntimeError: There is no thread for it.
        """
        source, disk, target = found.source, self._pool.disk, lease.segment
        stored = source.stored
        if disk is None or stored is None:
            again = source.lease.segment.again()  # a stream may end, or be moved, meanwhile
            loop = asyncio.get_running_loop()
            try:
                work = loop.run_in_executor(None, _copied, again, target, found.positions)
            except RuntimeError:
                again.close()
                raise
        else:
            work = on_disk(disk.read, stored, target, found.positions)
        lease.filling = True
        return work

    def _made(self, copying: Copying) -> Lease | None:
        """The thread has ended: the claim, if what was written into it can be believed."""
        found, lease = copying.found, copying.lease
        if not self._ended(copying):
            self._pool.drop(lease)
            return None
        if isinstance(found.source, Idle):
            found.source.used_s = self._clock.monotonic_s()
        return self._pool.reuse(found, lease)

    def _ended(self, copying: Copying) -> bool:
        """The thread has ended: whether what it has written can be believed."""
        source, copying.lease.filling = copying.found.source, False
        try:
            whole = copying.filling.result()
        except ServingError:
            whole = False
        if source.stored is not None and not whole:
            source.lease.distrust()
        stood = copying.source_stood
        self._pool.was_read(source)
        return whole and stood

    def _leave_alone(self, copying: Copying, filling: asyncio.Future[bool]) -> None:
        """Nobody waits for it: it goes once the thread has ended, and nothing is read meanwhile."""
        disk, stored = self._pool.disk, copying.found.source.stored
        copying.lease.late = True

        def ended(_: asyncio.Future[bool]) -> None:
            self._ended(copying)
            self._pool.drop(copying.lease)

        if disk is None or stored is None:
            filling.add_done_callback(ended)
        else:
            disk.leave(filling, ended, writes=False)


def _goes_on(found: Found, user: int | None) -> bool:
    """True if this user's conversation goes on with what was found."""
    return found.goes_on and found.source.lease.user == user


def _copied(source: Segment, target: Segment, positions: int) -> bool:
    """Copy from a segment under a descriptor of its own, and close that."""
    try:
        source.copy_into(target, positions)
    finally:
        source.close()
    return True
