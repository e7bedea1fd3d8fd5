"""What must hold of `step` whatever happens, in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from planner_world import LADDER, MIB, World

from policies_for_tests import PLAIN, policy
from trimtab.domain.actions import (
    Action,
    HandoverMode,
    Park,
    ReleaseIdleKv,
    SwitchWorker,
    carried_out,
)
from trimtab.domain.decisions import Decision, Direction
from trimtab.domain.events import (
    Demand,
    Event,
    PausedSet,
    PinCleared,
    PinSet,
    PolicyChanged,
    RequestArrived,
    RequestEnded,
    RequestProgress,
    RequestWaiting,
    WorkerLost,
)
from trimtab.domain.knobs import Knob, KvPlacement
from trimtab.domain.models import VariantSpec
from trimtab.domain.scheduling import Objective
from trimtab.planner import State, step
from trimtab.planner.assess import kept_out, situation
from trimtab.planner.outcome import settling
from trimtab.planner.predict import loaded_bytes
from trimtab.planner.relief import IDLE_KV, idle_bytes, resting
from trimtab.planner.resident import estimates
from trimtab.policy.compiled import Policy, Stability

DWELL_S = 10.0
STABILITY = Stability(dwell_s=DWELL_S, cooldown_s=5.0, switches_per_hour=30)
IN_FORCE = policy(stability=STABILITY)
EVERY_KNOB = policy(
    stability=STABILITY,
    revision="000000000002",
    knobs=replace(
        PLAIN.knobs,
        speculation=("off", "ngram", "draft:int4"),
        kv_placement=tuple(KvPlacement),
        threads_min=1,
        threads_max=4,
    ),
)
THREADS = 4
HEADROOM = 512 * MIB
LEAVE = 768 * MIB
PACE_LEVELS = 3
GIVES_BACK = (Direction.RELIEF, Direction.GIVE_WAY)
MOVES = (Direction.UP, Direction.DOWN, Direction.START)


class Watched(World):
    """A world that keeps every event and decision with the state before it.

    Plans have what was seen with the event: that is what they go by.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.log: list[tuple[Event, Policy]] = []
        self.records: list[tuple[State, Decision]] = []
        self.plans: list[tuple[State, Decision, tuple[Action, ...]]] = []

    def post(self, event: Event) -> None:
        before, count = self.state, len(self.decisions)
        known = len(self.actions)
        self.log.append((event, self.policy))
        super().post(event)
        if len(self.decisions) > count:
            pinned = replace(before, pin=self.state.pin)
            self.records.append((pinned, self.decisions[-1]))
            looked = replace(before, snapshot=self.state.snapshot)
            self.plans.append((looked, self.decisions[-1], tuple(self.actions[known:])))


def voluntary(decision: Decision) -> bool:
    """True if nothing forced it: not even a limit whose only way out leads up."""
    trigger = decision.trigger
    if trigger.signal == "memory.available":
        return trigger.threshold == LEAVE and decision.direction is Direction.UP
    return trigger.signal in ("better", "value")


def in_quarantine(state: State, variant: str, at_s: float) -> bool:
    entry = state.quarantine.get(variant)
    return entry is not None and at_s < entry.until_s


def available_bytes(state: State) -> float | None:
    """What the last snapshot says, with what idle conversations would give back."""
    return situation(state).available_bytes if state.snapshot is not None else None


