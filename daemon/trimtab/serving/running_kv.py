"""Where the KV of running conversations lives: in memory, or as the last rung on disk.

On disk the segment is a file that the worker maps. It runs as fast as before while its pages are
in the page cache, and the kernel may take them whenever memory is needed, since they are written
back: that is what makes memory available. What is read again from the disk then is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from trimtab.domain.clock import Clock
from trimtab.errors import ServingError, WorkerError
from trimtab.serving.claims import Lease
from trimtab.serving.disk import HANGS, FileSegment, KvDisk, patience_s, write_back
from trimtab.serving.pool import GRANT_TOKENS, Pool
from trimtab.serving.stream import Stream, StreamState
from trimtab.serving.streams import Streams
from trimtab.serving.threads import in_time, on_disk

MOVE_DEADLINE_S: Final = 10.0
FILE_DEADLINE_S: Final = 10.0
"""For the space of one conversation: a plan waits for it, and none other is made meanwhile."""

POLL_S: Final = 0.005
WRITE_BACK_TOKENS: Final = 64
"""New tokens that may wait in memory: they aren't available to anybody until they are written."""


class RunningKv:
    """Moves running conversations to disk and back, each at a token boundary.

    Args:
        streams: Who runs.
        pool: Where segments come from, and the disk.
        clock: For deadlines and the daily write budget.
    """

    def __init__(self, streams: Streams, pool: Pool, clock: Clock) -> None:
        self._streams = streams
        self._pool = pool
        self._clock = clock
        self._moves = asyncio.Lock()  # else two claim space on disk for the same conversation
        self._writes = asyncio.Lock()  # of two that write a file the kernel tells one of a failure

    @property
    def in_memory(self) -> list[Stream]:
        """Running conversations whose KV is in memory and could be moved."""
        return self._running(lambda lease: not lease.segment.on_disk)

    @property
    def on_disk(self) -> list[Stream]:
        """Running conversations whose KV is on disk."""
        return self._running(lambda lease: lease.segment.on_disk)

    @property
    def to_write(self) -> list[Stream]:
        """Conversations that have added something on disk that is worth a write.

        Who runs them, if anybody does, makes no difference: it is memory that was needed.
        """
        return [stream for stream in self._streams.all() if _is_due(stream)]

    async def to_disk(self) -> str:
        """Move all that are in memory to disk, where `write_back` is to write them.

        Returns:
            Why not all could be, in words; empty if all were.
        """
        disk = self._pool.disk
        if disk is None:
            return "there is no disk for it"
        async with self._moves:
            if reason := disk.running.why(self._clock.monotonic_s()):
                return reason
            targets, reason = await self._files_for(self.in_memory, disk)
            return await self._move(targets) or reason

    async def to_memory(self, wanted: Callable[[], bool], room_bytes: Callable[[], float]) -> str:
        """Move all that are on disk back to memory.

        All is written first: what the disk failed to take isn't copied, but computed again. That
        may take the disk long, and everything may have changed when it is done.

        Args:
            wanted: Whether they still belong in memory.
            room_bytes: Memory that may be taken for them, now.

        Returns:
            Why not all could be, in words; empty if all were, or aren't wanted there any more.
        """
        if reason := self._why_no_room(room_bytes()) or await self._sync(self.on_disk):
            return reason
        async with self._moves:
            if not wanted():
                return ""
            return self._why_no_room(room_bytes()) or await self._move_home()

    def _why_no_room(self, room_bytes: float) -> str:
        if self._pool.ledger().filed > room_bytes:
            return "there is no room in memory for running conversations that are on disk"
        return ""

    async def _move_home(self) -> str:
        """Move to memory what has room there; why not all could be, in words."""
        targets, reason = [], ""
        for stream in self.on_disk:
            lease = stream.lease
            try:
                if lease is not None:
                    targets.append((stream, self._pool.second(lease, _room_for(stream))))
            except ServingError as error:
                reason = error.message
                break
        return await self._move(targets) or reason

    async def write_back(self) -> str:
        """Write what has been added on disk since the last time, as far as it is worth a write.

        A disk that takes what has just been moved there works.

        Returns:
            Why some of it couldn't be written, in words; empty if all was.
        """
        due = self.to_write
        moved = any(stream.lease is not None and not stream.lease.written for stream in due)
        failed, disk = await self._sync(due), self._pool.disk
        if moved and not failed and disk is not None:
            disk.worked()
            disk.running.worked()
        return failed

    async def _sync(self, streams: Sequence[Stream]) -> str:
        """Write what streams have added on disk.

        Where that fails, the kernel drops pages as if they had been written. So the conversation
        goes back to memory and its KV is computed again from its tokens; the disk is left alone.

        Returns:
            Why some of it couldn't be written, in words; empty if all was.
        """
        reason = ""
        async with self._writes:
            for stream in streams:
                reason = await self._sync_one(stream) or reason
        return reason

    async def _sync_one(self, stream: Stream) -> str:
        """Write one's, if it hasn't ended or gone elsewhere while another one's was written."""
        lease, segment, disk = stream.lease, _file_of(stream), self._pool.disk
        if disk is None or disk.unanswered:
            return "" if disk is None else HANGS
        try:
            descriptor = segment.another_descriptor() if segment is not None else None
        except ServingError as error:
            return error.message
        if lease is None or segment is None or descriptor is None:
            return ""
        if again := lease.write():
            disk.wear(again * segment.shape.token_bytes, self._clock.monotonic_s())
        writing = on_disk(write_back, descriptor)
        ended = partial(self._synced, disk, stream, lease, segment)
        leave = partial(disk.leave, ended=ended)
        done = await in_time(writing, patience_s(segment.predicted_bytes(lease.valid)), leave)
        return ended(writing) if done else HANGS

    def _synced(
        self,
        disk: KvDisk,
        stream: Stream,
        lease: Lease,
        segment: FileSegment,
        writing: asyncio.Future[str],
    ) -> str:
        """Writing has ended; also if nobody waits for it any more, since it is said only once.

        Returns:
            Why it failed, in words; empty if it didn't.
        """
        if not (failed := writing.result()):
            lease.written = lease.writing
            return ""
        self._pool.doubt(segment)
        self._streams.doubt(stream)
        now = self._clock.monotonic_s()
        disk.failed(failed, now)
        disk.running.failed(failed, now)
        return failed

    def _running(self, wanted: Callable[[Lease], bool]) -> list[Stream]:
        worker = self._streams.active
        if worker is None:
            return []
        return [
            stream
            for stream in self._streams.on(worker)
            if stream.lease is not None and not stream.detaching and wanted(stream.lease)
        ]

    async def _files_for(
        self, streams: Sequence[Stream], disk: KvDisk
    ) -> tuple[list[tuple[Stream, Lease]], str]:
        """A segment on disk for each, and why there is none for the next one.

        One that has ended while others' were made needs none.
        """
        targets: list[tuple[Stream, Lease]] = []
        try:
            for stream in streams:
                if (lease := stream.lease) is None:
                    continue
                target = await self._file_for(stream, lease, disk)
                targets.append((stream, target))
        except ServingError as error:
            return targets, error.message
        except BaseException:
            for _, target in targets:
                self._pool.drop(target)
            raise
        return targets, ""

    async def _file_for(self, stream: Stream, lease: Lease, disk: KvDisk) -> Lease:
        """Space on disk for all that the stream may come to hold.

        Args:
            stream: The stream.
            lease: What it holds in memory.
            disk: Where to.

        Raises:
            ServingError: The disk, the quota or the daily budget has none.
        """
        tokens, memory = stream.most_positions, lease.segment
        size_bytes = memory.predicted_bytes(tokens)
        now = self._clock.monotonic_s()
        if reason := self._pool.room_on_disk(size_bytes, now):
            raise ServingError(reason, code="kv_disk_failed")
        claim = disk.claim(size_bytes, now, fills=True)
        order = claim, memory.shape, memory.capacity, tokens
        try:
            segment = await _made(on_disk(disk.new_segment, *order))
        except BaseException as error:
            disk.unclaim(claim)
            if isinstance(error, ServingError):
                disk.failed(error.message, now)
            raise
        return self._pool.lend(segment, lease)

    async def _move(self, targets: Sequence[tuple[Stream, Lease]]) -> str:
        """Have the worker move streams, all at once.

        One that has ended or gone elsewhere meanwhile is no fault.

        Returns:
            Why one of them couldn't be moved, in words; empty if none.
        """
        ordered: list[Stream] = []
        for stream, target in targets:
            worker = stream.worker
            if not _can_move(stream, target) or worker is None:
                self._pool.drop(target)
                continue
            ordered.append(stream)
            try:
                self._streams.room.order(stream, worker, target, stream.view)
            except WorkerError:
                continue  # it stays where it is, and `not_moved` says why
        deadline_s = self._clock.monotonic_s() + MOVE_DEADLINE_S
        while any(stream.moving is target for stream, target in targets):
            if self._clock.monotonic_s() > deadline_s:
                return f"the worker didn't move conversations within {MOVE_DEADLINE_S:.0f} s"
            await self._clock.sleep(POLL_S)
        return next((stream.not_moved for stream in ordered if stream.not_moved), "")


