"""The daemon as people see it: status, signals, points, decisions, and what they may order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from trimtab import __version__
from trimtab.domain.actions import Park, carried_out
from trimtab.domain.decisions import Decision, Prediction
from trimtab.domain.events import PausedSet, PinCleared, PinSet
from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.domain.readings import Snapshot, Unit
from trimtab.errors import RequestError
from trimtab.planner.assess import assess, facts, situation, standing_pin
from trimtab.planner.choose import why_out
from trimtab.planner.predict import predict
from trimtab.planner.standing import heat_kept, passed_over
from trimtab.planner.state import State
from trimtab.policy.combine import combine
from trimtab.policy.compiled import Policy
from trimtab.runtime.condition import condition
from trimtab.runtime.daemon import Daemon
from trimtab.runtime.pins import pin_waits, refuse_broken
from trimtab.serving.control import (
    PointView,
    PolicyView,
    PushedSignal,
    SignalView,
    StatusView,
    WindowView,
    WorkerView,
)
from trimtab.serving.meter import RATE_SIGNAL
from trimtab.serving.stream import StreamState
from trimtab.telemetry.journal import Journal

FOLLOWER_QUEUE: Final = 100


class Policies(Protocol):
    """Where the policy in force comes from."""

    def view(self) -> PolicyView:
        """For status."""

    async def reload(self) -> PolicyView:
        """Read it again now.

        Raises:
            PolicyError: It is bad; the last good one stays in force.
        """

    async def compile(self, text: str) -> Policy:
        """Compile a candidate for this device, without touching what is in force.

        Raises:
            PolicyError: It is bad.
        """

    async def library(self) -> list[dict[str, Any]]:
        """Every policy that can be used, and what is wrong with those that can't."""

    async def values(self, name: str) -> dict[str, Any]:
        """A policy as it counts.

        Raises:
            PolicyError: It is bad or isn't there.
        """

    def values_in_force(self) -> dict[str, Any]:
        """The policy in force as it counts."""

    async def check(self, text: str) -> dict[str, Any]:
        """What is wrong with a policy that stands by itself."""

    async def use(self, name: str) -> PolicyView:
        """Put another one in force.

        Raises:
            PolicyError: It is bad or isn't there; the one in force stays.
        """


class DecisionRecords:
    """Writes decisions to the journal, counts them, and tells those who follow it."""

    def __init__(self, journal: Journal, log: Any, count: Callable[[str], None]) -> None:
        self._journal = journal
        self._log = log
        self._count = count
        self._followers: set[asyncio.Queue[dict[str, Any]]] = set()
        self._fault = ""
        self.switches = 0

    def decided(self, decision: Decision, wall_s: float) -> None:
        """A decision was made."""
        if decision.source.variant != decision.target.variant:
            self.switches += decision.source.variant is not None
        self._tell(self._journal.append(decision, wall_s))
        self._count(decision.direction)
        self._watch_journal()
        self._log.info(
            "decision",
            id=decision.id,
            direction=decision.direction,
            source=decision.source.describe(),
            target=decision.target.describe(),
            trigger=decision.trigger.signal,
            value=decision.trigger.value,
            threshold=decision.trigger.threshold,
            reason=decision.trigger.text,
        )

    def concluded(self, decision: Decision, wall_s: float) -> None:
        """An earlier decision's outcome is known."""
        outcome = decision.outcome
        if outcome is None:
            return
        if (known := self._journal.finish(decision.id, outcome, wall_s)) is not None:
            self._tell(known)
        told = {"id": decision.id, "kind": outcome.kind, "took_s": round(outcome.took_s, 3)}
        if outcome.kind == "failed":
            self._log.warning("outcome", **told, reason=outcome.reason)
        else:
            self._log.debug("outcome", **told)

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Records as they come; one who reads too slowly misses the oldest."""
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(FOLLOWER_QUEUE)
        self._followers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._followers.discard(queue)

    def _watch_journal(self) -> None:
        """Say once when the journal can't be written (a full disk), and once when it can again."""
        fault = self._journal.fault
        if fault and not self._fault:
            self._log.warning("journal_not_written", reason=fault)
        elif self._fault and not fault:
            self._log.info("journal_written_again")
        self._fault = fault

    def _tell(self, record: dict[str, Any]) -> None:
        for queue in self._followers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(record)


