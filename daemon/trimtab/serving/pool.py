"""The KV pool: a budget of its own, with a ledger of who may take what of it.

Memory is reserved before it is written: a stream is granted tokens in steps, and a worker never
writes beyond the grant. What conversations that have ended left behind (idle segments) is kept for
their next turn as long as nobody needs the room, and goes least recently used first. A worker's
death changes nothing here: KV stays charged until its segment is cut or closed.
"""

from __future__ import annotations

import asyncio
import mmap
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf
from typing import Final

from trimtab.domain.kv import KvShape
from trimtab.domain.view import WHOLE, View
from trimtab.errors import ServingError, StateError
from trimtab.serving.claims import Found, Idle, Keeps, Lease, Ledger, Running, Source, kv_bytes
from trimtab.serving.disk import HANGS, FileSegment, KvDisk, Stored, patience_s
from trimtab.serving.reuse import cheapest
from trimtab.serving.segments import Segment
from trimtab.serving.threads import in_time, on_disk
from trimtab.serving.write_budget import Claim

GRANT_TOKENS: Final = 256
REUSE_MIN_TOKENS: Final = 16
IDLE_MAX: Final = 64
"""Idle conversations that are kept; what is over goes from the user who has the most."""

TOO_LARGE: Final = "kv_pool_too_small"


