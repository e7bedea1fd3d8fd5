"""A device in simulated time: memory, heat, requests and a worker, driven by the real `step`.

Time goes by ticks of one second while something happens and for half a minute after it, and of
five seconds while nothing does. Requests alone are nothing: their latency is reckoned within ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from trimtab.domain.actions import (
    Action,
    HandoverMode,
    Park,
    SetContext,
    SwitchWorker,
    carried_out,
)
from trimtab.domain.events import (
    ActionEnded,
    Demand,
    Event,
    ModelChanged,
    OutcomeKind,
    PinCleared,
    PinSet,
    PolicyChanged,
    RequestWaiting,
    Tick,
    WorkerLost,
    WorkerMeasured,
)
from trimtab.domain.knobs import PARKED, OperatingPoint
from trimtab.planner import State, step
from trimtab.planner.predict import loaded_bytes
from trimtab.policy.compiled import Policy
from trimtab.policy.schedule import entry_in_force
from trimtab.simulate.scenario_environment import Environment
from trimtab.simulate.scenario_requests import Engine, Requests
from trimtab.simulate.scenario_values import START_S, Device, Happening, Sample, Trace

TICK_S: Final = 1.0
CALM_TICK_S: Final = 5.0
LIVELY_S: Final = 30.0
_RETIRE_S: Final = 0.2

MONDAY_S: Final = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
"""Scenarios begin in the week of this Monday, in UTC: no clock is put forward in it."""


class World:
    """Runs one scenario.

    Args:
        policy: In force at the start.
        policies: Others that come in force later, by name.
        device: Under it.
        start_minute: Local time at the start, in minutes since Monday began.
        stops: Moments that a tick must fall on.
    """

    def __init__(
        self,
        policy: Policy,
        policies: Mapping[str, Policy],
        device: Device,
        start_minute: int,
        stops: set[float],
    ) -> None:
        self.policy = policy
        self.configured = policy
        self.policies = policies
        self.device = device
        self.start_minute = start_minute
        self.now = 0.0
        self._elapsed = 0.0
        self.state = State(threads=device.threads)
        self.worker = PARKED
        self.context = 0
        self.pending: deque[Action] = deque()
        self.action: Action | None = None
        self.action_began = 0.0
        self.action_ends = 0.0
        self.environment = Environment(device)
        self.failing: frozenset[str] = frozenset()
        self.requests = Requests(policy.admission, policy.slo.window_s)
        self.trace = Trace(policy, device.memory_bytes)
        self.lively_until = LIVELY_S
        self.stops = sorted(stops, reverse=True)

    def run(self, happenings: Sequence[Happening], for_s: float) -> Trace:
        """Let it all happen, to the end."""
        upcoming = deque(happenings)
        self._happen(upcoming)
        self._put_in_force()
        self._post(ModelChanged(self._clock(), self.device.model))
        self._tick(0.0)
        while self.now < for_s:
            self._advance(self._next_stop(upcoming, for_s))
            self._happen(upcoming)
            if self.configured.schedule:
                self._put_in_force()
            self._end_actions()
            self._tick(self._elapsed)
        return self.trace

    # ------------------------------------------------------------ time

    def _clock(self) -> float:
        return START_S + self.now

    def _next_stop(self, upcoming: deque[Happening], for_s: float) -> float:
        """The next moment to look at."""
        if self.environment.moving or self.action is not None:
            self.lively_until = max(self.lively_until, self.now + TICK_S)
        step_s = TICK_S if self.now < self.lively_until else CALM_TICK_S
        moments = [self.now + step_s, for_s]
        if self.action is not None:
            moments.append(self.action_ends)
        if upcoming:
            moments.append(upcoming[0].at_s)
        coming = self.requests.next_arrival
        if coming is not None and coming > self.now and self.worker.parked:
            moments.append(coming)  # somebody knocks
        while self.stops and self.stops[-1] <= self.now:
            self.stops.pop()
        if self.stops:
            moments.append(self.stops[-1])
        return max(self.now + 1e-6, min(moments))

    def _advance(self, until: float) -> None:
        """Let time pass: ramps, heat, and the engine's work."""
        elapsed = until - self.now
        self._elapsed = elapsed
        self.now = until
        busy = self.requests.advance(until, elapsed, self._engine())
        self.environment.advance(elapsed, busy, self.worker)

    def _engine(self) -> Engine | None:
        """The serving worker's speed; None without one."""
        variant = self.device.model.variant(self.worker.variant or "")
        if variant is None:
            return None
        pace = self.worker.pace_ratio
        return Engine(
            (variant.decode_tps or 1.0) * pace, (variant.prefill_tps or 1.0) * pace, self.context
        )

    # ------------------------------------------------------------ what happens

    def _happen(self, upcoming: deque[Happening]) -> None:
        while upcoming and upcoming[0].at_s <= self.now:
            self._one(upcoming.popleft())
            self.lively_until = self.now + LIVELY_S

    def _one(self, event: Happening) -> None:
        for note in self.environment.apply(event):
            self._say(note)
        self._workload(event)
        if event.crash and self.worker != PARKED:
            lost = self.worker.variant or ""
            self.worker = PARKED
            self._say(f"the worker with {lost} dies")
            self._post(WorkerLost(self._clock(), lost, "killed"))
        if event.fails is not None:
            self.failing = event.fails
            self._say(f"won't load: {', '.join(sorted(event.fails)) or 'none'}")
        if event.pin is not None:
            self._say(
                "pinned: " + ", ".join(f"{knob} {value}" for knob, value in event.pin.items())
            )
            self._post(PinSet(self._clock(), tuple(event.pin.items()), None, "scenario"))
        if event.unpin:
            self._say("unpinned")
            self._post(PinCleared(self._clock(), "scenario"))
        if event.policy is not None:
            self.configured = self.policies[event.policy]
            self._put_in_force()

    def _put_in_force(self) -> None:
        """The configured policy, or the one that its schedule has for this minute."""
        schedule = self.configured.schedule
        wall_s = MONDAY_S + self.start_minute * 60 + self.now
        entry = entry_in_force(schedule, wall_s, UTC) if schedule else None
        policy = self.policies[entry.policy] if entry is not None else self.configured
        if policy is self.policy:
            return
        self.policy = policy
        self.requests.admission = policy.admission
        self._say(f"the policy is now {policy.name}")
        self._post(PolicyChanged(self._clock(), policy.revision))
        self.lively_until = self.now + LIVELY_S

    def _workload(self, event: Happening) -> None:
        if event.stop_requests:
            self.requests.stop()
            self._say("no more requests")
        elif event.every_s is not None:
            self.requests.repeat(self.now, event.every_s, event.prompt, event.answer)
            self._say(f"a request every {event.every_s:g} s")
        elif event.prompt:
            self.requests.arrive(self.now, event.prompt, event.answer)
            self._say("a request")

    def _say(self, text: str) -> None:
        self.trace.happenings.append((self.now, text))

    # ------------------------------------------------------------ the core

    def _tick(self, elapsed: float) -> None:
        if self.requests.waiting and self.worker == PARKED and self.action is None:
            self._post(RequestWaiting(self._clock()))
        minute = int(self.start_minute + self.now // 60) % 1440
        rules_before = self._rules()
        snapshot = self.environment.snapshot(
            self._clock(), self._available(), self.requests.signals(self.now)
        )
        self._post(Tick(self._clock(), snapshot, self._demand(), minute))
        rules = self._rules()
        if rules != rules_before:
            self.lively_until = self.now + LIVELY_S
        loading = self.action.point.variant or "" if isinstance(self.action, SwitchWorker) else ""
        self.trace.samples.append(
            Sample(
                self.now,
                replace(self.worker, context=self.context) if not self.worker.parked else PARKED,
                self._available(),
                self.environment.celsius,
                rules,
                self.requests.running,
                self.requests.waiting,
                self.requests.refused,
                self.requests.answered,
                loading,
            )
        )

    def _rules(self) -> tuple[str, ...]:
        return tuple(one.rule.name for one in self.state.rules.verdicts if one.in_force)

    def _post(self, event: Event) -> None:
        result = step(self.state, event, self.policy)
        self.state = result.state
        if result.decision is not None:
            self.trace.decisions.append(result.decision)
            self.lively_until = self.now + LIVELY_S
        if result.actions:
            self._abandon()
            self.pending = deque(result.actions)
            self._begin()

    def _demand(self) -> Demand:
        serving = not self.worker.parked
        return Demand(
            running=self.requests.running if serving else 0,
            waiting=self.requests.waiting,
            held=0 if serving else self.requests.running,
            kv_tokens=self.requests.kv_tokens if serving else 0,
            worker_bytes=int(self._held()) if serving else None,
        )

    # ------------------------------------------------------------ memory

    def _available(self) -> float:
        """What MemAvailable would say: the new worker counts as far as it has loaded."""
        loading = 0.0
        if isinstance(self.action, SwitchWorker):
            variant = self.device.model.variant(self.action.point.variant or "")
            if variant is not None:
                span = max(self.action_ends - self.action_began, 1e-9)
                share = min(1.0, (self.now - self.action_began) / span)
                loading = share * loaded_bytes(variant, {})
        return max(0.0, self.environment.free_bytes - self._held() - loading)

    def _held(self) -> float:
        variant = self.device.model.variant(self.worker.variant or "")
        if variant is None:
            return 0.0
        return loaded_bytes(variant, {}) + variant.kv_bytes_per_token * self.requests.kv_tokens

    # ------------------------------------------------------------ actions

    def _abandon(self) -> None:
        """A newer plan: what runs is cut, its half-loaded worker is gone."""
        self.action = None
        self.pending.clear()

    def _begin(self) -> None:
        """Start the next action; instant ones end at once, within the same event."""
        while self.pending and self.action is None:
            action = self.pending.popleft()
            self.action, self.action_began = action, self.now
            self.action_ends = self.now + self._duration(action)
            if isinstance(action, SwitchWorker) and action.mode is HandoverMode.BREAK_BEFORE_MAKE:
                self.worker = PARKED
            if self.action_ends <= self.now:
                self._end(action)

    def _duration(self, action: Action) -> float:
        match action:
            case SwitchWorker(point=point) if (
                self.worker.variant == point.variant and self.worker.threads == point.threads
            ):
                return 0.0
            case SwitchWorker(point=point):
                variant = self.device.model.variant(point.variant or "")
                return (variant.load_s or 1.0) + _RETIRE_S if variant is not None else _RETIRE_S
            case Park():
                return _RETIRE_S
            case _:
                return 0.0

    def _end_actions(self) -> None:
        if self.action is not None and self.now >= self.action_ends:
            self._end(self.action)
            self._begin()

    def _end(self, action: Action) -> None:
        self.action = None
        kind, reason, failed = OutcomeKind.DONE, "", None
        if isinstance(action, SwitchWorker) and action.point.variant in self.failing:
            kind, reason, failed = OutcomeKind.FAILED, "it does not load", action.point.variant
        else:
            self.worker = carried_out(self.worker, action)
            if isinstance(action, SetContext):
                self.context = action.tokens
            if isinstance(action, SwitchWorker):
                self.context = action.point.context
                self._measured(action.point)
        took_s = self.now - self.action_began
        self._post(ActionEnded(self._clock(), action.id, kind, self.worker, took_s, reason, failed))

    def _measured(self, point: OperatingPoint) -> None:
        variant = self.device.model.variant(point.variant or "")
        if variant is not None:
            held = loaded_bytes(variant, {})
            self._post(WorkerMeasured(self._clock(), variant.name, held, variant.load_s))
