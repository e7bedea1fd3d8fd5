"""KV on disk: idle conversations leave memory without being forgotten.

A stored conversation is an unnamed file (O_TMPFILE) in a private directory on a real disk: it is
gone with the daemon, whatever happens, and nobody can open it by name. A running conversation's
segment can be such a file too, which its worker maps. Space is taken before
anything is written, so that a full disk is an error and not a SIGBUS; writing is sequential, then
synced and dropped from the page cache, since MemAvailable doesn't see our own dirty pages. Each
stored conversation carries a checksum: what doesn't match is dropped and costs a prefill. A daily
budget protects flash.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from trimtab.domain.kv import KvShape, Span
from trimtab.errors import ServingError, StateError
from trimtab.serving.rest import Rest
from trimtab.serving.segments import Segment, punch
from trimtab.serving.threads import close_on_disk
from trimtab.serving.write_budget import Claim, WriteBudget

T = TypeVar("T")

CHUNK_BYTES: Final = 1024 * 1024
UNWRITTEN_MOST_BYTES: Final = 8 * CHUNK_BYTES
"""So much of a conversation may be in our page cache on its way to disk: the kernel counts it as
available, and it isn't until it is written."""
HANGS: Final = (
    "the disk hasn't taken within a minute what was to be written, and gets nothing else before it "
    "has"
)
HANGS_AFTER_S: Final = 60.0
_SLOWEST_BYTES_S: Final = 5 * 1024 * 1024
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})


@dataclass(slots=True)
class Stored:
    """A conversation's KV on disk.

    Attributes:
        descriptor: The unnamed file; -1 once it is closed.
        tokens: Positions in it.
        size_bytes: What they take on the disk.
        checksum: CRC-32 of them; None until it has been worked out (`KvDisk.seal`).
        spread: Whether they lie as in a segment, whose file it was, instead of one after the other.
        doubtful: Whether the disk has failed to write it: what is there may be anything.
    """

    descriptor: int
    tokens: int
    size_bytes: int
    checksum: int | None
    spread: bool = False
    doubtful: bool = False

    def close(self) -> None:
        """Give the space back, soon."""
        if self.descriptor >= 0:
            close_on_disk(self.descriptor)
            self.descriptor = -1


class FileSegment(Segment):
    """A segment that is an unnamed file: its pages are memory only as long as nobody needs it.

    Made by `KvDisk.new_segment`. Space for all tokens that may come has been taken on the disk:
    a write into a mapping of a full disk would end the worker.

    Args:
        shape: Of the model's KV cache.
        capacity: Positions that there are addresses for.
        tokens: Positions that there is space for.
        descriptor: Ours from now on.
        claim: On the space for all its tokens.
        closed: Told once that it is given back, but for so many bytes.

    Attributes:
        doubtful: Whether the disk has failed to write it: what is there may be anything.
    """

    on_disk = True

    def __init__(
        self,
        shape: KvShape,
        capacity: int,
        tokens: int,
        descriptor: int,
        claim: Claim,
        closed: Callable[[Claim, int], None],
    ) -> None:
        self.shape = shape
        self.capacity = capacity
        self.size_bytes = shape.segment_bytes(capacity)
        self._tokens = tokens
        self._descriptor = descriptor
        self.claim = claim
        self._closed = closed
        self.doubtful = False
        self._left: Stored | None = None

    @property
    def most_tokens(self) -> int:
        """Positions that may be written."""
        return self._tokens

    def committed_bytes(self) -> int:
        """Memory that nobody else could have: none."""
        return 0

    def reached(self, tokens: int) -> None:
        """Its first positions may be on the disk: what has worn it counts for a day."""
        size_bytes = min(self.predicted_bytes(tokens), self.claim.size_bytes)
        self.claim.filled_bytes = max(self.claim.filled_bytes, size_bytes)

    def another_descriptor(self) -> int | None:
        """One for `write_back`, so that the segment may be closed meanwhile; None if it has been.

        Raises:
            ServingError: There is no descriptor left.
        """
        if self._descriptor < 0:
            return None
        try:
            return os.dup(self._descriptor)
        except OSError as error:
            raise ServingError(
                f"what runs on disk can't be written back: {error.strerror}", code="kv_disk_failed"
            ) from error

    def leave(self, tokens: int) -> Stored:
        """Leave its first positions behind as a stored conversation; the segment is closed.

        What it holds beyond them is given back by `KvDisk.seal`.

        Raises:
            ServingError: What is there may be wrong; it is as it was.
        """
        if self.doubtful:
            raise ServingError("the disk has failed to write it", code="kv_disk_failed")
        size_bytes = self.predicted_bytes(tokens)
        self._closed(self.claim, size_bytes)
        self._left = Stored(self._descriptor, tokens, size_bytes, checksum=None, spread=True)
        self._descriptor = -1
        return self._left

    def doubt(self) -> None:
        """The disk has failed to write it: pages that the kernel lets go of now are lost.

        It takes them for written all the same. What the segment has left behind is concerned too.
        """
        self.doubtful = True
        if self._left is not None:
            self._left.doubtful = True

    def close(self) -> None:
        """Give the space back soon, when no worker maps it any more."""
        if self._descriptor >= 0:
            close_on_disk(self._descriptor)
            self._descriptor = -1
            self._closed(self.claim, 0)