class Pool:
    """All KV segments of the daemon.

    Args:
        disk: Where idle conversations can go; None: nowhere.
    """

    def __init__(self, disk: KvDisk | None = None) -> None:
        self.disk = disk
        self.keeper: Keeps | None = None
        self._cap_bytes: int | None = None
        self._most_tokens: int | None = None
        self._leases: list[Lease] = []
        self._idle: list[Idle] = []
        self._reused_tokens = 0
        self._evicted = 0

    def configure(self, cap_bytes: int | None) -> None:
        """The budget; None: as much as the memory limit leaves."""
        self._cap_bytes = cap_bytes
        if cap_bytes is not None:
            self.release(self._charged() - cap_bytes)

    # ------------------------------------------------------------ streams

    def open(
        self,
        shape: KvShape,
        capacity: int,
        fingerprint: str,
        user: int | None,
        tokens: int,
        *,
        beyond: bool = False,
    ) -> Lease:
        """A new segment with a grant for its first tokens.

        Args:
            shape: Of the model's KV cache.
            capacity: Tokens that it must be able to hold.
            fingerprint: Who may read it.
            user: Whose it is; None if unknown.
            tokens: The first ones.
            beyond: Whether the budget may be overrun for it.

        Raises:
            ServingError: The budget or the machine has no room (503 ``kv_pool_full``), or never
                will have with this policy (503 ``kv_pool_too_small``).
        """
        lease = Lease(Segment(shape, capacity), fingerprint, user)
        self._leases.append(lease)
        if not self.grant(lease, tokens, beyond=beyond):
            needs_bytes = kv_bytes(lease, _paged(lease, tokens))
            self.drop(lease)
            raise self._no_room(tokens, needs_bytes)
        return lease

    def second(self, lease: Lease, tokens: int) -> Lease:
        """Another segment for the same conversation, in memory.

        Raises:
            ServingError: The budget or the machine has no room.
        """
        segment = lease.segment
        other = self.open(segment.shape, segment.capacity, lease.fingerprint, lease.user, tokens)
        other.writers, other.doubts = lease.writers, lease.doubts
        return other

    def lend(self, segment: Segment, like: Lease) -> Lease:
        """A claim on a segment on disk: all that it has space for, and nothing of the budget.

        Args:
            segment: Where the KV is to go.
            like: The conversation's claim until now.
        """
        lease = Lease(
            segment,
            like.fingerprint,
            like.user,
            granted=segment.most_tokens,
            writers=like.writers,
            doubts=like.doubts,
        )
        self._leases.append(lease)
        return lease

    def grant(self, lease: Lease, tokens: int, *, beyond: bool = False) -> bool:
        """Reserve room for at least so many tokens; idle segments make way.

        Where there is no room for a whole step, there may be for these.

        Args:
            lease: Whose grant it is.
            tokens: How many it is to be for.
            beyond: Whether the budget may be overrun for it.

        Returns:
            False if the budget has no room; the grant is what it was.
        """
        return lease.granted >= min(tokens, lease.segment.most_tokens) or any(
            self._reserve(lease, wanted, beyond=beyond)
            for wanted in (_stepped(lease, tokens), _paged(lease, tokens))
        )

    def spare_bytes(self) -> float:
        """What streams could still be granted; infinite where the budget has no bound."""
        if self._cap_bytes is None:
            return inf
        could_go = sum(idle.memory_bytes for idle in self._movable())
        return self._cap_bytes - self._charged() + could_go

    def most_tokens(self, shape: KvShape) -> float:
        """How many tokens of a conversation the whole budget holds."""
        if self._cap_bytes is None:
            return inf
        return shape.tokens_within(self._cap_bytes, mmap.PAGESIZE)

    def drop(self, lease: Lease) -> None:
        """Give a stream's segment back to the system."""
        if lease in self._leases:
            self._leases.remove(lease)
        lease.segment.reached(lease.valid)
        lease.segment.close()

    def retire(self, lease: Lease, tokens: Sequence[int], at_s: float, view: View = WHOLE) -> None:
        """The stream has ended: keep what is valid for the conversation's next turn.

        On disk it stays where it is, and counts once `seal` has been over it. What others copy from
        stays whole until they are done.
        """
        lease.segment.reached(lease.valid)
        if self._most_tokens is not None and not lease.readers:
            lease.valid = min(lease.valid, self._most_tokens)
        if lease.valid < REUSE_MIN_TOKENS or lease not in self._leases or lease.refused:
            self.drop(lease)
            return
        if lease.valid <= view.keep:
            view = WHOLE  # nothing beyond what is forgotten has been read
        held = array("I", tokens[: lease.valid + view.dropped])
        self._leases.remove(lease)
        if isinstance(lease.segment, FileSegment):
            try:
                idle = self._left_on_disk(lease, lease.segment, held, at_s, view)
            except ServingError:  # no descriptor for it, or the disk has failed
                lease.segment.close()
                return
        else:
            lease.granted = lease.valid
            lease.segment.cut(lease.valid)
            idle = Idle(lease, held, at_s, view=view)
        self._idle.append(idle)
        if idle.sealed:
            self._keep(idle)
        while len(self._idle) > IDLE_MAX and (surplus := self._surplus()) is not None:
            self._evict(surplus)

    def adopt(self, idle: Idle) -> None:
        """Take over a conversation that an earlier controller had kept.

        Raises:
            StateError: Budget or disk have no room for it; it is given back.
        """
        self._idle.append(idle)
        if idle.stored is not None:
            if self.disk is None:
                idle.stored.close()
                idle.stored = None
                self._evict(idle)
                raise StateError("there is no disk for it any more")
            self.disk.stored_bytes += idle.stored.size_bytes
            if self.disk.over_quota():
                self._evict(idle)
                raise StateError("the disk quota has no room for it")
        if self._cap_bytes is not None and self._charged() > self._cap_bytes:
            self._evict(idle)
            raise StateError("the KV pool has no room for it")

    # ------------------------------------------------------------ reuse

    def find(
        self,
        prompt: Sequence[int],
        fingerprint: str,
        user: int | None,
        *,
        everyone: bool,
        view: View = WHOLE,
        refused: frozenset[str] = frozenset(),
        running: Iterable[Running] = (),
        stored: bool = True,
    ) -> Found | None:
        """The conversation that a prompt begins with at the least cost.

        Args:
            prompt: Token ids.
            fingerprint: Of the variant that is to go on.
            user: Whose conversation it is.
            everyone: Whether other users' conversations may serve too.
            view: What would be seen of the prompt if it began from nothing.
            refused: Variants whose KV may not serve: it is to be computed again.
            running: Conversations that go on, and may be copied from.
            stored: Whether what lies on disk may serve.
        """
        idle = (
            idle
            for idle in self._open_to(user, everyone=everyone)
            if (not idle.busy or (idle.leaving is not None and idle.lease.user == user))
            and idle.sealed
            and (idle.stored is None or (stored and not self._disk_is_late))
        )
        sources: Iterable[Source] = chain(idle, running)
        may_serve = (
            source
            for source in sources
            if source.lease.may_serve(fingerprint, user, refused, everyone=everyone)
        )
        return cheapest(array("I", prompt), view, may_serve, REUSE_MIN_TOKENS)

    def known(self, said: Sequence[str], user: int | None, *, everyone: bool) -> Sequence[int]:
        """Token ids of the idle conversation that has most of what was said; none if none has any.

        Args:
            said: Keys of what was said, the latest last.
            user: Whose conversation it is.
            everyone: Whether other users' conversations may serve too.
        """
        may_serve = self._open_to(user, everyone=everyone)
        rank = {key: at for at, key in enumerate(said)}
        most = [
            (max(rank.get(key, -1) for key in idle.lease.said), idle.used_s, at)
            for at, idle in enumerate(may_serve)
            if not rank.keys().isdisjoint(idle.lease.said)
        ]
        return may_serve[max(most)[2]].tokens if most else ()

    def take(self, found: Found) -> Lease:
        """Go on with an idle segment: the positions that were found are valid.

        If a disk is taking it, what is written of it is given up.
        """
        idle, lease = found.source, found.source.lease
        assert isinstance(idle, Idle)
        idle.leaving = None
        self._idle.remove(idle)
        self._forget(idle)
        lease.granted = max(found.positions, lease.granted)
        self._leases.append(lease)
        return self.reuse(found, lease)

    def reuse(self, found: Found, lease: Lease) -> Lease:
        """A claim begins with the positions that were found: they are in its segment."""
        source = found.source.lease
        lease.valid, lease.writers = found.positions, source.writers
        if lease is not source:
            lease.stems_from(source)
        self._reused_tokens += found.positions
        return lease

    def read(self, source: Source) -> None:
        """A thread is about to read it: it stays as it is until `was_read`.

        In memory others may read it, too.
        """
        if isinstance(source, Idle) and source.stored is not None:
            source.busy = True
        else:
            source.lease.readers += 1

    def was_read(self, source: Source) -> None:
        """That thread has ended."""
        if isinstance(source, Idle) and source.stored is not None:
            source.busy = False
        else:
            source.lease.readers -= 1
        for idle in [idle for idle in self._idle if idle.lease is source.lease]:
            self._at_rest(idle)

    def let_go(self, idle: Idle) -> bool:
        """Nobody is at work on it any more.

        Returns:
            False if it has turned out to be wrong meanwhile: it has been forgotten.
        """
        idle.busy = False
        self._at_rest(idle)
        return not idle.wrong

    def leave_disk(self, idle: Idle) -> None:
        """A stored conversation goes on in memory: its file is of no use any more."""
        self._idle.remove(idle)
        self._close(idle)

    def distrust(self, lease: Lease) -> None:
        """A conversation's KV may be wrong: it serves nobody else, nor does what it leaves behind.

        What is just being copied of it isn't believed either.
        """
        lease.distrust()
        for idle in [idle for idle in self._idle if idle.lease is lease]:
            self._give_up(idle)

    @property
    def copying(self) -> bool:
        """True while KV is written, read or copied: until that is done it can't make way.

        What nobody waits for any more, since a disk hangs over it, isn't counted on.
        """
        filling = any(lease.filling and not lease.late for lease in self._leases)
        return filling or any(idle.in_use for idle in self._idle)

    # ------------------------------------------------------------ relief

    def release(self, wanted_bytes: int) -> int:
        """Drop idle segments, least recently used first, until so much has been given back.

        Returns:
            Bytes given back, as the kernel counts them.
        """
        freed = 0
        while freed < wanted_bytes and (idle := self._oldest()) is not None:
            freed += self._evict(idle)
        return freed

    def release_all(self) -> int:
        """Drop every idle segment, those on disk too."""
        freed = 0
        for idle in self._movable(on_disk=True):
            freed += self._evict(idle)
        return freed

    def limit(self, tokens: int) -> int:
        """Conversations may only go on with so many tokens: what idle ones hold beyond goes back.

        Those that run keep what they have until they end.

        Returns:
            Bytes given back, as the kernel counts them.
        """
        self._most_tokens = tokens
        return sum(self._shorten(idle) for idle in self._idle if not idle.in_use)

    # ------------------------------------------------------------ disk

    def to_offload(self, but: Sequence[Idle] = ()) -> Idle | None:
        """The idle conversation in memory that was used longest ago; None if there is none.

        Args:
            but: Not one of these.
        """
        those = (idle for idle in self._movable() if not any(idle is one for one in but))
        return _used_first(those)

    async def offload(self, idle: Idle, at_s: float) -> str:
        """Move an idle conversation's KV to disk, unless its next turn comes before that is done.

        A disk that hangs is left alone with it: the conversation stays in memory.

        Returns:
            Why it was not done, in words; empty if it was.
        """
        disk, lease = self.disk, idle.lease
        if disk is None:
            return "there is no disk for it"
        size_bytes = lease.segment.packed_bytes(lease.valid)
        if reason := HANGS if disk.unanswered else self.room_on_disk(size_bytes, at_s):
            return reason
        try:
            source = lease.segment.again()  # its next turn may end, too, before that is done
        except ServingError as error:  # of which the disk is innocent
            return error.message
        claim = disk.claim(size_bytes, at_s)
        idle.busy, idle.leaving = True, claim
        writing = on_disk(disk.write, claim, source, lease.valid)
        ended = partial(self._offloaded, disk, idle, claim, source)

        def leave(writing: asyncio.Future[Stored]) -> None:
            self._stay(idle, claim)
            disk.leave(writing, ended)

        done = await in_time(writing, patience_s(size_bytes), leave)
        return ended(writing) if done else HANGS

    def room_on_disk(self, size_bytes: int, at_s: float) -> str:
        """Why so much can't be written now, in words; empty if it can.

        Conversations on disk that were used longest ago make way. If they couldn't make enough,
        they all stay.
        """
        disk = self.disk
        if disk is None:
            return "there is no disk for it"
        if reason := disk.forbids(size_bytes, at_s):
            return reason
        those = [idle.stored for idle in self._movable(in_memory=False, on_disk=True)]
        could_go = sum(stored.size_bytes for stored in those if stored is not None)
        if reason := disk.room_for(size_bytes - could_go, at_s):
            return reason
        self.keep_to_quota(size_bytes)
        return disk.room_for(size_bytes, at_s)

    def keep_to_quota(self, more_bytes: int = 0) -> None:
        """Conversations on disk that were used longest ago make way, also for so much more."""
        while (
            self.disk is not None
            and self.disk.over_quota(more_bytes)
            and (idle := self._oldest(in_memory=False, on_disk=True)) is not None
        ):
            self._evict(idle)

    def to_seal(self) -> Idle | None:
        """A conversation that ended on disk and has no checksum yet; None if there is none.

        While the disk hangs over something else, that can wait.
        """
        if self.disk is None or self.disk.unanswered:
            return None
        return next((idle for idle in self._idle if not idle.sealed and not idle.busy), None)

    async def seal(self, idle: Idle, at_s: float) -> str:
        """Make what a conversation left on disk fit to be believed; else it is forgotten.

        Args:
            idle: As `to_seal` gives it.
            at_s: Now.

        Returns:
            Why the disk can't keep it, in words; empty if it does.
        """
        disk, stored = self.disk, idle.stored
        assert disk is not None
        assert stored is not None
        idle.busy = True
        sealing = on_disk(disk.seal, stored, idle.lease.segment)
        ended = partial(self._sealed, disk, idle, stored, at_s)
        leave = partial(disk.leave, ended=ended)
        done = await in_time(sealing, patience_s(stored.size_bytes), leave)
        return ended(sealing) if done else HANGS

    def doubt(self, segment: FileSegment) -> None:
        """The disk has failed to write a segment: nobody goes on with what it leaves behind."""
        segment.doubt()
        for idle in [idle for idle in self._idle if idle.wrong]:
            self._give_up(idle)

    def close(self) -> None:
        """Give everything back, but what the service manager keeps for the next controller.

        What a thread is at work on ends with the process.
        """
        for idle in [idle for idle in self._idle if idle.kept and not idle.busy]:
            self._idle.remove(idle)
            idle.lease.segment.close()
            if idle.stored is not None:
                idle.stored.close()
        self.release_all()
        for lease in [lease for lease in self._leases if not lease.filling]:
            self.drop(lease)

    def ledger(self) -> Ledger:
        """What is held now, measured."""
        return Ledger(
            leased=sum(lease.segment.committed_bytes() for lease in self._leases),
            filed=sum(
                lease.segment.predicted_bytes(lease.valid)
                for lease in self._leases
                if lease.segment.on_disk
            ),
            unwritten=sum(lease.unwritten_bytes for lease in self._leases),
            idle=self.idle_bytes(),
            idle_count=len(self._idle),
            stored=self.disk.stored_bytes if self.disk is not None else 0,
            stored_count=sum(1 for idle in self._idle if idle.stored is not None),
            reused_tokens=self._reused_tokens,
            evicted=self._evicted,
        )

    # ------------------------------------------------------------ inside

    def _left_on_disk(
        self, lease: Lease, segment: FileSegment, tokens: array[int], at_s: float, view: View
    ) -> Idle:
        """What a stream leaves behind whose segment is a file, which its conversation keeps.

        Raises:
            ServingError: There is no descriptor for it, or the disk has failed to write it.
        """
        empty = Segment(segment.shape, segment.capacity)
        try:
            stored = segment.leave(lease.valid)
        except ServingError:
            empty.close()
            raise
        claim = replace(lease, segment=empty, granted=lease.valid)
        return Idle(claim, tokens, at_s, stored, view=view)

    def _no_room(self, tokens: int, needs_bytes: int) -> ServingError:
        """Why so many tokens are not granted: not now, or never with this policy."""
        if self._cap_bytes is not None and needs_bytes > self._cap_bytes:
            return ServingError(
                f"a conversation of {tokens} tokens takes {needs_bytes >> 20} MiB of KV, and the "
                f"KV pool has {self._cap_bytes >> 20} MiB in all",
                code=TOO_LARGE,
                hint="Ask for less, or give the policy a larger kv.pool.",
            )
        return ServingError(
            f"the KV pool has no room for a conversation of {tokens} tokens",
            code="kv_pool_full",
            retry_after_s=5,
        )

    def _reserve(self, lease: Lease, tokens: int, *, beyond: bool) -> bool:
        more = kv_bytes(lease, tokens) - kv_bytes(lease, lease.granted)
        if not self._make_room(more) and not beyond:
            return False
        lease.granted = tokens
        return True

    def _make_room(self, more_bytes: int) -> bool:
        """True if the budget has room for so much more, once idle segments have made way.

        If they couldn't make enough, they all stay.
        """
        if self._cap_bytes is None:
            return True
        most = self._cap_bytes - more_bytes
        if self._charged() - sum(idle.memory_bytes for idle in self._movable()) > most:
            return False
        while self._charged() > most and (idle := self._oldest()) is not None:
            self._evict(idle)
        return self._charged() <= most

    def _charged(self) -> int:
        """What the ledger says: grants of streams, used or not, and what idle segments hold."""
        return sum(kv_bytes(lease, lease.granted) for lease in self._leases) + self.idle_bytes()

    def idle_bytes(self) -> int:
        """What conversations that have ended hold."""
        return sum(idle.memory_bytes for idle in self._idle)

    def _oldest(self, *, in_memory: bool = True, on_disk: bool = False) -> Idle | None:
        """The idle conversation there that was used longest ago; None if there is none."""
        return _used_first(self._movable(in_memory=in_memory, on_disk=on_disk))

    def _surplus(self) -> Idle | None:
        """The oldest idle conversation of the user who has the most: nobody pushes others' out.

        None if all are in use.
        """
        count = Counter(idle.lease.user for idle in self._idle)
        return min(
            self._movable(on_disk=True),
            key=lambda idle: (-count[idle.lease.user], idle.used_s),
            default=None,
        )

    def _open_to(self, user: int | None, *, everyone: bool) -> list[Idle]:
        """Conversations that a user may go on with; none that is wrong."""
        return [
            idle for idle in self._idle if not idle.wrong and (everyone or idle.lease.user == user)
        ]

    def _movable(self, *, in_memory: bool = True, on_disk: bool = False) -> list[Idle]:
        """Idle conversations there that can be moved or dropped now."""
        return [
            idle
            for idle in self._idle
            if not idle.in_use and (in_memory if idle.stored is None else on_disk)
        ]

    def _offloaded(
        self,
        disk: KvDisk,
        idle: Idle,
        claim: Claim,
        source: Segment,
        writing: asyncio.Future[Stored],
    ) -> str:
        """A write of an idle conversation has ended; why it failed, in words, if it did."""
        stored = None
        try:
            stored = writing.result()
        except ServingError as error:
            disk.failed(error.message, claim.at_s)
            return error.message
        finally:
            source.close()
            right = self._written(idle, claim, stored)
        disk.worked()
        if right:
            idle.lease.segment.cut(0)
            self._keep(idle)  # what was kept had its KV in memory
        return ""

    def _sealed(
        self, disk: KvDisk, idle: Idle, stored: Stored, at_s: float, sealing: asyncio.Future[int]
    ) -> str:
        """`KvDisk.seal` has ended; why the disk can't keep it, in words, if it can't."""
        reason = ""
        try:
            stored.checksum = sealing.result()
        except ServingError as error:
            reason = error.message
            disk.failed(reason, at_s)
        finally:
            right = self.let_go(idle)
        if right:
            self._keep(idle)
        return reason

    def _written(self, idle: Idle, claim: Claim, stored: Stored | None) -> bool:
        """A write has ended; whether the conversation is on disk now, and to be believed."""
        assert self.disk is not None
        if idle.lease.readers:  # somebody copies from it just now
            self._stay(idle, claim)
        taken = idle.leaving is not claim
        if stored is not None and taken:
            stored.close()
        if stored is None or taken:
            self.disk.unclaim(claim)
        if taken:
            return False
        idle.leaving, idle.stored = None, stored
        return self.let_go(idle)

    def _stay(self, idle: Idle, claim: Claim) -> None:
        """A write is given up: its conversation stays in memory, unless it has gone on."""
        if idle.leaving is claim:
            idle.leaving = None
            self.let_go(idle)

    @property
    def _disk_is_late(self) -> bool:
        return self.disk is not None and self.disk.late > 0

    def _at_rest(self, idle: Idle) -> None:
        """What had to wait until nobody is at work on it."""
        if idle.in_use:
            return
        if idle.wrong:
            self._evict(idle)
        else:
            self._shorten(idle)

    def _shorten(self, idle: Idle) -> int:
        """Give back what it holds in memory beyond what conversations may go on with."""
        most = self._most_tokens
        if most is None or idle.stored is not None or idle.lease.valid <= most:
            return 0
        idle.shorten(most)
        freed = idle.lease.segment.cut(most)
        self._keep(idle)  # what was kept says more than is there now
        return freed

    def _keep(self, idle: Idle) -> None:
        self._forget(idle)
        if self.keeper is not None:
            idle.kept = self.keeper.keep(idle)

    def _forget(self, idle: Idle) -> None:
        if self.keeper is not None and idle.kept:
            self.keeper.forget(idle.kept)
        idle.kept = ""

    def _give_up(self, idle: Idle) -> None:
        """It has turned out to be wrong; what a thread is at work on goes once that has ended."""
        self._forget(idle)  # the next controller must not believe it either
        if not idle.in_use:
            self._evict(idle)

    def _evict(self, idle: Idle) -> int:
        self._idle.remove(idle)
        self._evicted += 1
        return self._close(idle)

    def _close(self, idle: Idle) -> int:
        committed = idle.lease.segment.committed_bytes()
        # Punched first: a worker that still maps it must not keep the memory, nor the manager.
        idle.lease.segment.cut(0)
        self._forget(idle)
        idle.lease.segment.close()
        if idle.stored is not None and self.disk is not None:
            self.disk.give_up(idle.stored)
        return committed


def _used_first(conversations: Iterable[Idle]) -> Idle | None:
    return min(conversations, key=lambda idle: idle.used_s, default=None)


def _paged(lease: Lease, tokens: int) -> int:
    """So many tokens, and as many more as their pages hold anyway."""
    segment = lease.segment
    return min(segment.shape.filled(tokens, mmap.PAGESIZE), segment.most_tokens)


def _stepped(lease: Lease, tokens: int) -> int:
    """The grant that so many tokens take."""
    return min(-(-tokens // GRANT_TOKENS) * GRANT_TOKENS, lease.segment.most_tokens)
