"""A worker's turns in simulated time: steps that several answers share, prompts in pieces.

Requests come from the Azure chat trace, scaled to a small model; the core is the real one. What the
worker does, this does: in each turn a token for all that write and may, then a piece of one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from test_request_schedule import ladder

from policies_for_tests import policy
from trimtab.domain.events import (
    ActionEnded,
    Event,
    ModelChanged,
    OutcomeKind,
    RequestArrived,
    RequestEnded,
    RequestProgress,
    Tick,
)
from trimtab.domain.readings import Reading, Snapshot
from trimtab.domain.scheduling import Schedule
from trimtab.planner import State, step
from trimtab.planner.requests import Queue
from trimtab.planner.speeds import Speeds
from trimtab.policy.compiled import Admission, Slo
from trimtab.simulate import traces

PREFILL_TPS, DECODE_TPS, FURTHER = 300.0, 32.0, 0.4
CONVERSATIONS, PIECE_S, PIECE_TOKENS, TICK_S = 4, 0.05, 64, 1.0
PLENTY = 4 << 30


@dataclass
class Work:
    """One request."""

    number: int
    at_s: float
    prompt: int
    output: int
    left: int
    made: int = 0
    begun: int = 0  # when it began, counted; 0: it hasn't
    first_s: float | None = None
    end_s: float | None = None
    told: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    companions: int = 0


@dataclass(frozen=True)
class Served:
    """What came of a run: shares of the requests that were in time, and that were answered."""

    in_time: float
    answered: float


class SharedEngine:
    """The core, and a worker that follows its schedule.

    Args:
        slo: Of the policy.
        rho: Load, as work for one at a time ÷ time.
        follow: False for a worker that takes what comes, as many as may run.
        together: So many share the engine whatever the schedule says; None: as it says.
    """

    def __init__(
        self, slo: Slo, rho: float, *, follow: bool = True, together: int | None = None
    ) -> None:
        self.slo, self.follow, self.fixed = slo, follow, together
        admission = Admission(1000, 20.0, CONVERSATIONS, (("interactive", 1.0),))
        self.policy = policy(slo=slo, admission=admission)
        model = ladder(one=DECODE_TPS)
        model = replace(
            model, variants=tuple(replace(one, prefill_tps=PREFILL_TPS) for one in model.variants)
        )
        self.state = State(queue=Queue(speeds=Speeds(further=FURTHER)))
        self.schedule = Schedule(())
        self.now, self.begun = 0.0, 0
        self.there: dict[int, Work] = {}
        self.coming = requests(rho)
        self.all = list(self.coming)
        self.post(ModelChanged(0.0, model))
        self.tick()

    def run(self) -> Served:
        next_tick_s = TICK_S
        while self.coming or self.there:
            while self.coming and self.coming[0].at_s <= self.now:
                self.arrive(self.coming.pop(0))
            if self.now >= next_tick_s:
                next_tick_s = self.now + TICK_S
                self.report_all()
                self.tick()
            if not self.turn():
                self.now = min([next_tick_s] + [one.at_s for one in self.coming[:1]])
        good = [one for one in self.all if self.met(one)]
        ended = [one for one in self.all if one.end_s is not None]
        return Served(len(good) / len(self.all), len(ended) / len(self.all))

    def met(self, work: Work) -> bool:
        assert self.slo.ttft_p95_s is not None
        assert self.slo.tpot_p95_s is not None
        if work.first_s is None or work.end_s is None:
            return False
        due_s = self.slo.ttft_p95_s + self.slo.tpot_p95_s * work.output
        first_s, took_s = work.first_s - work.at_s, work.end_s - work.at_s
        return first_s <= self.slo.ttft_p95_s and took_s <= due_s

    # ------------------------------------------------------------ the worker

    def turn(self) -> bool:
        """A step for those that write, then a piece of a prompt; False if there is nothing."""
        active = self.active()
        writing = [one for one in active if one.left == 0]
        if writing:
            took_s = (1 + FURTHER * (len(writing) - 1)) / DECODE_TPS
            self.now += took_s
            for one in writing:
                self.write(one, took_s, len(writing))
        active = self.active()
        reading = [one for one in active if one.left > 0]
        if reading:
            self.read(min(reading, key=lambda one: one.begun), shared=len(active) > 1)
        return bool(writing or reading)

    def active(self) -> list[Work]:
        """Those whose turn it is; who hasn't begun begins."""
        order = self.schedule.order if self.follow else ()
        rank = {number: place for place, number in enumerate(order)}
        free = CONVERSATIONS
        if self.follow and self.schedule.together is not None:
            free = min(free, self.fixed or self.schedule.together)
        found = sorted(self.there.values(), key=lambda one: (rank.get(one.number, 9999), one.at_s))
        for one in found[:free]:
            if not one.begun:
                self.begun += 1
                one.begun = self.begun
        return found[:free]

    def write(self, one: Work, took_s: float, together: int) -> None:
        one.made += 1
        one.decode_s += took_s
        one.companions += together
        look = self.schedule.look_tokens
        if one.made == one.output:
            self.end(one)
        elif self.schedule.order[:1] == (one.number,) and look and one.made - 1 >= look:
            self.report(one)

    def read(self, one: Work, *, shared: bool) -> None:
        size = min(PIECE_TOKENS, one.left, int(PREFILL_TPS * PIECE_S) if shared else one.left)
        self.now += size / PREFILL_TPS
        one.left -= size
        one.prefill_s += size / PREFILL_TPS
        if one.left == 0:
            one.made, one.first_s = 1, self.now
            self.report(one)

    # ------------------------------------------------------------ to and from the core

    def arrive(self, one: Work) -> None:
        self.report_all()
        self.there[one.number] = one
        waited_s = self.now - one.at_s
        self.post(RequestArrived(self.now, one.number, one.prompt, one.output, waited_s=waited_s))

    def report_all(self) -> None:
        for one in [one for one in self.there.values() if one.begun]:
            self.report(one)

    def report(self, one: Work) -> None:
        produced = max(0, one.made - 1)
        shared = max(1.0, one.companions / max(1, produced - one.told))
        event = RequestProgress(
            self.now,
            one.number,
            one.prompt - one.left,
            produced,
            one.prefill_s,
            one.decode_s,
            shared,
        )
        one.told, one.prefill_s, one.decode_s, one.companions = produced, 0.0, 0.0, 0
        self.post(event)

    def end(self, one: Work) -> None:
        one.end_s = self.now
        del self.there[one.number]
        written = one.made - 1
        shared = max(1.0, one.companions / max(1, written - one.told))
        event = RequestEnded(
            self.now, one.number, written, one.prefill_s, one.decode_s, together=shared
        )
        self.post(event)

    def tick(self) -> None:
        reading = Reading("memory.available", float(PLENTY), self.now)
        self.post(Tick(self.now, Snapshot(self.now, {reading.signal: reading})))

    def post(self, event: Event) -> None:
        result = step(self.state, event, self.policy)
        self.state = result.state
        for action in result.actions:
            assert result.decision is not None
            done = OutcomeKind.DONE
            self.post(ActionEnded(event.at_s, action.id, done, result.decision.target))
        if result.schedule is None:
            return
        self.schedule = result.schedule
        if self.follow:
            for shed in result.schedule.shed:
                self.there.pop(shed.request, None)


def requests(rho: float) -> list[Work]:
    """A hundred and fifty requests of the trace whose work is ``rho`` of their time."""
    block = traces.trace("azure_llm_2023_conv.csv").block(3, 1000).scaled(0.1)
    prompt = np.minimum(block.prompt, 320)[:150]
    output = np.clip(block.output, 2, 96)[:150]
    work_s = (prompt / PREFILL_TPS + output / DECODE_TPS).sum()
    arrival_s = block.arrival_s[:150] - block.arrival_s[0]
    arrival_s = arrival_s * (work_s / rho / arrival_s[-1])
    rows = zip(arrival_s.tolist(), prompt.tolist(), output.tolist(), strict=True)
    return [Work(number, at, size, out, size) for number, (at, size, out) in enumerate(rows)]
