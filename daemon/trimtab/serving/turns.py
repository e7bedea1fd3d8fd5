"""Whose turn it is: the schedule of the core, laid over the streams that are there."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from trimtab.domain.scheduling import Schedule
from trimtab.policy.compiled import Policy
from trimtab.serving.carrier import owns_kv
from trimtab.serving.stream import Stream, StreamState
from trimtab.workers.worker import Worker


class Turns:
    """Ranks streams, and says how many of them the engine serves.

    What the schedule doesn't know comes last, by priority and age: that is the whole order while
    nothing is loaded and there is no schedule.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, int] = {}
        self._together: int | None = None

    def follow(self, schedule: Schedule) -> None:
        """This is the schedule from now on."""
        self._ranks = {request: rank for rank, request in enumerate(schedule.order)}
        self._together = schedule.together

    def ranked(self, streams: Iterable[Stream], policy: Policy) -> list[Stream]:
        """The streams, first come first."""
        weights = dict(policy.admission.priorities)

        def rank(stream: Stream) -> tuple[float, float, int]:
            weight = weights.get(stream.request.priority, 1.0)
            return self._ranks.get(stream.id, inf), -weight, stream.id

        return sorted(streams, key=rank)

    def at_once(self, streams: Iterable[Stream], policy: Policy) -> int:
        """How many the engine serves at the same time; the others pause."""
        most = policy.admission.conversations
        if self._together is None or not any(stream.id in self._ranks for stream in streams):
            return most  # there is no schedule, or none of those that are here is in it
        return min(most, self._together)


def may_begin(streams: Iterable[Stream], worker: Worker, policy: Policy) -> bool:
    """True if the worker may be given another stream.

    Beyond the conversations that may run, one may begin while another pauses if the policy gives
    KV a budget of its own, so that what paused streams hold is bounded by that.
    """
    running = sum(1 for stream in streams if stream.state is StreamState.RUNNING)
    bounded = policy.kv.pool_bytes is not None
    return running < policy.admission.conversations or (bounded and owns_kv(worker))
