"""One scenario through the real `step`: requests, memory and speed in, actions and schedules out.

Discrete events: an arrival, the serving request's next mark, a change of the device's conditions,
the end of a hand-over, a trip point, a tick. The engine serves one request at a time; a change of
variant stops it for the switch cost, as nothing is served meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from trimtab.domain.actions import Action, Park, SwitchWorker, carried_out
from trimtab.domain.decisions import Decision
from trimtab.domain.events import (
    ActionEnded,
    Demand,
    Event,
    ModelChanged,
    OutcomeKind,
    PolicyChanged,
    RequestArrived,
    RequestEnded,
    RequestProgress,
    Tick,
)
from trimtab.domain.knobs import PARKED, OperatingPoint
from trimtab.domain.readings import Reading, Snapshot
from trimtab.domain.scheduling import Objective, Schedule
from trimtab.planner import State, step
from trimtab.policy.compiled import Policy
from trimtab.simulate.engine import Engine, Work
from trimtab.simulate.heat import Board, Thermals
from trimtab.simulate.ladder import limits
from trimtab.simulate.policy import heat_policy, simulated_policy
from trimtab.simulate.scenario_set import Scenario
from trimtab.simulate.thresholds import ThresholdRules

TICK_S: Final = 20.0
BASE_BYTES: Final = 1024**3
"""What is available beyond the cap: the policy's headroom, so that the cap is the limit."""


@dataclass(frozen=True, slots=True)
class Served:
    """What became of one request.

    Attributes:
        arrived_s: When it came.
        score: Its variants' quality, by tokens, if it met its objective; else 0.
        met: Whether it did.
        ended_s: When it ended; infinity if it was refused.
    """

    arrived_s: float
    score: float
    met: bool
    ended_s: float


