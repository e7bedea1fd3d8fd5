"""What the control routes and the command line need of the running daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from trimtab.domain.decisions import Prediction


class PointView(msgspec.Struct, frozen=True):
    """An operating point as people see it."""

    variant: str | None
    context: int
    threads: int
    speculation: str
    kv_placement: str
    pace_ratio: float


class SignalView(msgspec.Struct, frozen=True):
    """One signal's last reading."""

    name: str
    value: float | None
    unit: str
    quality: str
    reason: str
    age_s: float


class PushedSignal(msgspec.Struct, frozen=True):
    """A value that someone measures and pushes, as ``custom.NAME``.

    Its unit and plausible range are the owner's word; it counts for ``for_s`` seconds.
    """

    name: str
    value: float
    unit: str
    for_s: float
    low: float | None = None
    high: float | None = None


class WorkerView(msgspec.Struct, frozen=True):
    """One worker process.

    ``rereads`` is why a shift of the window reads again what stays, ``draft_lost`` why the draft
    variant that it was started with isn't used.
    """

    variant: str
    state: str
    pid: int | None
    threads: int
    decoder: str
    decoder_reason: str
    resident_bytes: int | None
    load_s: float | None
    streams: int
    rereads: str = ""
    draft_lost: str = ""


class WindowView(msgspec.Struct, frozen=True):
    """What happens to conversations at the end of the context.

    Attributes:
        shift: Whether they go on, and the older half of what isn't kept is forgotten.
        keep: Tokens at the beginning that stay; None for the system prompt.
        shifts_total: How often that has happened since the start.
        dropped_tokens_total: How many tokens have been forgotten by it.
    """

    shift: bool = False
    keep: int | None = None
    shifts_total: int = 0
    dropped_tokens_total: int = 0


class PolicyView(msgspec.Struct, frozen=True):
    """The policy in force; ``stale`` with the error if its file is bad and last good holds."""

    name: str
    revision: str
    description: str
    path: str
    stale: bool
    error: str


class StatusView(msgspec.Struct, frozen=True):
    """Everything that `trimtab status` shows.

    Attributes:
        state: ``ready``, ``loading``, ``parked``, ``no_model``, ``degraded`` or ``draining``.
        reason: Why, if it isn't ready.
        tokens_can_flow: What readyz answers.
        effective_context: Tokens that a conversation admitted now may hold: the point's context, as
            far as the KV pool has room for it; 0 while nothing is loaded.
        running: Streams that a worker has.
        waiting_turn: Those of them that are paused until it is their turn.
        pin_waits: Why the pinned variant isn't served for now, and when it is tried again; empty if
            nothing keeps it out.
        heat_kept: What is kept for heat only since it would get too hot without it, in words; empty
            if nothing is.
        shed_total: Requests that were refused because nothing was to be gained by keeping them.
        gave_way_total: How often a conversation has waited for room without its KV.
        expected: What the point in force is predicted to hold and do, and what that rests on; None
            while nothing is loaded.
    """

    version: str
    pid: int
    uptime_s: float
    state: str
    reason: str
    tokens_can_flow: bool
    model: str | None
    variants: list[str]
    point: PointView
    target: PointView
    policy: PolicyView
    workers: list[WorkerView]
    running: int
    waiting_turn: int
    queued: int
    held: int
    tokens_total: int
    requests_total: int
    shed_total: int
    tokens_per_s: float
    switches_total: int
    restarts_total: int
    pinned: dict[str, str | int | float]
    pin_expires_in_s: float | None
    paused: bool
    last_decision: dict[str, Any] | None
    window: WindowView = WindowView()
    effective_context: int = 0
    gave_way_total: int = 0
    expected: Prediction | None = None
    pin_waits: str = ""
    heat_kept: str = ""


class Control(Protocol):
    """The running daemon, as the control routes see it. Nothing here blocks."""

    def look(self) -> None:
        """Somebody watches: what is said next is to be no older than a tick."""

    def status(self) -> StatusView:
        """The state as of the last tick; cheap, since it is asked for often."""

    def signals(self) -> Sequence[SignalView]:
        """The last snapshot."""

    def points(self) -> Sequence[dict[str, Any]]:
        """Every operating point with its prediction, and why it is out or passed over."""

    def decisions(self, limit: int) -> Sequence[dict[str, Any]]:
        """The newest decision records (see telemetry.journal), oldest first."""

    def decision(self, number: int) -> dict[str, Any] | None:
        """One record."""

    def decision_stream(self) -> AsyncIterator[dict[str, Any]]:
        """Records as they are made, and again when their outcome is known."""

    def recording(self) -> AsyncIterator[dict[str, Any]]:
        """Lines of a recording from this moment on (see telemetry.recording)."""

    def push_signal(self, pushed: PushedSignal, by: str) -> SignalView:
        """Take in a value that someone measures; the signal as rules will see it.

        Raises:
            UsageError: Name, value, unit, range or time to live can't be.
        """

    def pin(self, knobs: dict[str, str | int | float], for_s: float | None, by: str) -> None:
        """Fix knobs until they are unpinned or the time is over.

        Raises:
            RequestError: Unknown knob, a value that no variant or bound allows, or a variant that
                is left out for now since it failed (409 ``variant_quarantined``).
        """

    def unpin(self, by: str) -> None:
        """Take the pin off; harmless without one."""

    def pause(self, paused: bool, by: str) -> None:
        """Stop or start again all steps but those for memory safety."""

    async def begin_trial(self, text: str, for_s: float, by: str) -> dict[str, Any]:
        """Have a candidate policy decide in shadow for a while; it acts on nothing.

        Raises:
            PolicyError: The candidate is bad.
            RequestError: A trial is running already, or it would last too long.
        """

    def end_trial(self, by: str) -> dict[str, Any] | None:
        """Stop the trial, if one is running; its report."""

    def trial(self) -> dict[str, Any] | None:
        """The report of the last trial, or of the one that runs; None if there was none."""

    async def policies(self) -> list[dict[str, Any]]:
        """Every policy that can be used, and what is wrong with those that can't."""

    async def policy_values(self, name: str) -> dict[str, Any]:
        """A policy as it counts, each value with where it comes from.

        Raises:
            PolicyError: It is bad or isn't there.
        """

    def policy_in_force(self) -> dict[str, Any]:
        """The policy in force as it counts, each value with where it comes from."""

    async def check_policy(self, text: str) -> dict[str, Any]:
        """What is wrong with a policy that stands by itself, on this device."""

    async def use_policy(self, name: str, by: str) -> PolicyView:
        """Put another policy in force, by its name.

        Raises:
            PolicyError: It is bad or isn't there; the policy in force stays.
        """

    async def reload(self, by: str) -> PolicyView:
        """Read the policy folder again now.

        Raises:
            PolicyError: The file is bad; the last good policy stays in force.
        """
