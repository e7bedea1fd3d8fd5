"""The longest prefix of a prompt whose KV is there, or is about to be.

It is looked for when a request comes, and again when its turn comes, since others may have read or
answered meanwhile what it shares with them. Where one of those is just reading it, the request
waits until that is done and copies it: an engine that reads one prompt after the other would have
it wait anyway, and then read the same again. Nobody else waits for that, and it has an end:
whatever goes wrong, the prompt is computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from trimtab.domain.clock import Clock
from trimtab.domain.models import VariantSpec
from trimtab.serving.claims import Found, Lease, Running
from trimtab.serving.copies import LEAST_WAIT_S, Copies, worth_waiting_s
from trimtab.serving.pool import Pool
from trimtab.serving.reuse import once_read
from trimtab.serving.stream import Patience, Stream, StreamState
from trimtab.workers.worker import Worker

MORE_TOKENS: Final = 64
"""Less than this beyond what a stream has isn't worth a copy, nor waiting for."""

BESIDE_OTHERS: Final = 3.0
"""Reading a prompt may take so much longer than alone: others decode, and are read before it."""


Readable: TypeAlias = list[tuple[Stream, Running]]
"""Streams, and what may be copied from each."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Whose KV a worker's streams may begin with.

    Attributes:
        variant: What the worker has loaded.
        everyone: Whether other users' conversations may serve.
        refused: Variants whose KV may not.
    """

    variant: VariantSpec
    everyone: bool
    refused: frozenset[str]