@dataclass(slots=True)
class Result:
    """What came of a run.

    Attributes:
        served: By request.
        decisions: All decision records.
        points: (time, variant) of each change of what is loaded; the start's included.
        shed: Requests refused.
        switches: Changes of variant after the first load.
        switching_s: Time that they took.
        length_s: Of the run.
        moves: (time, point) of each change of any knob.
        over_limit_s: Time over the policy's temperature limit.
        throttled_s: Time that the device had slowed itself down.
        hottest_celsius: Of the run.
        temperatures: (time, °C) of each look at the sensor.
    """

    served: list[Served] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    points: list[tuple[float, str | None]] = field(default_factory=list)
    shed: int = 0
    switches: int = 0
    switching_s: float = 0.0
    length_s: float = 0.0
    moves: list[tuple[float, OperatingPoint]] = field(default_factory=list)
    over_limit_s: float = 0.0
    throttled_s: float = 0.0
    hottest_celsius: float = -inf
    temperatures: list[tuple[float, float]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Mean score of a request."""
        return sum(one.score for one in self.served) / len(self.served)

    @property
    def met_ratio(self) -> float:
        """Share of requests that met their objective."""
        return sum(one.met for one in self.served) / len(self.served)


class Run:
    """Drives `step` through one scenario.

    Args:
        scenario: What happens.
        policy: In force; None for the scenario set's own.
        only: The one variant that may be taken, loaded from the start and never left, for the
            static baselines; None for the controller and for rules.
        tick_s: Time between two looks at the sensors.
        noise_bytes: Amplitude of what others take and give back, as a pattern that repeats.
        rules: What chooses the variant in the controller's place; it schedules all the same.
        heat: How the device gets warm; None: it doesn't, and there is no sensor.
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy | None = None,
        only: str | None = None,
        tick_s: float = TICK_S,
        noise_bytes: float = 0.0,
        rules: ThresholdRules | None = None,
        heat: Board | None = None,
    ) -> None:
        self.result = Result(length_s=scenario.length_s)
        self._scenario = scenario
        self._rules = rules
        self._only = only if rules is None else rules.variant
        self._tick_s = tick_s
        self._noise_bytes = noise_bytes
        self._thermals = None if heat is None else Thermals(heat)
        self._policy = policy or self._own_policy()
        self._rungs = {rung.name: rung for rung in scenario.ladder.rungs}
        self._engine = Engine()
        self._work: dict[int, Work] = {}
        self._point = PARKED
        self._now = 0.0
        self._piece = 0
        self._ending: tuple[float, SwitchWorker | Park] | None = None
        self._ticks = 0
        self.steps = 0
        threads = 1 if heat is None else heat.threads
        model = scenario.ladder.model(threads)
        # The device has been profiled: what a worker holds is known, and so are the speeds.
        self.state = State(
            threads=threads,
            resident={rung.name: int(rung.size_bytes) for rung in scenario.ladder.rungs},
        )
        trace = scenario.trace
        self._arrival = [*trace.arrival_s.tolist(), inf]
        self._prompt = trace.prompt.tolist()
        self._output = trace.output.tolist()
        self._limit = limits(trace.output).tolist()
        best, slo = scenario.ladder.best, scenario.objectives
        self._objectives = [
            Objective(
                slo.ttft_base_s + slo.ttft_slope * prompt / best.prefill_tps,
                slo.end_base_s + slo.end_slope * prompt / best.prefill_tps,
                slo.end_slope / best.decode_tps,
            )
            for prompt in self._prompt
        ]
        self.result.served = [Served(at_s, 0.0, False, inf) for at_s in trace.arrival_s.tolist()]
        self._post(ModelChanged(0.0, model))

    @property
    def now_s(self) -> float:
        """How far it has come."""
        return self._now

    # ------------------------------------------------------------ the loop

    def run(self) -> Result:
        """To the end of the scenario, and until the last request has left."""
        conditions, engine = self._scenario.conditions, self._engine
        coming, total = 0, len(self._prompt)
        next_tick_s, change_s = 0.0, conditions.next_change_s(0.0)
        while coming < total or self._work:
            mark_s = engine.next_s()
            switch_s = self._ending[0] if self._ending is not None else inf
            now = min(self._arrival[coming], mark_s, change_s, switch_s, next_tick_s)
            if self._thermals is not None and self._warms_to(self._thermals, now):
                continue
            engine.advance(now)
            self._now = now
            if now == switch_s:
                self._end_switch()
            elif now == change_s:
                self._piece = conditions.index(now)
                change_s = conditions.next_change_s(now)
                self._set_speed()
                self._tick()
            elif now == next_tick_s:
                next_tick_s = now + self._tick_s
                self._tick()
            elif now == self._arrival[coming]:
                self._arrive(coming)
                coming += 1
            else:
                self._mark()
        return self.result

    def _warms_to(self, thermals: Thermals, to_s: float) -> bool:
        """Let the device warm up or cool; True if a trip point lay before that time."""
        engine, result = self._engine, self.result
        works = engine.current is not None and engine.rung is not None
        power = thermals.power_ratio(self._point) if works else 0.0
        trip_s = self._now + thermals.trips_in_s(power)
        elapsed_s = min(trip_s, to_s) - self._now
        thermals.advance(elapsed_s, power)
        limit = self._policy.temperature
        if limit is not None and thermals.celsius > limit.enter_celsius:
            result.over_limit_s += elapsed_s
        result.throttled_s += elapsed_s if thermals.throttled else 0.0
        result.hottest_celsius = max(result.hottest_celsius, thermals.celsius)
        if trip_s >= to_s:
            return False
        engine.advance(trip_s)
        self._now = trip_s
        thermals.trip()
        self._set_speed()
        return True

    def _arrive(self, request: int) -> None:
        if (serving := self._engine.current) is not None and self._engine.rung is not None:
            self._tell(serving)  # in the daemon, tokens come in all the time
        self._work[request] = Work(request, float(self._prompt[request]), self._output[request])
        self._post(
            RequestArrived(
                self._now,
                request,
                self._prompt[request],
                self._limit[request],
                1.0,
                self._objectives[request],
            )
        )

    def _mark(self) -> None:
        """The serving request has read its prompt, reached a look, or come to its end."""
        work = self._engine.current
        if work is None:
            return
        if work.written < work.output:
            self._tell(work)
        else:
            self._end(work)

    def _tell(self, work: Work) -> None:
        """The core hears how far a request has come, in whole tokens."""
        read = self._prompt[work.request] - work.prompt_left
        event = RequestProgress(
            self._now, work.request, read, int(work.written), work.prefill_s, work.decode_s
        )
        work.prefill_s = work.decode_s = 0.0
        self._post(event)

    def _end(self, work: Work) -> None:
        request = work.request
        del self._work[request]
        self._engine.current = None
        due, arrived_s = self._objectives[request], self._arrival[request]
        met = (
            work.first_s <= arrived_s + due.first_within_s + 1e-6
            and self._now <= arrived_s + due.end_base_s + due.end_per_token_s * work.output + 1e-6
        )
        score = work.earned / work.output if met else 0.0
        self.result.served[request] = Served(arrived_s, score, met, self._now)
        if self._rules is not None:
            self._rules.ended(met=met)
        self._post(RequestEnded(self._now, request, work.output, work.prefill_s, work.decode_s))

    # ------------------------------------------------------------ to and from the core

    def _tick(self) -> None:
        self._ticks += 1
        held = self._rungs[self._point.variant].size_bytes if self._point.variant else 0.0
        available = self._cap_bytes() - held + BASE_BYTES
        if self._rules is not None and self._ending is None:
            self._obey(self._rules, available - BASE_BYTES)
        if self._only is not None:
            available = 1e12  # a static choice stays where it is
        elif self._noise_bytes:
            available += self._noise_bytes * ((self._ticks * 0.618034) % 1.0 - 0.5)
        readings = [Reading("memory.available", available, self._now)]
        if self._thermals is not None:
            celsius = self._thermals.read()
            readings.append(Reading("temperature.max", celsius, self._now))
            self.result.temperatures.append((self._now, celsius))
        demand = Demand(running=len(self._work), worker_bytes=int(held) if held else None)
        self._post(
            Tick(self._now, Snapshot(self._now, {one.signal: one for one in readings}), demand)
        )

    def _obey(self, rules: ThresholdRules, spare_bytes: float) -> None:
        """Have the rules' variant loaded: a policy that allows no other one comes into force."""
        if rules.look(self._now, spare_bytes):
            self._only = rules.variant
            self._policy = self._own_policy()
            self._post(PolicyChanged(self._now, self._policy.revision))

    def _own_policy(self) -> Policy:
        """The scenario set's; fixed choices and rules know nothing of heat."""
        if self._thermals is None:
            return simulated_policy(self._only)
        if self._only is None:
            return heat_policy(self._thermals.board.threads)
        policy, threads = simulated_policy(self._only), self._thermals.board.threads
        return replace(policy, knobs=replace(policy.knobs, threads_max=threads))

    def _cap_bytes(self) -> float:
        return self._scenario.conditions.cap_bytes[self._piece]

    def _post(self, event: Event) -> None:
        result = step(self.state, event, self._policy)
        self.steps += 1
        self.state = result.state
        if result.decision is not None:
            self.result.decisions.append(result.decision)
        if result.schedule is not None:
            self._follow(result.schedule)
        if result.actions:
            self._act(result.actions)

    def _follow(self, schedule: Schedule) -> None:
        for shed in schedule.shed:
            del self._work[shed.request]
            self.result.shed += 1
            if self._rules is not None:
                self._rules.ended(met=False)
        order = schedule.order
        self._engine.current = self._work[order[0]] if order else None
        self._engine.look = schedule.look_tokens if schedule.look_tokens is not None else inf

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SwitchWorker() | Park():
                    cost_s = self._scenario.switch_cost_s if self.result.points else 0.0
                    self._ending = (self._now + cost_s, action)
                    self._engine.rung = None
                    self.result.switching_s += cost_s
                    self.result.switches += bool(self.result.points)
                case _:
                    self._point = carried_out(self._point, action)
                    self._done(action)

    def _end_switch(self) -> None:
        assert self._ending is not None
        _, action = self._ending
        self._ending = None
        self._point = carried_out(self._point, action)
        self._engine.rung = self._rungs.get(self._point.variant or "")
        self.result.points.append((self._now, self._point.variant))
        self._done(action)
        self._tick()

    def _done(self, action: Action) -> None:
        if not self.result.moves or self.result.moves[-1][1] != self._point:
            self.result.moves.append((self._now, self._point))
        self._set_speed()
        self._post(ActionEnded(self._now, action.id, OutcomeKind.DONE, self._point))

    def _set_speed(self) -> None:
        rung = self._engine.rung
        speed = self._scenario.conditions.speed[self._piece] * self._point.pace_ratio
        if rung is not None and rung.size_bytes > self._cap_bytes():
            speed /= self._scenario.over_cap_slowdown
        if self._thermals is not None:
            speed *= self._thermals.speed_ratio(self._point)
        self._engine.speed = speed
