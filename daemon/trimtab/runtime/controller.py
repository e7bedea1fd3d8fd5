"""Between shell and core: events through `step`, actions to the dispatcher, records out."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.domain.clock import Clock
from trimtab.domain.decisions import Decision
from trimtab.domain.events import Event, Tick
from trimtab.domain.scheduling import Schedule
from trimtab.planner import State, step
from trimtab.policy.compiled import Policy
from trimtab.runtime.dispatch import Dispatcher
from trimtab.runtime.policy_trial import PolicyTrial
from trimtab.runtime.recorder import Recorder


class Controller:
    """Owns the core's state.

    Args:
        state: To start from.
        policy: In force at the start.
        clock: Wall time for records.
        on_decision: Told each decision as it is made, with wall time.
        on_outcome: Told an earlier decision again, with its outcome, and wall time.
    """

    def __init__(
        self,
        state: State,
        policy: Policy,
        clock: Clock,
        on_decision: Callable[[Decision, float], None],
        on_outcome: Callable[[Decision, float], None],
    ) -> None:
        self.state = state
        self.policy = policy
        self._clock = clock
        self._on_decision = on_decision
        self._on_outcome = on_outcome
        self._dispatcher: Dispatcher | None = None
        self._follow: Callable[[Schedule], None] | None = None
        self.on_event: Callable[[], None] | None = None
        self.trial = PolicyTrial()
        self.recorder = Recorder()

    def connect(self, dispatcher: Dispatcher, follow: Callable[[Schedule], None]) -> None:
        """Where actions and schedules go."""
        self._dispatcher = dispatcher
        self._follow = follow

    def post(self, event: Event) -> None:
        """Take in an event, now; called in the event loop only.

        ``on_event`` is told of all but ticks: something happens.
        """
        if self.on_event is not None and not isinstance(event, Tick):
            self.on_event()
        result = step(self.state, event, self.policy)
        self.state = result.state
        if self.recorder.active:
            self.recorder.took(event, self.policy, result.decision)
        self.trial.observe(event, self.state, self.policy)
        wall_s = self._clock.wall_s()
        for settled in result.settled:
            self._on_outcome(settled, wall_s)
        if result.decision is not None:
            self._on_decision(result.decision, wall_s)
        if result.actions and self._dispatcher is not None:
            self._dispatcher.execute(result.actions)
        if result.schedule is not None and self._follow is not None:
            self._follow(result.schedule)  # last: what it starts and refuses posts events itself
