"""What requests are told that can't be served, or not any longer."""

from __future__ import annotations

from trimtab.domain.scheduling import Shed
from trimtab.errors import ServingError
from trimtab.policy.compiled import Policy
from trimtab.serving.stream import Stream, StreamState


def overdue(stream: Stream, policy: Policy, at_s: float) -> ServingError | None:
    """Why a stream has waited or been held too long; None if it hasn't."""
    patience = stream.patience
    since_s = stream.since_s if patience is None else max(stream.since_s, patience.until_s)
    age_s = at_s - since_s
    max_wait_s, hold_max_s = policy.admission.max_wait_s, policy.handover.hold_max_s
    if stream.state is StreamState.WAITING and age_s > max_wait_s:
        return ServingError(
            f"the request waited {max_wait_s:.0f} s and its turn did not come",
            code="wait_exceeded",
            retry_after_s=max_wait_s,
        )
    if stream.state is StreamState.HELD and age_s > hold_max_s:
        return ServingError(
            f"no worker could take the stream over within {hold_max_s:.0f} s",
            code="held_too_long",
            retry_after_s=hold_max_s,
        )
    return None


def refused(shed: Shed) -> ServingError:
    """The schedule leaves a request out."""
    return ServingError(
        f"the request was refused: {shed.reason}",
        status=429,
        code="shed",
        retry_after_s=shed.retry_after_s,
    )


def shutting_down() -> ServingError:
    """The daemon goes down, and the time for what it had begun is over."""
    return ServingError("the daemon is shutting down", code="shutting_down", retry_after_s=5)
