"""Idle conversations outlive the controller: systemd keeps their descriptors until the next start.

For each there are two, under one name: its KV segment, and a record of what is in it; and a third,
the unnamed file, where its KV is on disk. The record is a memfd as well: token ids are text to
anybody with the tokenizer, and don't belong on a disk. After a boot, or a stop that is meant, all
of it is gone.

What comes back is believed only as far as it can be checked: tokenizer, KV shape, rope settings and
the model's files by the fingerprint, size and seals of the segment, and that the kernel holds as
much memory for it as that many tokens take. What is on disk has a checksum, as ever.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import stat
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from trimtab.domain.kv import KvShape
from trimtab.domain.models import ModelSpec
from trimtab.domain.view import View
from trimtab.errors import StateError
from trimtab.serving.claims import Idle, Lease, shape_of
from trimtab.serving.disk import Stored
from trimtab.serving.pool import Pool
from trimtab.serving.segments import Segment
from trimtab.workers.segment_file import SEALS, make_sealed_memfd

VERSION: Final = 4
NAME: Final = "kv-"
_MOST_BYTES: Final = 16 * 1024 * 1024
_RECORD_SEALS: Final = SEALS | fcntl.F_SEAL_WRITE


class Manager(Protocol):
    """The service manager, which keeps descriptors."""

    @property
    def heard(self) -> bool:
        """False if there is none."""

    def store(self, name: str, descriptors: Sequence[int]) -> None:
        """Keep these until the next start."""

    def forget(self, name: str) -> None:
        """Close what is kept under a name."""


class _Record(msgspec.Struct, frozen=True):
    """What is in a segment.

    Attributes:
        version: Of this record.
        fingerprint: Of tokenizer, KV shape and rope settings.
        layers: Of the KV shape, as are the next two.
        kv_heads: See `KvShape`.
        position_bytes: See `KvShape`.
        capacity: Positions that the segment has room for.
        user: Whose conversation it is.
        used_s: When it was last used; the monotonic clock goes on over a restart.
        tokens: Token ids, 32 bits each.
        on_disk_bytes: What its KV takes on disk; 0 if it is in memory.
        checksum: CRC-32 of what is on disk.
        keep: Tokens at the beginning that stay when the window is shifted.
        dropped: Tokens after them that have been forgotten, and aren't in the KV.
        spread: Whether it lies on disk as in a segment.
        writers: Variants that computed it.
        said: Keys of what was said.
    """

    version: int
    fingerprint: str
    layers: int
    kv_heads: int
    position_bytes: int
    capacity: int
    user: int | None
    used_s: float
    tokens: bytes
    on_disk_bytes: int
    checksum: int
    keep: int
    dropped: int
    spread: bool
    writers: tuple[str, ...]
    said: tuple[str, ...] = ()  # so that an older record is told by its version

    @property
    def positions(self) -> int:
        """Positions in the segment that count."""
        return len(self.tokens) // array("I").itemsize - self.dropped


class Keeper:
    """Has the service manager keep idle conversations.

    Args:
        manager: Keeps descriptors.
        first: Number of the next name; names that are taken lie below.
    """

    def __init__(self, manager: Manager, first: int = 1) -> None:
        self._manager = manager
        self._numbers = itertools.count(first)

    def keep(self, idle: Idle) -> str:
        """Have a conversation kept.

        Returns:
            The name under which it is kept; empty if the kernel has no descriptor left.
        """
        segment = idle.lease.segment
        try:
            record = _write(_record(idle))
        except OSError:
            return ""
        name = f"{NAME}{next(self._numbers)}"
        try:
            file = () if idle.stored is None else (idle.stored.descriptor,)
            self._manager.store(name, (segment.descriptor, record, *file))
        finally:
            os.close(record)
        return name

    def forget(self, name: str) -> None:
        """The conversation goes on, or has been given up."""
        self._manager.forget(name)


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back.

    Attributes:
        conversations: How many go on.
        dropped: Why others don't, one sentence each.
    """

    conversations: int
    dropped: tuple[str, ...]


def restore(
    passed: Mapping[str, Sequence[int]], pool: Pool, model: ModelSpec | None, manager: Manager
) -> Restored:
    """Give the pool what an earlier controller left with the service manager, and go on keeping.

    What was used last comes first, in case there is no room for all.

    Args:
        passed: Descriptors by name; all that are ours are taken over or closed.
        pool: Gets the conversations; it keeps its later ones with the manager too.
        model: What is served.
        manager: Told to forget what isn't used.
    """
    if not manager.heard:
        return Restored(0, ())
    ours = {name: fds for name, fds in passed.items() if name.startswith(NAME)}
    numbers = [int(name[len(NAME) :]) for name in ours if name[len(NAME) :].isdecimal()]
    pool.keeper = Keeper(manager, max(numbers, default=0) + 1)
    came, dropped = [], {}
    for name, descriptors in ours.items():
        try:
            came.append(_conversation(descriptors, model, name))
        except StateError as error:
            dropped[name] = error.message
    for idle in sorted(came, key=lambda idle: idle.used_s, reverse=True):
        name = idle.kept
        try:
            pool.adopt(idle)
        except StateError as error:
            dropped[name] = error.message
    for name in dropped:
        manager.forget(name)
    reasons = tuple(f"{name}: {reason}" for name, reason in dropped.items())
    return Restored(len(ours) - len(dropped), reasons)


