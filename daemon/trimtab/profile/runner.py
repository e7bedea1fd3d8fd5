"""Carries out a profile: session by session, kept after every step, so that it can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from trimtab.domain.clock import Clock
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import Kind, Measurement, Profile
from trimtab.errors import EngineError, LoadError, WorkerError
from trimtab.profile.bandwidth import buffer_bytes, read_bandwidth
from trimtab.profile.measure import Bench, hand_over, load_cold
from trimtab.profile.quiet import Conditions, Quiet
from trimtab.profile.schedule import FREE, Extent, SessionPlan, Step, cost_s, missing
from trimtab.profile.session import Session
from trimtab.profile.store import save_profile, with_measurement
from trimtab.workers.worker import Launch

MEMORY_MARGIN: Final = 1.3
"""Over what a worker is expected to hold, memory must be free by this factor to start it."""

NO_TIME: Final = "there was no time left for it"

TELLING_S: Final = 2.0
"""Shorter sessions say nothing about how fast the machine is today."""

_SPEED_WEIGHT: Final = 0.3


class Reporter(Protocol):
    """Is told how far it is."""

    def doing(self, title: str, done_ratio: float, left_s: float) -> None:
        """A step begins; so much of the whole is done, and it will take about so long."""

    def say(self, text: str) -> None:
        """Something that a person should know."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run needs of its surroundings.

    Attributes:
        state: The state directory.
        proc_root: Where processes are seen.
        decoder: As in the configuration.
        deadline_s: Monotonic time after which no further step begins; None for no end.
        disturbed: Measure again what was measured beside other work.
    """

    state: Path
    proc_root: Path
    decoder: str = "auto"
    deadline_s: float | None = None
    disturbed: bool = False


class Runner:
    """Measures what is missing in a profile.

    Args:
        model: The model.
        extent: How much is measured.
        setting: The surroundings.
        text: For prompts.
        quiet: Waits for better conditions.
        available_bytes: Memory that is available now; None if it isn't known.
        clock: Time.
        reporter: Is told how far it is.
    """

    def __init__(
        self,
        model: ModelSpec,
        extent: Extent,
        setting: Setting,
        text: str,
        quiet: Quiet,
        available_bytes: Callable[[], int | None],
        clock: Clock,
        reporter: Reporter,
    ) -> None:
        self._model = model
        self._extent = extent
        self._setting = setting
        self._text = text
        self._quiet = quiet
        self._available = available_bytes
        self._clock = clock
        self._reporter = reporter
        self._profile: Profile | None = None
        self._slowness = 1.0
        self._total_s = 1.0
        self._left_s = 0.0

    async def run(self, profile: Profile, sessions: Sequence[SessionPlan]) -> Profile:
        """Measure what is missing; every result is on disk before the next step begins.

        Returns:
            The profile; `finished_s` is set if nothing is missing any more.

        Raises:
            StateError: The state directory can't be written.
        """
        self._profile = replace(profile, left_out=())
        left = missing(sessions, profile, disturbed=self._setting.disturbed)
        self._total_s = self._left_s = max(1.0, cost_s(left))
        for session in left:
            if self._late(session.cost_s - sum(step.cost_s for step in session.steps)):
                self._leave_out(session.steps, NO_TIME)
                continue
            conditions = await self._quiet.wait()
            before_s, left_s = self._clock.monotonic_s(), self._left_s
            try:
                await self._session(session, conditions)
            except (LoadError, EngineError, WorkerError) as error:
                self._leave_out(session.steps, error.message)
            self._left_s = max(0.0, left_s - session.cost_s)
            if session.cost_s >= TELLING_S:
                self._learn((self._clock.monotonic_s() - before_s) / session.cost_s)
        done = not self._profile.left_out
        if done:
            self._profile = replace(self._profile, finished_s=self._clock.wall_s())
        save_profile(self._setting.state, self._profile)
        return self._profile

    # ------------------------------------------------------------ sessions

    async def _session(self, plan: SessionPlan, conditions: Conditions) -> None:
        if plan.variant is None:
            await self._bandwidth(plan.steps, conditions.marks)
            return
        self._check_memory(plan)
        launch = self._launch(plan.variant, plan.threads)
        cold = [step for step in plan.steps if step.kind is Kind.LOAD_COLD]
        for step in cold:
            self._tell(step)
            self._keep([await load_cold(step, plan.variant, launch, self._clock)])
        warm = next((step for step in plan.steps if step.kind is Kind.LOAD_WARM), None)
        if warm is not None:
            self._tell(warm)
        again = [await self._load_again(launch) for _ in range((warm.repeats if warm else 1) - 1)]
        async with Session(launch, self._clock, self._setting.proc_root) as session:
            bench = Bench(
                self._model,
                session,
                self._text,
                self._extent.decode_tokens,
                self._setting.state,
                self._clock,
            )
            bench.marks = conditions.marks
            try:
                for step in plan.steps:
                    if step.kind is not Kind.LOAD_COLD:
                        await self._step(step, bench, again)
            finally:
                bench.close()
        await self._temperature(plan)

    async def _step(self, step: Step, bench: Bench, again: Sequence[tuple[float, float]]) -> None:
        """One step; a fault of the engine leaves out this step only, the loss of its worker all."""
        if self._late(step.cost_s):
            self._leave_out([step], NO_TIME)
            return
        self._tell(step)
        try:
            if step.kind is Kind.HANDOVER:
                target = self._model.variant(step.detail)
                assert target is not None
                launch = self._launch(target, step.threads)
                found = [await hand_over(step, self._model, bench, launch, self._clock)]
            else:
                found = await bench.make(step)
        except EngineError as error:
            self._leave_out([step], error.message)
            return
        if step.kind is Kind.LOAD_WARM:
            found = [_more_samples(found[0], again)]
        self._keep(found)

    async def _load_again(self, launch: Launch) -> tuple[float, float]:
        async with Session(launch, self._clock, self._setting.proc_root) as session:
            return session.load_s, session.load_wait_ratio

    async def _bandwidth(self, steps: Sequence[Step], marks: tuple[str, ...]) -> None:
        for step in steps:
            self._tell(step)
            size = buffer_bytes(self._available() or 0)
            reads = await asyncio.to_thread(read_bandwidth, step.threads, step.repeats, size)
            self._keep(
                [
                    Measurement(
                        Kind.BANDWIDTH,
                        tuple(read.bytes_s for read in reads),
                        threads=step.threads,
                        wait_ratios=tuple(round(read.wait_ratio, 4) for read in reads),
                        marks=marks,
                    )
                ]
            )

    async def _temperature(self, plan: SessionPlan) -> None:
        celsius = self._quiet.celsius()
        if celsius is not None and plan.variant is not None:
            self._keep([Measurement(Kind.TEMPERATURE, (celsius,), plan.variant.name, plan.threads)])

    # ------------------------------------------------------------ bookkeeping

    def _launch(self, variant: VariantSpec, threads: int) -> Launch:
        longest = max(self._extent.tokens) + FREE + self._extent.decode_tokens
        context = min(variant.context_length, max(longest, 1024))
        return Launch(variant, threads, context, self._setting.decoder)

    def _check_memory(self, plan: SessionPlan) -> None:
        """Refuse to push the machine into its own limits.

        Raises:
            EngineError: There isn't memory enough for this worker.
        """
        available = self._available()
        assert plan.variant is not None
        needed = plan.variant.weights_bytes * MEMORY_MARGIN
        needed += max(self._extent.tokens) * plan.variant.kv_bytes_per_token
        for step in plan.steps:
            if step.kind is Kind.HANDOVER:
                target = self._model.variant(step.detail)
                needed += target.weights_bytes * MEMORY_MARGIN if target else 0
        if available is not None and needed > available:
            raise EngineError(
                f"it needs about {needed / 1e6:.0f} MB, and {available / 1e6:.0f} MB are available"
            )

    def _keep(self, found: Sequence[Measurement]) -> None:
        assert self._profile is not None
        for measured in found:
            self._profile = with_measurement(self._profile, measured)
        save_profile(self._setting.state, self._profile)

    def _leave_out(self, steps: Sequence[Step], reason: str) -> None:
        assert self._profile is not None
        known = {one.key for one in self._profile.measurements}
        new = [f"{describe(step)}: {reason}" for step in steps if step.key not in known]
        have = self._profile.left_out
        self._profile = replace(
            self._profile, left_out=(*have, *(text for text in new if text not in have))
        )

    def _tell(self, step: Step) -> None:
        done = 1 - self._left_s / self._total_s
        self._reporter.doing(describe(step), done, self._left_s * self._slowness)
        self._left_s = max(0.0, self._left_s - step.cost_s)

    def _learn(self, ratio: float) -> None:
        self._slowness += _SPEED_WEIGHT * (min(20.0, max(0.05, ratio)) - self._slowness)

    def _late(self, cost_s: float) -> bool:
        """Whether something of this cost would end after the deadline."""
        end_s = self._setting.deadline_s
        ends_s = self._clock.monotonic_s() + cost_s * self._slowness
        return end_s is not None and ends_s >= end_s


def describe(step: Step) -> str:
    """A step for people."""
    what = step.kind.value.replace("_", " ")
    parts = [part for part in (step.variant, what) if part]
    if step.tokens:
        parts.append(f"at {step.tokens} tokens")
    if step.detail:
        parts.append(f"({step.detail})")
    if step.threads > 1:
        parts.append(f"with {step.threads} threads")
    return " ".join(parts)


def _more_samples(measured: Measurement, again: Sequence[tuple[float, float]]) -> Measurement:
    return replace(
        measured,
        values=(*measured.values, *(seconds for seconds, _ in again)),
        wait_ratios=(*measured.wait_ratios, *(round(wait, 4) for _, wait in again)),
    )