class Prefixes:
    """Gives streams that haven't begun what others have of their prompts.

    Args:
        pool: Where conversations that have ended are.
        clock: For patience.
        terms: Those of a worker; None if its streams have no KV of ours.

    Attributes:
        on_change: Called when a stream need not wait for a copy any longer.
    """

    def __init__(self, pool: Pool, clock: Clock, terms: Callable[[Worker], Terms | None]) -> None:
        self._pool = pool
        self._clock = clock
        self._terms = terms
        self._copies = Copies(pool, clock)
        self.on_change: Callable[[], None] | None = None

    async def at_arrival(self, stream: Stream, worker: Worker, others: Iterable[Stream]) -> None:
        """Look for KV that a new stream can begin with.

        What somebody is about to have more of is left for when its turn comes.

        Args:
            stream: It isn't among the others yet.
            worker: Which has tokenized its prompt.
            others: All that there are.
        """
        terms = self._terms(worker)
        if terms is None:
            return
        reading = _readable(others)
        found = self._find(stream, terms, reading)
        if found is None:
            return
        in_memory = found.source.stored is None
        if in_memory and self._coming(stream, terms, worker, reading, _left(stream, found)):
            return
        patience_s = worth_waiting_s(found.positions, terms.variant)
        lease = await self._copies.lease(found, stream.request.user, patience_s)
        if lease is not None:
            _give(stream, found, lease)

    def waits(self, stream: Stream, worker: Worker, others: Iterable[Stream]) -> bool:
        """Whether a stream whose turn has come is better started a little later.

        To be asked each time before it would be started; looks for its prefix, and has it copied.

        Args:
            stream: It waits in the queue.
            worker: Which it would go to.
            others: All streams.
        """
        terms, patience = self._terms(worker), stream.patience
        over = patience is not None and self._clock.monotonic_s() >= patience.until_s
        if terms is None:
            return False
        if patience is not None and patience.copying is not None:
            if over:
                patience.end()
            return not over
        if patience is not None and patience.last:
            return False
        reading = _readable(one for one in others if one is not stream)
        found = self._find(stream, terms, reading, stored=False)
        left = stream.positions - (stream.lease.valid if stream.lease is not None else 0)
        least = left if found is None else min(left, _left(stream, found))
        coming = None if over else self._coming(stream, terms, worker, reading, least)
        if coming is not None:
            patience = self._patience(stream, terms, coming[1])
            patience.behind, patience.positions = coming
            return True
        if found is None or _left(stream, found) > left - MORE_TOKENS:
            return False
        patience = self._patience(stream, terms, found.positions)
        if over:  # what is there now is taken, and is the last
            patience.until_s, patience.last = self._clock.monotonic_s() + LEAST_WAIT_S, True
        return self._fetch(stream, found, patience)

    def reached(self, stream: Stream, waiting: Iterable[Stream]) -> bool:
        """Whether a stream has read as much as any that waits for it needs."""
        valid = stream.lease.valid if stream.lease is not None else 0
        return any(
            one.patience is not None
            and one.patience.behind is stream
            and one.patience.positions <= valid
            for one in waiting
        )

    def _find(
        self, stream: Stream, terms: Terms, others: Readable, *, stored: bool = True
    ) -> Found | None:
        return self._pool.find(
            _needed(stream),
            terms.variant.fingerprint,
            stream.request.user,
            everyone=terms.everyone,
            view=stream.first_view,
            refused=terms.refused,
            running=[running for _, running in others],
            stored=stored,
        )

    def _coming(
        self,
        stream: Stream,
        terms: Terms,
        worker: Worker,
        others: Readable,
        left: int,
    ) -> tuple[Stream, int] | None:
        """Who soon leaves a stream clearly less than so many tokens to read, and how many it needs.

        Of several the one that leaves the fewest.
        """
        prompt, best = array("I", _needed(stream)), None
        most = left - MORE_TOKENS
        for one, running in others:
            if not _reads_on(one, worker):
                continue
            if not running.lease.may_serve(
                terms.variant.fingerprint,
                stream.request.user,
                terms.refused,
                everyone=terms.everyone,
            ):
                continue
            found = once_read(prompt, stream.first_view, running)
            if _left(stream, found) <= most:
                best, most = (one, found.positions), _left(stream, found) - 1
        return best

    def _patience(self, stream: Stream, terms: Terms, positions: int) -> Patience:
        """A stream's patience, which begins when it first has to wait."""
        if stream.patience is None:
            worth_s = BESIDE_OTHERS * worth_waiting_s(positions, terms.variant)
            stream.patience = Patience(self._clock.monotonic_s() + worth_s)
        return stream.patience

    def _fetch(self, stream: Stream, found: Found, patience: Patience) -> bool:
        """Have a stream begin with what was found; True if that takes a moment."""
        user, patience.behind = stream.request.user, None
        taken = self._copies.taken_over(found, user)
        if taken is not None:
            self._replace(stream, found, taken)
            return False
        fetched = partial(self._fetched, stream, found, patience)
        patience.copying = self._copies.begin(found, user, fetched)
        return patience.copying is not None

    def _fetched(
        self, stream: Stream, found: Found, patience: Patience, lease: Lease | None
    ) -> None:
        """A copy has ended, and may not be wanted any more."""
        expected = stream.state is StreamState.WAITING and patience.copying is not None
        patience.copying = None
        if lease is None:
            patience.end()  # there may be no end of copies that fail
        elif expected:
            self._replace(stream, found, lease)
        else:
            self._pool.drop(lease)
        if self.on_change is not None:
            self.on_change()

    def _replace(self, stream: Stream, found: Found, lease: Lease) -> None:
        if stream.lease is not None:
            self._pool.drop(stream.lease)
        _give(stream, found, lease)


def _give(stream: Stream, found: Found, lease: Lease) -> None:
    stream.lease, stream.view, stream.source = lease, found.view, found.source.lease


def _needed(stream: Stream) -> list[int]:
    """What KV can serve of a prompt: its last token is computed, its logits are the answer's."""
    return stream.prompt[:-1]


def _left(stream: Stream, found: Found) -> int:
    """Tokens of a prompt that are to be computed after what was found."""
    return found.view.cached(len(stream.prompt)) - found.positions


def _readable(streams: Iterable[Stream]) -> Readable:
    """What may be copied from streams that go on.

    A shifted window holds something else than its tokens. What is on disk may be slow, or hang.
    """
    return [
        (stream, Running(stream.lease, array("I", stream.tokens)))
        for stream in streams
        if stream.lease is not None
        and not stream.lease.segment.on_disk
        and not (stream.done or stream.doubtful or stream.view.dropped)
    ]


def _reads_on(stream: Stream, worker: Worker) -> bool:
    """Whether a worker is reading a stream's prompt, and nothing keeps it from that."""
    return (
        stream.worker is worker
        and stream.reading
        and stream.moving is None
        and not (stream.paused or stream.starved or stream.detaching)
    )
