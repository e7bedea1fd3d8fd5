"""Who has what of the KV pool: claims of streams, and what conversations left behind."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, TypeAlias

from trimtab.domain.kv import KvShape
from trimtab.domain.models import KV_DTYPE_BYTES, ModelSpec, VariantSpec
from trimtab.domain.view import WHOLE, View
from trimtab.serving.disk import Stored
from trimtab.serving.segments import Segment
from trimtab.serving.write_budget import Claim

TAIL_TOKENS: Final = 64
"""An idle conversation with more than this beyond the shared prefix is copied, not taken over."""


MOST_DOUBTS: Final = 16
"""What has served so many others one after the other isn't asked any more."""


@dataclass(slots=True)
class Doubt:
    """Whether KV has turned out to be wrong: one for all segments that it goes through."""

    raised: bool = False


@dataclass(slots=True)
class Lease:
    """A stream's claim on the pool.

    Attributes:
        segment: Its KV segment.
        fingerprint: Of tokenizer, KV shape and rope settings: who may read it.
        user: Whose it is; None if unknown.
        granted: Tokens that may be written.
        valid: Tokens whose KV is there and acknowledged: what a new worker may build on.
        writers: Names of the variants that computed it, or may have.
        said: Keys of what was said in it (`serving.said`), once its stream has ended.
        filling: True while a thread writes into the segment: it can't be closed.
        late: True if nobody waits for that any more.
        written: Tokens of a segment on disk that the disk has taken.
        writing: Tokens that it will have taken once it has written what it is about to.
        again: Tokens that were given to it, and are computed and written anew.
        readers: Threads that copy from its segment: what is valid there stays where it is.
        rewound: How often something that was valid ceased to be: what was copied meanwhile may
            be anything.
        doubts: Its own, and those of what it began with: whether that has turned out to be wrong.
    """

    segment: Segment
    fingerprint: str
    user: int | None
    granted: int = 0
    valid: int = 0
    writers: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    filling: bool = False
    late: bool = False
    written: int = 0
    writing: int = 0
    again: int = 0
    readers: int = 0
    rewound: int = 0
    doubts: tuple[Doubt, ...] = field(default_factory=lambda: (Doubt(),))

    @property
    def refused(self) -> bool:
        """True if its KV may be wrong: it serves nobody else."""
        return any(doubt.raised for doubt in self.doubts)

    def distrust(self) -> None:
        """Its KV may be wrong, wherever it goes, and so may be what was copied from it."""
        self.doubts[0].raised = True

    def stems_from(self, other: Lease) -> None:
        """Its KV is a copy of another's: what is found out about that holds for it, too."""
        self.doubts = (Doubt(), *other.doubts)[:MOST_DOUBTS]

    def begin_anew(self) -> None:
        """All of its KV is computed again: nothing of it is of old, nor of anybody else."""
        self.rewind(0)
        self.writers, self.doubts = (), (Doubt(),)

    @property
    def unwritten_bytes(self) -> int:
        """Memory that its segment on disk still holds, since the disk hasn't taken it."""
        segment = self.segment
        if not segment.on_disk:
            return 0
        return segment.predicted_bytes(self.valid) - segment.predicted_bytes(self.written)

    def may_serve(
        self, fingerprint: str, user: int | None, refused: frozenset[str], *, everyone: bool
    ) -> bool:
        """Whether somebody may begin with its KV, as `Pool.find` has it."""
        return (
            not self.refused
            and self.fingerprint == fingerprint
            and (everyone or self.user == user)
            and refused.isdisjoint(self.writers)
        )

    def rewind(self, tokens: int) -> None:
        """Nothing beyond its first tokens counts any more: the rest is computed again."""
        self.segment.reached(self.valid)
        self.rewound += tokens < self.valid
        self.valid = min(self.valid, tokens)
        self.again += max(0, self.writing - self.valid)
        self.writing = min(self.writing, self.valid)
        self.written = min(self.written, self.valid)

    def write(self) -> int:
        """All that counts now is about to be written.

        Returns:
            How many tokens of it were before.
        """
        again, self.again = self.again, 0
        self.segment.reached(self.valid)
        self.writing = self.valid
        return again

    def written_by(self, variant: str) -> None:
        """A variant computes KV in it from now on."""
        if variant not in self.writers:
            self.writers = (*self.writers, variant)


