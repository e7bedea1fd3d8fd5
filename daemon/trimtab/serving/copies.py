"""KV of idle conversations for prompts that begin like them.

The next turn of a conversation takes its KV over. A prompt that leaves it early, or is another
user's, gets a copy of what it shares: what a later turn may still need stays where and whose it is.
What lies on disk is read into memory; a conversation whose next turn that is leaves the disk, any
other stays there, so that nothing is written again. Where there is no room for it now, or the disk
takes longer than computing would, the prompt is computed and nothing is forgotten.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, TypeAlias

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

Filling: TypeAlias = "asyncio.Future[bool]"


def worth_waiting_s(positions: int, variant: VariantSpec) -> float:
    """How long KV of so many positions may take to come: as long as computing it, at least 2 s."""
    return max(LEAST_WAIT_S, positions / (variant.prefill_tps or UNMEASURED_TPS))


class Copies:
    """Gives prompts what idle conversations have for them.

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
        idle = found.idle
        goes_on = found.goes_on and idle.lease.user == user
        if goes_on and idle.stored is None:
            return self._pool.take(found)
        lease = await self._copy(found, user, patience_s)
        if goes_on and lease is not None:
            self._pool.leave_disk(idle)
        return lease

    async def _copy(self, found: Found, user: int | None, patience_s: float) -> Lease | None:
        idle = found.idle
        idle.busy = True  # it doesn't make way for its own copy
        lease = self._room_for(found, user)
        if lease is None:
            self._pool.let_go(idle)
            return None
        filling = self._fill(idle, lease, found.positions)
        if not await in_time(filling, patience_s, partial(self._leave_alone, found, lease)):
            return None
        if not self._ended(found, lease, filling):
            self._pool.drop(lease)
            return None
        idle.used_s = self._clock.monotonic_s()
        return self._pool.reuse(found, lease)

    def _room_for(self, found: Found, user: int | None) -> Lease | None:
        like = found.idle.lease
        shape, capacity = like.segment.shape, like.segment.capacity
        try:
            return self._pool.open(shape, capacity, like.fingerprint, user, found.positions)
        except ServingError:
            return None

    def _fill(self, idle: Idle, lease: Lease, positions: int) -> Filling:
        """Begin to write the first positions of a conversation into a claim's segment."""
        disk, stored, target = self._pool.disk, idle.stored, lease.segment
        lease.filling = True
        if disk is None or stored is None:
            loop = asyncio.get_running_loop()
            return loop.run_in_executor(None, _copied, idle.lease.segment, target, positions)
        return on_disk(disk.read, stored, target, positions)

    def _ended(self, found: Found, lease: Lease, filling: Filling) -> bool:
        """The thread has ended: whether what it has written can be believed."""
        idle, lease.filling = found.idle, False
        try:
            whole = filling.result()
        except ServingError:
            whole = False
        idle.refused |= not whole and idle.stored is not None
        return self._pool.let_go(idle) and whole

    def _leave_alone(self, found: Found, lease: Lease, filling: Filling) -> None:
        """Nobody waits for it: it goes once the thread has ended, and nothing is read meanwhile."""
        disk = self._pool.disk if found.idle.stored is not None else None
        if disk is not None:
            disk.late += 1

        def ended(filling: Filling) -> None:
            if disk is not None:
                disk.late -= 1
            self._ended(found, lease, filling)
            self._pool.drop(lease)

        filling.add_done_callback(ended)


def _copied(source: Segment, target: Segment, positions: int) -> bool:
    source.copy_into(target, positions)
    return True