def _room_for(stream: Stream) -> int:
    """Positions for what there is and for what comes while the order is on its way."""
    return min(stream.positions + GRANT_TOKENS, stream.most_positions)


def _file_of(stream: Stream) -> FileSegment | None:
    """Its segment on disk; None if it has none, or one that couldn't be written."""
    segment = stream.lease.segment if stream.lease is not None else None
    return segment if isinstance(segment, FileSegment) and not segment.doubtful else None


def _is_due(stream: Stream) -> bool:
    """Whether writing it back is worth it: what was never written holds memory that was needed."""
    lease = stream.lease
    if lease is None or _file_of(stream) is None:
        return False
    added = lease.valid - lease.written
    return added >= WRITE_BACK_TOKENS or added > 0 == lease.written


def _can_move(stream: Stream, target: Lease) -> bool:
    """Whether it still runs, and another plan or hand-over hasn't been quicker."""
    lease = stream.lease
    return (
        stream.state is StreamState.RUNNING
        and lease is not None
        and lease.segment.on_disk is not target.segment.on_disk
        and lease.fingerprint == target.fingerprint
        and stream.moving is None
        and not stream.detaching
    )


async def _made(making: asyncio.Future[FileSegment]) -> FileSegment:
    """A file that a thread makes, which a disk may hold up for as long as it likes.

    Who is cancelled doesn't wait for it. What is made too late for anybody is closed.

    Raises:
        ServingError: The disk fails, or takes too long.
    """
    if await in_time(making, FILE_DEADLINE_S, lambda late: late.add_done_callback(_close_made)):
        return making.result()
    raise ServingError(
        f"the disk made no room for a running conversation within {FILE_DEADLINE_S:.0f} s",
        code="kv_disk_failed",
    )


def _close_made(making: asyncio.Future[FileSegment]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()