class Overview:
    """`serving.control.Control`, for the running daemon.

    Args:
        daemon: The daemon.
        policies: Where its policy comes from.
        journal: Its decision records.
        records: Where records pass by.
    """

    def __init__(
        self, daemon: Daemon, policies: Policies, journal: Journal, records: DecisionRecords
    ) -> None:
        self._daemon = daemon
        self._policies = policies
        self._journal = journal
        self._records = records

    # ------------------------------------------------------------ reading

    def look(self) -> None:
        """Somebody watches: a daemon at rest looks again, and goes on at its usual pace."""
        self._daemon.look_again()

    def status(self) -> StatusView:
        """The state as of now."""
        daemon = self._daemon
        now = daemon.clock.monotonic_s()
        state = daemon.controller.state
        model = daemon.gateway.model()
        name, reason = condition(self._daemon)
        recent = self._journal.recent(1)
        pin = standing_pin(state, now)
        until_s = None if pin is None else pin.until_s
        running, target = state.running, state.point
        if running is not None and not isinstance(running, Park):
            target = carried_out(target, running)
        return StatusView(
            version=__version__,
            pid=os.getpid(),
            uptime_s=now - daemon.started_s,
            state=name,
            reason=reason,
            tokens_can_flow=name == "ready",
            model=model.model_id if model is not None else None,
            variants=[variant.name for variant in model.variants] if model is not None else [],
            point=_point(daemon.dispatcher.point),
            target=_point(target),
            policy=self._policies.view(),
            workers=self._workers(),
            running=daemon.streams.count(StreamState.RUNNING),
            waiting_turn=daemon.streams.paused(),
            queued=daemon.streams.count(StreamState.WAITING) + daemon.gateway.rendering,
            held=daemon.streams.count(StreamState.HELD),
            tokens_total=daemon.meter.tokens,
            requests_total=daemon.meter.requests,
            shed_total=daemon.streams.shed,
            tokens_per_s=_rate(state.snapshot),
            switches_total=self._records.switches,
            restarts_total=daemon.supervisor.losses,
            pinned={} if pin is None else {str(knob): value for knob, value in pin.knobs.items()},
            pin_expires_in_s=None if until_s is None else until_s - now,
            pin_waits=pin_waits(state, now),
            heat_kept=heat_kept(state, daemon.controller.policy, now),
            paused=state.paused,
            last_decision=recent[-1] if recent else None,
            effective_context=_effective_context(daemon),
            gave_way_total=daemon.streams.gave_way,
            expected=_expected(state),
            window=_window(daemon),
        )

    def headline(self) -> str:
        """The state in one line, as `systemctl status` shows it."""
        name, reason = condition(self._daemon)
        policy = self._policies.view()
        stale = " (stale: its file is bad)" if policy.stale else ""
        point = self._daemon.dispatcher.point.describe()
        state = f"{name}: {point}" if name == "ready" else f"{name}: {reason}"
        return f"{state}; policy {policy.name}{stale}"

    def signals(self) -> Sequence[SignalView]:
        """The last snapshot."""
        snapshot = self._daemon.controller.state.snapshot
        if snapshot is None:
            return []
        now = self._daemon.clock.monotonic_s()
        return [
            SignalView(
                name=name,
                value=reading.value,
                unit=str(self._daemon.sensors.unit_of(name) or ""),
                quality=str(reading.quality),
                reason=reading.reason,
                age_s=max(0.0, now - reading.at_s),
            )
            for name, reading in sorted(snapshot.readings.items())
        ]

    def points(self) -> Sequence[dict[str, Any]]:
        """Every operating point with its prediction, and why it is out or passed over."""
        controller = self._daemon.controller
        state, policy = controller.state, controller.policy
        if state.model is None:
            return []
        bounds = combine(state.rules.verdicts, policy.knobs).knobs
        now = self._daemon.clock.monotonic_s()
        judged = assess(state, policy, bounds, state.model, now)
        passed = passed_over(state, policy, judged, now)
        return [
            {
                "point": msgspec.to_builtins(_point(one.point)),
                "predicted": msgspec.to_builtins(one.predicted),
                "in_force": one.point == state.point,
                "reason": why_out(one, policy),
                "passed_over": passed.get(one.point, ""),
            }
            for one in judged
        ]

    def decisions(self, limit: int) -> Sequence[dict[str, Any]]:
        """The newest records, oldest first."""
        return self._journal.recent(limit)

    def decision(self, number: int) -> dict[str, Any] | None:
        """One record."""
        return self._journal.get(number)

    def decision_stream(self) -> AsyncIterator[dict[str, Any]]:
        """Records as they are made, and again when their outcome is known."""
        return self._records.follow()

    def recording(self) -> AsyncIterator[dict[str, Any]]:
        """Lines of a recording from this moment on (see telemetry.recording)."""
        controller = self._daemon.controller
        wall_s = self._daemon.clock.wall_s()
        return controller.recorder.follow(controller.state, controller.policy, wall_s)

    # ------------------------------------------------------------ ordering

    def push_signal(self, pushed: PushedSignal, by: str) -> SignalView:
        """Take in a value that someone measures."""
        reading = self._daemon.sensors.push(
            pushed.name,
            pushed.value,
            Unit(pushed.unit),
            at_s=self._daemon.clock.monotonic_s(),
            ttl_s=pushed.for_s,
            low=pushed.low,
            high=pushed.high,
        )
        self._daemon.look_again()
        return SignalView(
            reading.signal, reading.value, pushed.unit, str(reading.quality), reading.reason, 0.0
        )

    def pin(self, knobs: dict[str, str | int | float], for_s: float | None, by: str) -> None:
        """Fix knobs until they are unpinned or the time is over."""
        checked = tuple(self._checked(name, value) for name, value in knobs.items())
        if not checked:
            raise RequestError("there is nothing to pin", param="knobs")
        now = self._daemon.clock.monotonic_s()
        refuse_broken(self._daemon.controller.state, dict(checked), now)
        until_s = None if for_s is None else now + for_s
        self._daemon.controller.post(PinSet(now, checked, until_s, by))

    def unpin(self, by: str) -> None:
        """Take the pin off."""
        now = self._daemon.clock.monotonic_s()
        self._daemon.controller.post(PinCleared(now, by))

    def pause(self, paused: bool, by: str) -> None:
        """Stop or start again all steps but those for memory safety."""
        now = self._daemon.clock.monotonic_s()
        self._daemon.controller.post(PausedSet(now, paused, by))

    async def policies(self) -> list[dict[str, Any]]:
        """Every policy that can be used, and what is wrong with those that can't."""
        return await self._policies.library()

    async def policy_values(self, name: str) -> dict[str, Any]:
        """A policy as it counts, each value with where it comes from."""
        return await self._policies.values(name)

    def policy_in_force(self) -> dict[str, Any]:
        """The policy in force as it counts, each value with where it comes from."""
        return self._policies.values_in_force()

    async def check_policy(self, text: str) -> dict[str, Any]:
        """What is wrong with a policy that stands by itself, on this device."""
        return await self._policies.check(text)

    async def use_policy(self, name: str, by: str) -> PolicyView:
        """Put another policy in force, by its name."""
        return await self._policies.use(name)

    async def begin_trial(self, text: str, for_s: float, by: str) -> dict[str, Any]:
        """Have a candidate policy decide in shadow for a while."""
        candidate = await self._policies.compile(text)
        controller = self._daemon.controller
        now = self._daemon.clock.monotonic_s()
        controller.trial.begin(candidate, controller.state, now, for_s)
        return controller.trial.report() or {}

    def end_trial(self, by: str) -> dict[str, Any] | None:
        """Stop the trial."""
        self._daemon.controller.trial.end()
        return self._daemon.controller.trial.report()

    def trial(self) -> dict[str, Any] | None:
        """The report of the last trial, or of the one that runs."""
        return self._daemon.controller.trial.report()

    async def reload(self, by: str) -> PolicyView:
        """Read the policy again now."""
        return await self._policies.reload()

    # ------------------------------------------------------------ inside

    def _workers(self) -> list[WorkerView]:
        return [
            WorkerView(
                variant=worker.variant.name,
                state=str(worker.state),
                pid=worker.pid,
                threads=worker.launch.threads,
                decoder=worker.ready.decoder if worker.ready is not None else "",
                decoder_reason=worker.ready.decoder_reason if worker.ready is not None else "",
                resident_bytes=worker.resident_bytes,
                load_s=worker.ready.load_s if worker.ready is not None else None,
                streams=len(self._daemon.streams.on(worker)),
                rereads=worker.ready.rereads if worker.ready is not None else "",
                draft_lost=worker.draft_lost,
            )
            for worker in (*self._daemon.supervisor.workers, *self._daemon.supervisor.hanging)
        ]

    def _checked(self, name: str, value: str | int | float) -> tuple[Knob, str | int | float]:
        model = self._daemon.gateway.model()
        known = [str(knob) for knob in (Knob.VARIANT, Knob.CONTEXT, Knob.THREADS, Knob.PACE)]
        if name not in known:
            raise RequestError(
                f"{name!r} can't be pinned; these can: {', '.join(known)}", param=name
            )
        if model is None:
            raise RequestError("there is no model, so there is nothing to pin", param=name)
        knob = Knob(name)
        if knob is Knob.VARIANT:
            if model.variant(str(value)) is None:
                names = ", ".join(variant.name for variant in model.variants)
                raise RequestError(
                    f"{model.model_id} has no variant {value!r}; it has {names}", param=name
                )
            return knob, str(value)
        least, most = {
            Knob.CONTEXT: (256, model.context_length),
            Knob.THREADS: (1, os.cpu_count() or 1),
            Knob.PACE: (0.1, 1.0),
        }[knob]
        if isinstance(value, str) or not least <= value <= most:
            raise RequestError(f"{name} is {value!r}; it must be {least} to {most}", param=name)
        return knob, value if knob is Knob.PACE else int(value)


def _expected(state: State) -> Prediction | None:
    if state.model is None or state.point.parked:
        return None
    return predict(state.point, state.model, situation(state), facts(state))


def _rate(snapshot: Snapshot | None) -> float:
    """Tokens per second of all streams together, as of the last tick."""
    value = snapshot.value(RATE_SIGNAL) if snapshot is not None else None
    return value or 0.0


def _effective_context(daemon: Daemon) -> int:
    return 0 if daemon.dispatcher.point.parked else daemon.gateway.effective_context()


def _point(point: OperatingPoint) -> PointView:
    return PointView(
        variant=point.variant,
        context=point.context,
        threads=point.threads,
        speculation=point.speculation,
        kv_placement=str(point.kv_placement),
        pace_ratio=point.pace_ratio,
    )


def _window(daemon: Daemon) -> WindowView:
    window, room = daemon.controller.policy.knobs.window, daemon.streams.room
    return WindowView(window.shift, window.keep, room.shifts, room.dropped_tokens)