class Core(RuleBasedStateMachine):
    """Any order of events."""

    began = False

    @property
    def records(self) -> list[tuple[State, Decision]]:
        """Every decision with the state before it."""
        return self.world.records if self.began else []

    @property
    def plans(self) -> list[tuple[State, Decision, tuple[Action, ...]]]:
        """Every decision with the state before it and its actions."""
        return self.world.plans if self.began else []

    @initialize(in_force=st.sampled_from([IN_FORCE, EVERY_KNOB]))
    def begin(self, in_force: Policy) -> None:
        self.began = True
        self.world = Watched(policy=in_force, celsius=50.0, state=State(threads=THREADS))
        self.world.start()
        self.paused = False
        self.next_request = 0
        self.open: list[int] = []
        self.ended: set[int] = set()  # the order before may hold them, while there is no other
        self.pinned: str | None = None

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.world.run(seconds)

    @rule()
    def all_stays_as_it_is_for_a_while(self) -> None:
        """Long enough for every step that must be taken: then what holds is within the limits."""
        world = self.world
        world.run(20)
        if world.blind or world.pending or world.leak_bytes:
            return  # nobody can know, or a worker that has just been loaded grows by itself
        short = world.available_bytes + idle_bytes(world.state) < HEADROOM
        assert world.point.parked or not short
        free = self.paused or self.pinned is None or kept_out(world.state, world.now) is not None
        assert free or world.point.variant in (self.pinned, None)

    @rule(
        variant=st.sampled_from(LADDER.variants),
        mib=st.integers(-10, 90),
        idle=st.integers(0, 200),
    )
    def memory_is_just_enough(self, variant: VariantSpec, mib: int, idle: int) -> None:
        """For a variant, or for a short conversation on it, or not quite."""
        self.world.demand = replace(self.world.demand, idle_bytes=idle * MIB)
        self.world.free_bytes = HEADROOM + loaded_bytes(variant, {}) + mib * MIB
        self.world.run(3)

    @rule(idle=st.integers(50, 300))
    def idle_conversations_hold_what_is_missing(self, idle: int) -> None:
        held = self.world.free_bytes - self.world.available_bytes
        others = held - self.world.demand.idle_bytes
        self.world.demand = replace(self.world.demand, idle_bytes=idle * MIB)
        self.world.free_bytes = HEADROOM + others + idle * MIB - 40 * MIB
        self.world.run(3)

    @rule()
    def it_gets_hot_and_stays_so(self) -> None:
        self.world.celsius = 79.9
        self.world.run(100)
        self.world.celsius = 80.1
        self.world.run(45)

    @rule(variant=st.sampled_from(["fp32", "int8"]))
    def a_variant_does_not_load(self, variant: str) -> None:
        self.world.failing ^= {variant}

    @rule(variant=st.sampled_from(["fp32", "int8"]))
    def workers_die_while_they_load(self, variant: str) -> None:
        self.world.dying ^= {variant}

    @rule(count=st.integers(0, 2))
    def streams_are_held(self, count: int) -> None:
        self.world.demand = replace(self.world.demand, held=count)
        self.world.run(1)

    @rule(mib=st.integers(300, 3000))
    def memory_changes(self, mib: int) -> None:
        self.world.free_bytes = mib * MIB
        self.world.run(2)

    @rule(celsius=st.floats(40, 90))
    def heat_changes(self, celsius: float) -> None:
        self.world.celsius = celsius
        self.world.run(1)

    @rule()
    def sensors_fail(self) -> None:
        self.world.blind = not self.world.blind
        self.world.run(1)

    @rule(mib=st.integers(0, 600))
    def conversations_end(self, mib: int) -> None:
        self.world.demand = replace(self.world.demand, idle_bytes=mib * MIB)
        self.world.run(1)

    @rule()
    def giving_back_idle_kv_frees_nothing(self) -> None:
        self.world.stuck = not self.world.stuck

    @rule(mib=st.integers(0, 300))
    def the_worker_leaks(self, mib: int) -> None:
        self.world.leak_bytes = mib * MIB
        self.world.run(1)

    @rule(variant=st.sampled_from(["int8", "int4"]), mib=st.integers(100, 800))
    def a_variant_holds_other_than_predicted(self, variant: str, mib: int) -> None:
        self.world.really[variant] = mib * MIB

    @rule(variant=st.sampled_from(["fp32", "int8", "int4"]))
    def a_person_pins(self, variant: str) -> None:
        self.pinned = variant
        self.world.post(PinSet(self.world.now, ((Knob.VARIANT, variant),), None, "test"))
        self.world.run(3)

    @rule()
    def the_pin_goes(self) -> None:
        self.pinned = None
        self.world.post(PinCleared(self.world.now, "test"))
        self.world.run(1)

    @rule(in_force=st.sampled_from([IN_FORCE, EVERY_KNOB]))
    def another_policy_comes_into_force(self, in_force: Policy) -> None:
        self.world.policy = in_force
        self.world.post(PolicyChanged(self.world.now, in_force.revision))
        self.world.run(1)

    @rule()
    def a_person_pauses_or_resumes(self) -> None:
        self.paused = not self.paused
        self.world.post(PausedSet(self.world.now, self.paused, "test"))
        self.world.run(1)

    @rule(waiting=st.integers(0, 3))
    def requests_wait(self, waiting: int) -> None:
        self.world.demand = replace(self.world.demand, waiting=waiting)
        if waiting:
            self.world.post(RequestWaiting(self.world.now))
        self.world.run(1)

    @rule(mib=st.integers(0, 200))
    def conversations_run(self, mib: int) -> None:
        """They hold so much KV, in segments of ours."""
        self.world.free_bytes -= mib * MIB - self.world.demand.running_bytes
        self.world.demand = replace(
            self.world.demand,
            running=int(mib > 0),
            running_bytes=mib * MIB,
            yielding_bytes=mib * MIB // 2,
        )
        self.world.run(1)

    @rule(prompt=st.integers(1, 3000), limit=st.integers(1, 800))
    def a_request_comes(self, prompt: int, limit: int) -> None:
        objective = Objective(2.0, 4.0, 0.2)
        event = RequestArrived(self.world.now, self.next_request, prompt, limit, 1.0, objective)
        self.world.post(event)
        self.open.append(self.next_request)
        self.next_request += 1

    @rule(tokens=st.integers(0, 50))
    def a_request_gets_on(self, tokens: int) -> None:
        if self.open:
            self.world.post(
                RequestProgress(self.world.now, self.open[0], 3000, tokens, 0.1, 0.05 * tokens)
            )

    @rule(tokens=st.integers(1, 50))
    def a_request_ends(self, tokens: int) -> None:
        if self.open:
            ended = self.open.pop(0)
            self.ended.add(ended)
            self.world.post(RequestEnded(self.world.now, ended, tokens, 0.0, 1.0))

    @rule()
    def the_worker_dies(self) -> None:
        variant = self.world.state.point.variant
        if variant is not None and not self.world.state.waiting_for:
            self.world.loaded = replace(self.world.loaded, variant=None)
            self.world.post(WorkerLost(self.world.now, variant, "test"))
            self.world.run(2)

    @invariant()
    def a_variant_over_the_limit_is_never_chosen_while_another_fits(self) -> None:
        for before, decision in self.records:
            if decision.predicted is None or before.snapshot is None or before.pin is not None:
                continue
            left = decision.predicted.available_bytes
            if left is None or left >= HEADROOM or decision.direction in GIVES_BACK:
                continue
            held = estimates(LADDER, before.resident)
            others = [
                loaded_bytes(variant, held)
                for variant in LADDER.variants
                if not in_quarantine(before, variant.name, decision.at_s)
            ]
            assert before.heat.level > PACE_LEVELS or all(
                left + decision.predicted.memory_bytes - other < HEADROOM for other in others
            )

    @invariant()
    def every_decision_has_one_outcome_once_it_has_settled_or_been_replaced(self) -> None:
        if self.began:
            state = self.world.state
            made = [one.id for one in self.world.decisions if one.direction is not Direction.SHED]
            known = [one.id for one in self.world.settled if one.outcome is not None]
            open_ids = [one.decision.id for one in settling(state)]
            assert sorted(known + open_ids) == made
            assert len(open_ids) <= 1 or state.beside

    @invariant()
    def no_step_that_nothing_forces_comes_within_the_dwell_time(self) -> None:
        for before, decision in self.records:
            if voluntary(decision):
                assert decision.at_s - before.changed_s >= DWELL_S

    @invariant()
    def a_plan_turns_each_knob_once(self) -> None:
        for _, _, actions in self.plans:
            kinds = [type(action) for action in actions]
            assert len(kinds) == len(set(kinds))
            # What loads another worker comes last: all before it only takes less.
            assert all(not isinstance(action, SwitchWorker | Park) for action in actions[:-1])

    @invariant()
    def a_step_up_would_keep_the_leave_threshold(self) -> None:
        for before, decision in self.records:
            expected = decision.predicted
            if expected is None or expected.available_bytes is None or before.pin is not None:
                continue
            if decision.direction is Direction.UP and voluntary(decision):
                grows = expected.reserved_bytes - expected.memory_bytes
                assert expected.available_bytes - grows >= LEAVE

    @invariant()
    def any_prefix_of_a_plan_is_safe(self) -> None:
        """Whatever is carried out, no more is held than before or than in the end."""
        for before, decision, actions in self.plans:
            available = available_bytes(before)
            points = [before.point]
            for action in actions:
                points.append(carried_out(points[-1], action))
                for knob in points[-2].changed(points[-1]):
                    assert points[-1].value(knob) == decision.target.value(knob)
                if isinstance(action, SwitchWorker) and decision.predicted is not None:
                    new = decision.predicted.memory_bytes
                    both = action.mode is HandoverMode.MAKE_BEFORE_BREAK
                    assert not both or available is None or available - new >= HEADROOM
            for point in points[1:]:
                assert point.context <= max(before.point.context, decision.target.context)
                assert point.variant in (before.point.variant, decision.target.variant, None)
            assert points[-1] == decision.target or decision.direction in GIVES_BACK

    @invariant()
    def what_brought_nothing_is_not_used_while_it_rests(self) -> None:
        for before, decision, actions in self.plans:
            rest = resting(before, decision.at_s) & resting(self.world.state, decision.at_s)
            if IDLE_KV in rest:
                assert not any(isinstance(action, ReleaseIdleKv) for action in actions)
            if Knob.PACE in rest and decision.direction not in GIVES_BACK:
                assert decision.target.pace_ratio == 1
            if Knob.CONTEXT in rest and decision.target.variant == before.point.variant:
                assert decision.target.context >= before.point.context
            target = decision.target.variant
            if target is not None and decision.direction in MOVES:
                assert target == before.point.variant or not in_quarantine(
                    before, target, decision.at_s
                )

    @invariant()
    def a_pinned_variant_is_the_only_one_that_is_chosen_unless_it_failed(self) -> None:
        for before, decision in self.records:
            pin = before.pin
            if kept_out(before, decision.at_s) is not None:
                continue
            if pin is not None and decision.direction in (Direction.UP, Direction.DOWN):
                assert decision.target.variant in (pin.knobs[Knob.VARIANT], before.point.variant)

    @invariant()
    def an_order_holds_each_open_request_once(self) -> None:
        if self.began:
            order = self.world.order
            assert len(order) == len(set(order))
            assert set(order) <= set(self.open) | self.ended
            assert {job.request for job in self.world.state.queue.jobs} <= set(self.open)

    def teardown(self) -> None:
        """The same events give the same decisions, and the same state."""
        if not self.began:
            return
        again, decisions = State(threads=THREADS), []
        for event, in_force in self.world.log:
            result = step(again, event, in_force)
            again = result.state
            if result.decision is not None:
                decisions.append(result.decision)
        assert decisions == self.world.decisions
        assert again == self.world.state


