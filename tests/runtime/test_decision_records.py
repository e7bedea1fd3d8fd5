"""Decisions on their way to the journal, to the metrics and to those who follow them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner_world import LADDER
from stand_ins import FakeClock

from policies_for_tests import policy
from trimtab.domain.decisions import Decision, Direction, Outcome, Trigger
from trimtab.domain.events import ActionEnded, ModelChanged, OutcomeKind, Tick
from trimtab.domain.knobs import PARKED, OperatingPoint
from trimtab.domain.readings import Reading, Snapshot
from trimtab.planner import State
from trimtab.runtime.controller import Controller
from trimtab.runtime.overview import DecisionRecords
from trimtab.telemetry.journal import Journal


class LinesOfLog:
    """A logger that keeps its events."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> object:
        return lambda event, **fields: self.lines.append((level, event, fields))

    @property
    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]


def a_decision(number: int) -> Decision:
    return Decision(
        id=number,
        at_s=0.0,
        direction=Direction.DOWN,
        trigger=Trigger("memory.available", 1.0, 2.0),
        source=OperatingPoint("int8", 2048),
        target=OperatingPoint("int4", 2048),
        predicted=None,
        runner_up=None,
        excluded=(),
        policy="balanced",
        revision="abc",
    )


async def test_a_decision_is_counted_written_and_told_to_followers(tmp_path: Path) -> None:
    counted: list[str] = []
    journal = Journal(tmp_path)
    records = DecisionRecords(journal, LinesOfLog(), counted.append)
    followed = records.follow()
    first = asyncio.ensure_future(anext(followed))
    await asyncio.sleep(0)
    records.decided(a_decision(1), 10.0)
    told = await first

    assert counted == ["down"]
    assert told["id"] == 1
    assert journal.recent(1) == [told]
    await followed.aclose()  # type: ignore[attr-defined]
    journal.close()


def test_a_full_disk_is_told_once_and_its_end_too(tmp_path: Path) -> None:
    log, journal = LinesOfLog(), Journal(tmp_path)
    records = DecisionRecords(journal, log, lambda direction: None)
    (tmp_path / "decisions.jsonl").symlink_to("/dev/full")
    records.decided(a_decision(1), 0.0)
    records.decided(a_decision(2), 0.0)
    journal.close()
    (tmp_path / "decisions.jsonl").unlink()
    records.decided(a_decision(3), 0.0)
    records.concluded(a_decision(3), 0.0)
    journal.close()

    assert log.events.count("journal_not_written") == 1
    assert log.events.count("journal_written_again") == 1
    assert log.events.index("journal_not_written") < log.events.index("journal_written_again")


def test_an_outcome_that_failed_is_a_warning(tmp_path: Path) -> None:
    log, journal = LinesOfLog(), Journal(tmp_path)
    records = DecisionRecords(journal, log, lambda direction: None)
    decision = a_decision(1)
    records.decided(decision, 0.0)
    records.concluded(replace(decision, outcome=Outcome("failed", 1.0, reason="no")), 1.0)
    journal.close()

    kept = journal.get(1)
    assert kept is not None
    assert kept["outcome"]["reason"] == "no"
    assert log.events == ["decision", "outcome"]
    level, _, fields = log.lines[-1]
    assert (level, fields["reason"]) == ("warning", "no")


def test_a_load_that_failed_is_in_the_journal_and_the_log_though_the_next_one_began_at_once(
    tmp_path: Path,
) -> None:
    log, journal = LinesOfLog(), Journal(tmp_path)
    records = DecisionRecords(journal, log, lambda direction: None)
    controller = Controller(
        State(), policy(), FakeClock(), on_decision=records.decided, on_outcome=records.concluded
    )

    def tick(at_s: float) -> None:
        reading = Reading("memory.available", 2**32, at_s)
        controller.post(Tick(at_s, Snapshot(at_s, {reading.signal: reading})))

    controller.post(ModelChanged(0.0, LADDER))
    tick(1.0)
    failed = OutcomeKind.FAILED
    controller.post(ActionEnded(2.0, 1, failed, PARKED, 1.0, "it does not load", "fp32"))
    tick(2.1)
    journal.close()

    first, second = journal.recent(10)
    assert first["outcome"]["kind"] == "failed"
    assert first["outcome"]["reason"] == "it does not load"
    assert (second["target"]["variant"], second["outcome"]) == ("int8", None)
    assert [event for level, event, _ in log.lines if level == "warning"] == ["outcome"]