def _conversation(descriptors: Sequence[int], model: ModelSpec | None, name: str) -> Idle:
    """The idle conversation that descriptors hold; they are closed if they don't.

    Raises:
        StateError: It can't be used, and why.
    """
    left = set(descriptors)
    try:
        records = {fd for fd in left if _seals(fd) & fcntl.F_SEAL_WRITE}
        files = {fd for fd in left if stat.S_ISREG(os.fstat(fd).st_mode) and not _seals(fd)}
        segments = left - records - files
        if len(records) != 1 or len(segments) != 1 or len(files) > 1:
            raise StateError(f"{len(left)} descriptors came back, of which {len(records)} records")
        record = _read(next(iter(records)))
        shape = KvShape(record.layers, record.kv_heads, record.position_bytes)
        _check_model(record, shape, model)
        stored = _stored(record, shape, files)
        (segment_fd,) = segments
        segment = Segment.adopt(shape, record.capacity, segment_fd)
        left -= segments | files
    finally:
        for descriptor in left:
            os.close(descriptor)
    tokens = array("I", record.tokens)
    positions = record.positions
    lease = Lease(
        segment,
        record.fingerprint,
        record.user,
        positions,
        positions,
        record.writers,
        record.said,
    )
    if stored is None and segment.committed_bytes() < segment.predicted_bytes(positions):
        segment.close()
        raise StateError("its memory had been given back")
    view = View(record.keep, record.dropped)
    return Idle(lease, tokens, record.used_s, stored, kept=name, view=view)


def _stored(record: _Record, shape: KvShape, files: set[int]) -> Stored | None:
    """Where its KV is on disk; None if it is in memory.

    Raises:
        StateError: The file isn't the one that was written.
    """
    if not record.on_disk_bytes and not files:
        return None
    size = shape.segment_bytes(record.capacity) if record.spread else record.on_disk_bytes
    if len(files) != 1 or os.fstat(next(iter(files))).st_size != size:
        raise StateError("its file on disk isn't what was written")
    file, positions = next(iter(files)), record.positions
    return Stored(file, positions, record.on_disk_bytes, record.checksum, record.spread)


def _check_model(record: _Record, shape: KvShape, model: ModelSpec | None) -> None:
    variants = () if model is None else model.variants
    same = next((one for one in variants if one.fingerprint == record.fingerprint), None)
    if model is None or same is None or shape_of(model, same) != shape:
        raise StateError("it belongs to another model")
    if record.capacity != Segment.capacity_for(shape, model.context_length):
        raise StateError("its segment has another capacity")


def _record(idle: Idle) -> bytes:
    lease, shape, stored = idle.lease, idle.lease.segment.shape, idle.stored
    return msgspec.msgpack.encode(
        _Record(
            VERSION,
            lease.fingerprint,
            shape.layers,
            shape.kv_heads,
            shape.position_bytes,
            lease.segment.capacity,
            lease.user,
            idle.used_s,
            idle.tokens.tobytes(),
            0 if stored is None else stored.size_bytes,
            0 if stored is None else stored.checksum or 0,
            idle.view.keep,
            idle.view.dropped,
            stored is not None and stored.spread,
            lease.writers,
            lease.said,
        )
    )


def _write(content: bytes) -> int:
    """A sealed memfd with this content."""

    def fill(descriptor: int) -> None:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)

    return make_sealed_memfd("trimtab-record", fill, _RECORD_SEALS)


def _read(descriptor: int) -> _Record:
    try:
        size = os.fstat(descriptor).st_size
        if size > _MOST_BYTES:
            raise StateError(f"its record has {size} bytes")
        record = msgspec.msgpack.decode(os.pread(descriptor, size, 0), type=_Record)
    except (OSError, msgspec.MsgspecError) as error:
        raise StateError(f"its record can't be read: {error}") from error
    if record.version != VERSION or len(record.tokens) % array("I").itemsize:
        raise StateError(f"its record has version {record.version}, not {VERSION}")
    if record.keep < 0 or record.dropped < 0 or record.positions < 1:
        raise StateError("its record forgets more than it has")
    return record


def _seals(descriptor: int) -> int:
    try:
        return int(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS))
    except OSError:
        return 0  # no memfd