CoreTest = Core.TestCase
CoreTest.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    derandomize=True,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow],
)


@settings(max_examples=20, derandomize=True, deadline=None)
@given(pressed=st.booleans(), noise=st.lists(st.floats(-1, 1), min_size=50, max_size=150))
def test_noise_within_the_band_changes_nothing(pressed: bool, noise: list[float]) -> None:
    """Between the thresholds what is loaded stays: fp32, or int8 if memory was short before."""
    world = World(policy=IN_FORCE).start()
    if pressed:
        world.free_bytes = 1000 * MIB
        world.run(5)
    # fp32 holds 640 + 60 MiB, a full conversation 64 MiB: in the middle of the band of 256 MiB.
    middle = (512 + 128 + 700 + 64) * MIB
    world.free_bytes = middle
    world.run(30)
    before = len(world.decisions)

    for amplitude in noise:
        world.free_bytes = middle + 60 * MIB * amplitude
        world.run(1)

    assert world.point.variant == ("int8" if pressed else "fp32")
    assert world.decisions[before:] == []


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    free=st.integers(400, 2500),
    celsius=st.one_of(st.none(), st.floats(40, 79)),
    idle=st.integers(0, 300),
    leak=st.integers(0, 200),
)
def test_constant_input_comes_to_rest(
    free: int, celsius: float | None, idle: int, leak: int
) -> None:
    world = World(policy=IN_FORCE, free_bytes=free * MIB, celsius=celsius, leak_bytes=leak * MIB)
    world.demand = Demand(idle_bytes=idle * MIB)
    world.start()
    world.run(150)
    settled = len(world.decisions)

    world.run(300)

    assert len(world.decisions) == settled


def test_heat_that_nothing_cools_is_answered_ever_more_rarely() -> None:
    world = World(policy=IN_FORCE, celsius=79.9).start().run(60)
    world.celsius = 80.1
    by_hour = []
    for _ in range(3):
        before = len(world.decisions)
        world.run(3600, tick_s=2.0)
        by_hour.append(len(world.decisions) - before)

    assert by_hour[0] > by_hour[1] >= by_hour[2]
    assert world.state.distrust[Knob.PACE].wait_s >= 960