class KvDisk:
    """The disk side of the pool.

    `write`, `read` and `seal` block for as long as the disk takes: call them off the loop.

    Args:
        folder: A private directory, made if it is missing.
        mounts: The text of /proc/self/mounts, which tells what is no real disk.

    Raises:
        StateError: The folder can't be made, or lies in memory.

    Attributes:
        writes: The daily budget.
        running: For running conversations, whose KV has to be computed again where the disk fails
            to write it: that others can be written says nothing for them.
        stored_bytes: What is taken of the quota.
        late: Work under way that nobody waits for any more.
        unanswered: Writes of that: no other is begun meanwhile.
    """

    def __init__(self, folder: Path, mounts: str) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        except OSError as error:
            raise StateError(f"{folder}: can't be made: {error.strerror}") from error
        kind = filesystem_of(folder.resolve(), mounts)
        if kind in _IN_MEMORY:
            raise StateError(
                f"{folder} lies on a {kind}, which is memory: KV offloaded to it would free none",
                hint="Set `cache` in the configuration to a folder on a disk.",
            )
        self._folder = folder
        self._quota_bytes = 0
        self._rest = Rest()
        self.running = Rest()
        self.writes = WriteBudget()
        self.stored_bytes = 0
        self.late = 0
        self.unanswered = 0

    def configure(self, quota_bytes: int, writes_per_day_bytes: int) -> None:
        """The policy's quota and daily write budget."""
        self._quota_bytes = quota_bytes
        self.writes.limit_bytes = writes_per_day_bytes

    def room_for(self, size_bytes: int, at_s: float) -> str:
        """Why so much can't be written now, in words; empty if it can."""
        if self.stored_bytes + size_bytes > self._quota_bytes:
            return "the disk quota is used up"
        return self.forbids(size_bytes, at_s)

    def forbids(self, size_bytes: int, at_s: float) -> str:
        """Why so much can't be written now, whatever goes from the disk; empty if it can."""
        if reason := self._rest.why(at_s):
            return reason
        return "" if self.writes.has_room(size_bytes, at_s) else "today's write budget is used up"

    def over_quota(self, size_bytes: int = 0) -> bool:
        """True if so much more has no room until something that is stored goes."""
        most = self._quota_bytes - size_bytes
        return self.stored_bytes > most >= 0

    def claim(self, size_bytes: int, at_s: float, *, fills: bool = False) -> Claim:
        """Count a write before it is made.

        Args:
            size_bytes: The most that it may come to.
            at_s: Now.
            fills: Whether it is written bit by bit (see `Claim`).
        """
        claim = Claim(at_s, size_bytes, fills=fills)
        self.writes.count(claim)
        self.stored_bytes += size_bytes
        return claim

    def unclaim(self, claim: Claim, left_bytes: int = 0) -> None:
        """What was claimed takes no space, or none any more, but for so many bytes.

        What has been written of it goes on counting.
        """
        if claim.over:
            return
        claim.over = True
        self.stored_bytes -= claim.size_bytes - left_bytes
        self.writes.settle(claim)

    def wear(self, size_bytes: int, at_s: float) -> None:
        """Count what is written again, where there is space for it already."""
        self.writes.count(Claim(at_s, size_bytes, written=True, over=True))

    def failed(self, reason: str, at_s: float) -> None:
        """It didn't take what was to be written: it is left alone for a while."""
        self._rest.failed(reason, at_s)

    def worked(self) -> None:
        """It took what was to be written."""
        self._rest.worked()

    def try_again(self) -> None:
        """It is needed now, whether it has been left alone for long enough or not."""
        self._rest.end()

    def leave(
        self,
        work: asyncio.Future[T],
        ended: Callable[[asyncio.Future[T]], object],
        *,
        writes: bool = True,
    ) -> None:
        """Nobody waits for a write, or for a read, any more.

        Args:
            work: It goes on.
            ended: Is given it once it has ended, if it ever does.
            writes: Whether it is a write.
        """
        self.late += 1
        self.unanswered += writes

        def over(work: asyncio.Future[T]) -> None:
            self.late -= 1
            self.unanswered -= writes
            ended(work)

        work.add_done_callback(over)

    def new_segment(self, claim: Claim, shape: KvShape, capacity: int, tokens: int) -> FileSegment:
        """An empty segment with space for so many tokens, which have been claimed. Blocking.

        Raises:
            ServingError: The disk is full or fails; nothing is left behind.
        """
        descriptor = -1
        try:
            descriptor = self._new_file()
            os.ftruncate(descriptor, shape.segment_bytes(capacity))
            # Whole pages: a page of which a block is missing asks for it when it is written, and
            # on a full disk that is a SIGBUS (seen with blocks of 1 KiB).
            whole = min(shape.aligned_capacity(tokens, mmap.PAGESIZE), capacity)
            for span in shape.rows(0, whole, capacity):
                os.posix_fallocate(descriptor, span.offset, span.length)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise ServingError(
                f"{self._folder}: there is no room for a running conversation: {error.strerror}",
                code="kv_disk_failed",
            ) from error
        return FileSegment(shape, capacity, tokens, descriptor, claim, self.unclaim)

    def give_up(self, stored: Stored) -> None:
        """Close a stored conversation and give its space back."""
        self.stored_bytes -= stored.size_bytes
        stored.close()

    def write(self, claim: Claim, segment: Segment, tokens: int) -> Stored:
        """Write the first positions of a segment. Blocking.

        Raises:
            ServingError: The disk is full or fails; nothing is left behind.
        """
        size_bytes = segment.packed_bytes(tokens)
        descriptor = -1
        try:
            descriptor = self._new_file()
            os.posix_fallocate(descriptor, 0, size_bytes)
            claim.written = True
            checksum = 0
            for span in _synced(segment.shape.rows(0, tokens, segment.capacity), descriptor):
                checksum = _copy(
                    segment.descriptor, span.offset, descriptor, None, span.length, checksum
                )
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise ServingError(
                f"{self._folder}: KV can't be written: {error.strerror}", code="kv_disk_failed"
            ) from error
        return Stored(descriptor, tokens, size_bytes, checksum)

    def read(self, stored: Stored, segment: Segment, tokens: int) -> bool:
        """Bring the first positions of a stored conversation back into a segment. Blocking.

        All of it is read, since the checksum is of all.

        Args:
            stored: The conversation.
            segment: An empty one of the same shape and capacity as it came from.
            tokens: How many positions are wanted.

        Returns:
            False if the content isn't what was written; the segment is garbage then.

        Raises:
            ServingError: The disk fails, or there is no memory.
        """
        checksum, at = 0, 0
        try:
            wanted_bytes = tokens * segment.shape.position_bytes
            for span in segment.shape.rows(0, stored.tokens, segment.capacity):
                source, rest = span.offset if stored.spread else at, span.length - wanted_bytes
                target = segment.descriptor
                checksum = _copy(
                    stored.descriptor, source, target, span.offset, wanted_bytes, checksum
                )
                checksum = _summed(stored.descriptor, source + wanted_bytes, rest, checksum)
                at += span.length
            os.posix_fadvise(stored.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise ServingError(
                f"{self._folder}: KV can't be read: {error.strerror}", code="kv_disk_failed"
            ) from error
        return checksum == stored.checksum

    def seal(self, stored: Stored, segment: Segment) -> int:
        """Write what a running conversation has left, and give back the rest. Blocking.

        Args:
            stored: What it has left.
            segment: One of the same shape and capacity.

        Returns:
            The checksum.

        Raises:
            ServingError: The disk fails, or its filesystem can't give back parts of a file.
        """
        checksum, shape = 0, segment.shape
        try:
            for span in shape.punches(stored.tokens, segment.capacity, mmap.PAGESIZE):
                punch(stored.descriptor, span.offset, span.length)
            for span in shape.rows(0, stored.tokens, segment.capacity):
                checksum = _summed(stored.descriptor, span.offset, span.length, checksum)
            _let_go(stored.descriptor)
        except OSError as error:
            stored.doubtful = True  # the kernel says so once: another try would succeed
            raise ServingError(
                f"{self._folder}: KV can't be kept: {error.strerror}", code="kv_disk_failed"
            ) from error
        return checksum

    def _new_file(self) -> int:
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(self._folder, flags, 0o600)
        except OSError:
            # A filesystem without O_TMPFILE: a name for the blink of an eye.
            descriptor, name = tempfile.mkstemp(dir=self._folder)
            Path(name).unlink()
            return descriptor


def patience_s(size_bytes: int) -> float:
    """How long a disk that doesn't hang may take to write so much."""
    return HANGS_AFTER_S + size_bytes / _SLOWEST_BYTES_S


def write_back(descriptor: int) -> str:
    """Write what has changed in a file, let go of what nobody maps, and close it. Blocking.

    Returns:
        Why it can't be written, in words; empty if it has been. The kernel says so once, and takes
        the pages for written from then on.
    """
    try:
        _let_go(descriptor)
    except OSError as error:
        return f"what runs on disk can't be written back: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def _let_go(descriptor: int) -> None:
    """Write what has changed in a file, and have its pages taken that nobody maps."""
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _synced(spans: Iterable[Span], target: int) -> Iterator[Span]:
    """Ranges that are copied into a file, in pieces; what is there is let go of on the way."""
    unwritten = 0
    for piece in (piece for span in spans for piece in _pieces(span)):
        if unwritten + piece.length > UNWRITTEN_MOST_BYTES:
            _let_go(target)
            unwritten = 0
        unwritten += piece.length
        yield piece


def _copy(
    source: int, offset: int, target: int, position: int | None, length: int, checksum: int
) -> int:
    """Copy a range, at ``position`` or where the target's file offset is; the checksum goes on."""
    for data in _chunks(source, offset, length):
        checksum = zlib.crc32(data, checksum)
        view = memoryview(data)
        while view:
            if position is None:
                view = view[os.write(target, view) :]
            else:
                count = os.pwrite(target, view, position)
                position += count
                view = view[count:]
    return checksum


def _pieces(span: Span) -> Iterator[Span]:
    """A range in pieces of at most `CHUNK_BYTES`."""
    end = span.offset + span.length
    for at in range(span.offset, end, CHUNK_BYTES):
        yield Span(at, min(CHUNK_BYTES, end - at))


def _summed(source: int, offset: int, length: int, checksum: int) -> int:
    """The checksum goes on over a range."""
    for data in _chunks(source, offset, length):
        checksum = zlib.crc32(data, checksum)
    return checksum


def _chunks(source: int, offset: int, length: int) -> Iterator[bytes]:
    end = offset + length
    while offset < end:
        data = os.pread(source, min(CHUNK_BYTES, end - offset), offset)
        if not data:
            raise OSError(5, "the file ended early")
        yield data
        offset += len(data)


def filesystem_of(folder: Path, mounts: str) -> str:
    """The kind of filesystem that a folder lies on, from the text of /proc/self/mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        point = words[1].encode().decode("unicode_escape")
        inside = point == "/" or str(folder) == point or str(folder).startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, words[2]
    return kind