@dataclass(slots=True)
class Idle:
    """What a conversation left behind.

    Attributes:
        lease: Its claim; nothing beyond its valid length is committed. On disk the segment is
            empty.
        tokens: The conversation's token ids as far as its KV goes, forgotten ones included.
        used_s: When it was last used.
        stored: Where its KV is on disk; None while it is in memory.
        busy: True while it is being written, or read from disk: it can't be dropped, and only taken
            if it is leaving.
        leaving: The claim on the disk to which it is being written; its KV is still in memory.
        kept: Under which name the service manager keeps it, too; empty if it doesn't.
        view: Which of the tokens its KV holds.
    """

    lease: Lease
    tokens: array[int]
    used_s: float
    stored: Stored | None = None
    busy: bool = False
    leaving: Claim | None = None
    kept: str = ""
    view: View = WHOLE

    def shorten(self, positions: int) -> None:
        """Nothing but its first positions counts from now on."""
        if positions <= self.view.keep:
            self.view = WHOLE
        self.tokens = self.tokens[: positions + self.view.dropped]
        self.lease.valid = self.lease.granted = positions

    @property
    def in_use(self) -> bool:
        """True while somebody is at work on it: it can't be changed or dropped."""
        return self.busy or self.lease.readers > 0

    @property
    def wrong(self) -> bool:
        """True if nobody may go on with it."""
        return self.lease.refused or (self.stored is not None and self.stored.doubtful)

    @property
    def sealed(self) -> bool:
        """True if it can be believed: what is on disk has its checksum."""
        return self.stored is None or self.stored.checksum is not None

    @property
    def memory_bytes(self) -> int:
        """What it holds in memory."""
        return 0 if self.stored is not None else kv_bytes(self.lease, self.lease.valid)


@dataclass(frozen=True, slots=True)
class Running:
    """What a stream that goes on has in memory, for others to copy.

    Attributes:
        lease: Its claim; what is valid of it is not written any more, unless it is rewound.
        tokens: The conversation's token ids, those whose KV isn't there yet included.
        view: Which of them its KV holds: none of them is forgotten.
        stored: None: it is in memory.
        busy: False: any number may copy from it.
    """

    lease: Lease
    tokens: array[int]
    view: View = WHOLE
    stored: ClassVar[None] = None
    busy: ClassVar[bool] = False

    @property
    def wrong(self) -> bool:
        """True if nobody may begin with it."""
        return self.lease.refused


Source: TypeAlias = Idle | Running


@dataclass(frozen=True, slots=True)
class Found:
    """KV that a prompt can begin with.

    Attributes:
        source: Whose it is.
        positions: How many of its first positions serve.
        view: Which of the prompt's tokens they are, and how it goes on.
    """

    source: Source
    positions: int
    view: View

    @property
    def goes_on(self) -> bool:
        """True if the prompt leaves hardly anything of the conversation aside."""
        left = self.source.lease.valid - self.positions
        return isinstance(self.source, Idle) and left <= TAIL_TOKENS


@dataclass(slots=True)
class Ledger:
    """What the pool holds, in bytes; for status and the planner."""

    leased: int = 0
    filed: int = 0  # of running conversations on disk: what they would take in memory
    unwritten: int = 0  # of that, what the disk hasn't taken yet
    idle: int = 0
    idle_count: int = 0
    stored: int = 0
    stored_count: int = 0
    reused_tokens: int = 0
    evicted: int = field(default=0)


class Keeps(Protocol):
    """Keeps idle conversations beyond the controller's own end."""

    def keep(self, idle: Idle) -> str:
        """Have one kept; the name under which it is, empty if it isn't."""

    def forget(self, name: str) -> None:
        """It is kept no longer."""


def shape_of(model: ModelSpec, variant: VariantSpec) -> KvShape:
    """The shape of a variant's KV cache."""
    position = int(model.head_size * KV_DTYPE_BYTES[variant.kv_dtype])
    return KvShape(model.layers, model.kv_heads, position)


def kv_bytes(lease: Lease, tokens: int) -> int:
    """Memory that so many tokens take in a claim's segment: whole pages, as the kernel gives it."""
    return 0 if lease.segment.on_disk else lease.segment.predicted_bytes(tokens)
