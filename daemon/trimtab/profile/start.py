"""Everything that a profile needs, put together: what is kept, what is true of it, what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from trimtab.catalog.proof import evaluation_text
from trimtab.config.schema import Config
from trimtab.domain.clock import Clock
from trimtab.domain.models import ModelSpec
from trimtab.domain.profile import Profile
from trimtab.domain.readings import Snapshot
from trimtab.errors import StateError
from trimtab.profile.here import signature, this_device, versions
from trimtab.profile.quiet import Quiet
from trimtab.profile.runner import Reporter, Runner, Setting
from trimtab.profile.schedule import FULL, QUICK, Extent, SessionPlan, missing, plan
from trimtab.profile.store import load_profile, usable
from trimtab.sensors.config import SensorConfig
from trimtab.sensors.suite import SensorSuite

QUICK_DEADLINE_S: Final = 45.0
PATIENCE_S: Final[dict[str, float]] = {"quick": 4.0, "full": 120.0}


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known before a run.

    Attributes:
        profile: What can be built on; a new one if there is nothing.
        reasons: Why something that was kept isn't true any more.
        sessions: Everything that this extent measures.
        left: What of it is missing.
    """

    profile: Profile
    reasons: tuple[str, ...]
    sessions: list[SessionPlan]
    left: list[SessionPlan]


def look(
    config: Config,
    model: ModelSpec,
    extent: Extent,
    clock: Clock,
    *,
    board: str,
    usual_threads: int,
    fresh: bool = False,
    disturbed: bool = False,
) -> Kept:
    """Read what is kept, and see what is left to measure.

    ``fresh`` takes nothing for known, ``disturbed`` only what was measured undisturbed.

    A damaged file is no reason to stop: it is measured again, and the reason is said.
    """
    device = this_device(config.sensors.proc_root, board)
    software = versions()
    kept: Profile | None = None
    reasons: tuple[str, ...] = ()
    if not fresh:
        try:
            found = load_profile(config.state, model.model_id)
        except StateError as error:
            found, reasons = None, (error.message,)
        if found is not None:
            kept, reasons = usable(found, model, device, software)
    signatures = {variant.name: signature(variant) for variant in model.variants}
    profile = (
        replace(kept, variants=signatures, mode=extent.mode)
        if kept is not None
        else Profile(device, software, model.model_id, signatures, extent.mode, clock.wall_s())
    )
    sessions = plan(model, extent, device.cores, usual_threads)
    return Kept(profile, reasons, sessions, missing(sessions, profile, disturbed=disturbed))


class Surroundings:
    """The sensors and the conditions that a run watches.

    Args:
        config: The configuration.
        clock: Time.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        sensors = config.sensors
        self.suite = SensorSuite(
            SensorConfig(sensors.proc_root, sensors.sys_root, sensors.board, config.state)
        )

    @property
    def board(self) -> str:
        """The board profile that was recognised."""
        return self.suite.board.name

    def available_bytes(self) -> int | None:
        """Memory that is available, as the daemon sees it."""
        value = self._snapshot().value("memory.available")
        return None if value is None else int(value)

    def quiet(self, patience_s: float, say: Callable[[str], None]) -> Quiet:
        """The gate before each session."""
        return Quiet(
            self._clock,
            self._config.sensors.proc_root,
            self._snapshot,
            self.suite.board.enter_celsius,
            patience_s,
            say,
        )

    def close(self) -> None:
        """End the sensors' thread."""
        self.suite.close()

    def _snapshot(self) -> Snapshot:
        return self.suite.snapshot(self._clock.monotonic_s(), self._clock.wall_s())


async def measure(
    config: Config,
    model: ModelSpec,
    kept: Kept,
    extent: Extent,
    surroundings: Surroundings,
    clock: Clock,
    reporter: Reporter,
    *,
    disturbed: bool = False,
) -> Profile:
    """Measure what is left; with ``disturbed``, what was measured beside other work again.

    Raises:
        StateError: The state directory can't be written.
    """
    deadline_s = clock.monotonic_s() + QUICK_DEADLINE_S if extent is QUICK else None
    runner = Runner(
        model,
        extent,
        Setting(
            config.state, config.sensors.proc_root, config.engine.decoder, deadline_s, disturbed
        ),
        evaluation_text().read_text(encoding="utf-8"),
        surroundings.quiet(PATIENCE_S[extent.mode], reporter.say),
        surroundings.available_bytes,
        clock,
        reporter,
    )
    return await runner.run(kept.profile, kept.sessions)


def extent_of(quick: bool) -> Extent:
    """The extent by its flag."""
    return QUICK if quick else FULL


def be_modest(nice: int) -> None:
    """Lower our priority and that of all workers to come; they inherit it."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError:
        pass  # a priority that is low already can't always be set
