"""Trials of policies: a candidate in shadow beside the policy in force, for a while."""

from __future__ import annotations

from typing import Any, Final

from trimtab.domain.events import Event
from trimtab.errors import RequestError
from trimtab.planner.candidate import Side, Trial, begin, observe
from trimtab.planner.state import State
from trimtab.policy.compiled import Policy

LONGEST_S: Final = 24 * 3600.0


class PolicyTrial:
    """At most one trial at a time; its report stays until the next one begins."""

    def __init__(self) -> None:
        self._trial: Trial | None = None
        self._until_s = 0.0
        self._running = False

    @property
    def running(self) -> bool:
        """True while a candidate is in shadow."""
        return self._running

    def begin(self, candidate: Policy, real: State, at_s: float, for_s: float) -> None:
        """Start a trial.

        Raises:
            RequestError: One is running, or it would last too long.
        """
        if self._running:
            raise RequestError(
                "a trial is running already",
                status=409,
                code="trial_running",
                hint="`trimtab policy trial --stop` ends it",
            )
        if not 1.0 <= for_s <= LONGEST_S:
            raise RequestError("a trial lasts from one second to a day", param="for")
        self._trial = begin(candidate, real, at_s)
        self._until_s = at_s + for_s
        self._running = True

    def end(self) -> None:
        """Stop; harmless without a trial."""
        self._running = False

    def observe(self, event: Event, real: State, policy: Policy) -> None:
        """Show the candidate what happened. Cheap without a trial."""
        if not self._running or self._trial is None:
            return
        if event.at_s >= self._until_s:
            self._running = False
            return
        self._trial = observe(self._trial, event, real, policy)

    def report(self) -> dict[str, Any] | None:
        """What came of the last trial so far; None if there was none."""
        seen = self._trial
        if seen is None:
            return None
        return {
            "policy": seen.policy.name,
            "revision": seen.policy.revision,
            "running": self._running,
            "compared_s": round(seen.compared_s, 3),
            "apart_s": round(seen.apart_s, 3),
            "in_force": _side(seen.real, seen.compared_s),
            "candidate": _side(seen.candidate, seen.compared_s),
            "spans": [
                {
                    "from_s": round(span.from_s, 3),
                    "to_s": round(span.to_s, 3),
                    "in_force": span.real.describe(),
                    "candidate": span.candidate.describe(),
                    "why": span.why,
                }
                for span in seen.spans
            ],
        }


def _side(side: Side, compared_s: float) -> dict[str, Any]:
    served_s = compared_s - side.parked_s
    return {
        "quality_ratio": round(side.quality_s / served_s, 4) if served_s > 0 else None,
        "decode_tps": round(side.speed_s / served_s, 2) if served_s > 0 else None,
        "parked_s": round(side.parked_s, 3),
        "below_headroom_s": round(side.below_s, 3),
        "least_available_bytes": None if side.least_bytes is None else int(side.least_bytes),
        "switches": side.switches,
        "decisions": side.decisions,
    }
