"""A world for `step`: memory with other tenants, heat as told, actions that take their time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trimtab.domain.actions import (
    Action,
    GiveWay,
    Park,
    ReleaseIdleKv,
    SetSpeculation,
    SwitchWorker,
    carried_out,
)
from trimtab.domain.decisions import Decision
from trimtab.domain.events import (
    ActionEnded,
    Demand,
    DraftFailed,
    Event,
    ModelChanged,
    OutcomeKind,
    Tick,
    WorkerMeasured,
)
from trimtab.domain.knobs import PARKED, SPECULATION_NGRAM, OperatingPoint
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.readings import Reading, Snapshot
from trimtab.planner import State, step
from trimtab.planner.plan import loads_draft
from trimtab.planner.points import draft_of
from trimtab.planner.predict import loaded_bytes
from trimtab.policy.compiled import Policy

MIB = 1024 * 1024


def model(**megabytes: int) -> ModelSpec:
    """A model whose variants hold so many MiB, best first; quality falls by a tenth each."""
    variants = tuple(
        VariantSpec(
            name=name,
            precision=name,
            folder=f"/models/{name}",
            weights_bytes=size * MIB,
            disk_bytes=size * MIB,
            kv_bytes_per_token=32 * 1024,
            quality=1.0 - 0.1 * position,
            fingerprint="f",
            context_length=4096,
            load_s=1.0,
        )
        for position, (name, size) in enumerate(megabytes.items())
    )
    return ModelSpec("m", "M", "llama", 4096, 16, 4, 64, "t", True, variants)


LADDER = model(fp32=640, int8=240, int4=140)


@dataclass
class World:
    """Drives `step` as the daemon would.

    Attributes:
        free_bytes: Memory that nobody holds when no worker is loaded.
        celsius: The temperature; None if there is no sensor.
        blind: True: memory can't be read.
        others: Further signals.
        failing: Variants that don't load.
        dying: Variants whose workers die while they load.
        failing_drafts: Variants that don't load as drafts.
        action_s: How long a hand-over takes.
        stuck: True: giving back KV is said to be done and changes nothing.
        leak_bytes: What the worker holds beyond what anybody expects.
        really: Bytes that workers hold just after loading, where it isn't what was predicted.
    """

    policy: Policy
    model: ModelSpec = LADDER
    free_bytes: float = 8192 * MIB
    celsius: float | None = None
    blind: bool = False
    others: dict[str, float] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    dying: set[str] = field(default_factory=set)
    failing_drafts: set[str] = field(default_factory=set)
    action_s: float = 1.0
    stuck: bool = False
    leak_bytes: int = 0
    really: dict[str, int] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    now: float = 100.0
    state: State = field(default_factory=State)
    decisions: list[Decision] = field(default_factory=list)
    settled: list[Decision] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    order: tuple[int, ...] = ()
    pending: list[tuple[float, Action]] = field(default_factory=list)
    loaded: OperatingPoint = PARKED

    def start(self) -> World:
        """Tell the model and let the first variant load."""
        self.post(ModelChanged(self.now, self.model))
        return self.run(3)

    def post(self, event: Event) -> None:
        """One event through `step`."""
        result = step(self.state, event, self.policy)
        self.state = result.state
        if result.decision is not None:
            self.decisions.append(result.decision)
        if not all(isinstance(action, ReleaseIdleKv) for action in result.actions):
            self.pending.clear()  # a plan supersedes the one before; relief goes on beside it
        self.settled += result.settled
        if result.schedule is not None:
            self.order = result.schedule.order
        self.actions += result.actions
        wait_s = 0.0
        for action in result.actions:
            wait_s += self.action_s if self._takes_time(action) else 0.0
            self.pending.append((self.now + wait_s, action))
        self.pending.sort(key=lambda one: one[0])

    def run(self, seconds: float, tick_s: float = 1.0) -> World:
        """Let time pass."""
        for _ in range(round(seconds / tick_s)):
            self.now += tick_s
            while self.pending and self.pending[0][0] <= self.now:
                self._end(self.pending.pop(0)[1])
            self.post(Tick(self.now, self.snapshot(), self._demand()))
        return self

    def _takes_time(self, action: Action) -> bool:
        if isinstance(action, SetSpeculation):
            return loads_draft(self.loaded, action.speculation)
        return isinstance(action, SwitchWorker | Park)

    def lose_draft(self, reason: str) -> str:
        """The loaded worker's draft fails: it goes on with n-grams; what is said of it."""
        draft = draft_of(self.loaded.speculation) or ""
        self.loaded = replace(self.loaded, speculation=SPECULATION_NGRAM)
        self.post(DraftFailed(self.now, draft, reason))
        return f"without its draft {draft}: {reason}"

    @property
    def available_bytes(self) -> float:
        """What MemAvailable would say."""
        return self.free_bytes - (self._held() or 0) - self.demand.idle_bytes

    @property
    def point(self) -> OperatingPoint:
        """What the core believes to be in force."""
        return self.state.point

    @property
    def moves(self) -> list[str]:
        """The decisions in short: ``down int8``."""
        return [f"{one.direction} {one.target.variant}" for one in self.decisions]

    def snapshot(self) -> Snapshot:
        """What the sensors say now."""
        readings = {}
        if not self.blind:
            readings["memory.available"] = Reading(
                "memory.available", self.available_bytes, self.now
            )
        if self.celsius is not None:
            readings["temperature.max"] = Reading("temperature.max", self.celsius, self.now)
        for name, value in self.others.items():
            readings[name] = Reading(name, value, self.now)
        return Snapshot(self.now, readings)

    def _demand(self) -> Demand:
        return replace(self.demand, worker_bytes=self._held())

    def _held(self) -> int | None:
        variant = self.model.variant(self.loaded.variant or "")
        if variant is None:
            return None
        draft = self.model.variant(draft_of(self.loaded.speculation) or "")
        own = self.really.get(variant.name, loaded_bytes(variant, {}))
        weights = own + self.leak_bytes + (draft.weights_bytes if draft is not None else 0)
        return weights + variant.kv_bytes_per_token * self.demand.kv_tokens

    def _die(self, action: SwitchWorker) -> None:
        """The worker is killed while it loads."""
        if action.mode == "break_before_make":
            self.loaded = PARKED
        kind, died, name = OutcomeKind.FAILED, "it died", action.point.variant
        self.post(
            ActionEnded(
                self.now,
                action.id,
                kind,
                self.loaded,
                max(1.0, self.action_s),
                died,
                name,
                lost=True,
            )
        )

    def _give_way(self, wanted_bytes: int) -> None:
        """The youngest conversations wait, and their KV is free."""
        given = min(wanted_bytes, self.demand.running_bytes)
        self.free_bytes += given
        self.demand = replace(
            self.demand,
            running=max(0, self.demand.running - 1),
            held=self.demand.held + 1,
            running_bytes=self.demand.running_bytes - given,
            yielding_bytes=max(0, self.demand.yielding_bytes - given),
        )

    def _measure(self) -> None:
        """What the worker that has just loaded really holds."""
        variant = self.model.variant(self.loaded.variant or "")
        if variant is None:
            return
        held = self.really.get(variant.name, loaded_bytes(variant, {}))
        draft = self.model.variant(draft_of(self.loaded.speculation) or "")
        if draft is not None:
            held += draft.weights_bytes
        beside = "" if draft is None else draft.name
        self.post(WorkerMeasured(self.now, variant.name, held, self.action_s, beside))

    def _end(self, action: Action) -> None:
        if isinstance(action, SwitchWorker) and action.point.variant in self.dying:
            self._die(action)
            return
        kind, reason, variant = OutcomeKind.DONE, "", None
        if isinstance(action, SwitchWorker) and action.point.variant in self.failing:
            kind, reason, variant = OutcomeKind.FAILED, "it does not load", action.point.variant
            if action.mode == "break_before_make":
                self.loaded = PARKED
        else:
            self.loaded = carried_out(self.loaded, action)
        if isinstance(action, ReleaseIdleKv) and not self.stuck:
            self.demand = replace(self.demand, idle_bytes=0)
        if isinstance(action, GiveWay) and not self.stuck:
            self._give_way(action.wanted_bytes)
        if isinstance(action, SwitchWorker) and not reason:
            self._measure()
        drafts = isinstance(action, SwitchWorker | SetSpeculation) and not reason
        if drafts and draft_of(self.loaded.speculation) in self.failing_drafts:
            reason = self.lose_draft("its graph is damaged")
        self.post(ActionEnded(self.now, action.id, kind, self.loaded, 1.0, reason, variant))
