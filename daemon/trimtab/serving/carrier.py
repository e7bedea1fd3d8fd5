"""How a stream's KV gets to the worker that it goes to: carried over, or computed again."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from trimtab.domain.clock import Clock
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.policy.compiled import Carry, Policy, Share
from trimtab.serving.claims import Lease, shape_of
from trimtab.serving.pool import Pool
from trimtab.serving.prefixes import Prefixes, Terms
from trimtab.serving.requests import GenerationRequest
from trimtab.serving.room import Room
from trimtab.serving.said import keys
from trimtab.serving.stream import Stream
from trimtab.workers.worker import Worker

OWN_KV: Final = "kv"


class Carrier:
    """Gives streams their KV.

    A segment is carried over where tokenizer, KV shape and rope settings are the same and the
    policy has KV cross in that direction; else the new worker computes prompt and answer again.
    After a crash the same variant always goes on from the segment.

    Args:
        pool: Where segments come from.
        clock: For the age of idle segments.

    Attributes:
        room: For streams that run.
        prefixes: For streams that haven't begun.
    """

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self.room = Room(pool)
        self._clock = clock
        self._model: ModelSpec | None = None
        self._policy: Policy | None = None
        self.prefixes = Prefixes(pool, clock, self._terms)

    def serve(self, model: ModelSpec | None) -> None:
        """The model whose conversations these are; those of another one are given back."""
        if model != self._model:
            self._pool.release_all()
        self._model = model

    def configure(self, policy: Policy) -> None:
        """The policy's budget and directions apply from now on."""
        self._policy = policy
        self._pool.configure(policy.kv.pool_bytes)
        if self._pool.disk is not None:
            kv = policy.kv
            self._pool.disk.configure(kv.disk_quota_bytes, kv.writes_per_day_bytes)
            self._pool.keep_to_quota()

    def bring(self, stream: Stream, worker: Worker, *, beyond: bool = False) -> None:
        """Give the stream what it needs to begin, or go on, in this worker.

        Args:
            stream: Which.
            worker: Where it goes to.
            beyond: Whether the pool's budget may be overrun for it.

        Raises:
            ServingError: The pool has no room for it.
        """
        self._drop_doubtful(stream)
        model = self._model
        if model is None or not owns_kv(worker):
            self._drop(stream)
            return
        variant = worker.variant
        lease = stream.lease
        # What it is a copy of may have turned out to be wrong.
        if lease is not None and (lease.refused or lease.fingerprint != variant.fingerprint):
            self._drop(stream)
            lease = None
        if lease is None:
            stream.lease = self._lease(stream, model, variant, beyond=beyond)
        elif not self._refused(model, variant).isdisjoint(lease.writers):
            self._begin_anew(stream)
            lease.begin_anew()
        else:
            lease.rewind(stream.view.cached(len(stream.tokens)) - 1)  # its last token is computed
        assert stream.lease is not None
        stream.lease.written_by(variant.name)
        stream.wanted_tokens = 0

    def ended(self, stream: Stream) -> None:
        """The stream is over and no worker writes for it: its KV waits for the next turn."""
        self.room.given_up(stream)
        self._drop_doubtful(stream)
        if stream.lease is not None:
            now = self._clock.monotonic_s()
            stream.lease.said = stream.said
            self._pool.retire(stream.lease, stream.tokens, now, stream.view)
            stream.lease = None

    def distrust(self, stream: Stream) -> None:
        """Its KV may be why it failed, or why workers died: nobody goes on with it."""
        for lease in (stream.lease, stream.source if stream.lease is not None else None):
            if lease is not None:
                self._pool.distrust(lease)
        stream.source = None
        self._drop(stream)

    def set_aside(self, stream: Stream) -> None:
        """Its KV in memory makes room: all of it is in the record, and is computed again."""
        if stream.lease is not None and not stream.lease.segment.on_disk:
            self._drop(stream)

    def most_tokens(self, worker: Worker | None) -> float:
        """Tokens of a conversation that the pool's whole budget has room for, in that worker.

        Where there is none yet, in that of the variant whose KV takes most.
        """
        model = self._model
        if model is None or (worker is not None and not owns_kv(worker)):
            return inf
        variants = model.variants if worker is None else (worker.variant,)
        most = [self._pool.most_tokens(shape_of(model, variant)) for variant in variants]
        return min(most, default=inf)

    def leave_disk(self, streams: Sequence[Stream]) -> None:
        """A worker hangs that had these: nobody goes on with their KV on disk, if they have any.

        The disk is left alone for a while, also if their KV was on its way there.
        """
        disk, reason = self._pool.disk, "a worker hangs over a running conversation there"
        for stream in streams:
            stream.doubtful |= _is_on_disk(stream.lease)
        if disk is not None and any(
            _is_on_disk(lease) for one in streams for lease in (one.lease, one.moving)
        ):
            now = self._clock.monotonic_s()
            disk.failed(reason, now)
            disk.running.failed(reason, now)

    @property
    def on_its_way(self) -> bool:
        """Whether idle KV that can't make way now soon can."""
        return self._pool.copying

    def let_go(self, waiting: Sequence[Stream]) -> bool:
        """Take KV from the last of these that has some: it will compute its prompt.

        Args:
            waiting: Streams that haven't begun, the one that came last at the end.

        Returns:
            False if none of them has any.
        """
        stream = next((stream for stream in reversed(waiting) if stream.lease is not None), None)
        if stream is not None:
            self._drop(stream)
        return stream is not None

    def known(self, request: GenerationRequest) -> Sequence[int]:
        """Token ids of the conversation that a request goes on with; none if it isn't here."""
        if request.messages is None or self._policy is None:
            return ()
        said = keys(request.messages)
        return self._pool.known(said, request.user, everyone=_shared(self._policy))

    def _terms(self, worker: Worker) -> Terms | None:
        policy, model = self._policy, self._model
        if policy is None or model is None or not owns_kv(worker):
            return None
        return Terms(worker.variant, _shared(policy), self._refused(model, worker.variant))

    def _lease(
        self, stream: Stream, model: ModelSpec, variant: VariantSpec, *, beyond: bool
    ) -> Lease:
        # One capacity for all, so that any conversations can be decoded together; what isn't
        # written isn't committed.
        return self._pool.open(
            shape_of(model, variant),
            model.context_length,
            variant.fingerprint,
            stream.request.user,
            stream.view.cached(len(stream.tokens)) + 1,
            beyond=beyond,
        )

    def _drop_doubtful(self, stream: Stream) -> None:
        if stream.doubtful:
            stream.doubtful = False
            if stream.lease is not None:
                self._pool.distrust(stream.lease)
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        if stream.lease is not None:
            self._begin_anew(stream)
            self._pool.drop(stream.lease)
            stream.lease = None

    def _begin_anew(self, stream: Stream) -> None:
        """What a stream was to begin with goes: if no worker has had it yet, it is as it came."""
        if stream.lease is not None and not stream.variants:
            stream.promised = max(stream.promised, stream.lease.valid)
            stream.view, stream.source = stream.first_view, None

    def _refused(self, model: ModelSpec, variant: VariantSpec) -> frozenset[str]:
        """Variants whose KV the policy wants computed again by this one."""
        if self._policy is None:
            return frozenset()
        handover = self._policy.handover
        return frozenset(
            one.name
            for one in model.variants
            if one.name != variant.name
            and (handover.up if variant.quality > one.quality else handover.down) is Carry.REPLAY
        )


def owns_kv(worker: Worker) -> bool:
    """Whether its streams have their KV in segments of ours."""
    return worker.ready is not None and worker.ready.decoder == OWN_KV


def _is_on_disk(lease: Lease | None) -> bool:
    return lease is not None and lease.segment.on_disk


def _shared(policy: Policy) -> bool:
    """Whether a conversation may serve other users too."""
    return policy.kv.share is Share.ALL
