"""`trimtab simulate` and `trimtab replay`."""

from __future__ import annotations

import json
from pathlib import Path

from cli_gateway import run_command

from policies_for_tests import policy
from trimtab.domain.events import ModelChanged, Tick
from trimtab.domain.readings import Reading, Snapshot
from trimtab.planner import State, step
from trimtab.simulate.scenario_set import ladder
from trimtab.telemetry.recording import RecordingWriter, decision_line, event_line, start_line


def record(path: Path, *, honest: bool = True) -> None:
    """A recording of a core that loads a variant; a dishonest one leaves the decision out."""
    state, in_force = State(), policy()
    with RecordingWriter(path) as writer:
        writer.write(start_line(state, in_force, "0", 0.0))
        reading = Reading("memory.available", 4e9, 1.0)
        events = (
            ModelChanged(0.0, ladder("smollm2").model()),
            Tick(1.0, Snapshot(1.0, {reading.signal: reading})),
        )
        for event in events:
            result = step(state, event, in_force)
            state = result.state
            writer.write(event_line(event))
            if result.decision is not None and honest:
                writer.write(decision_line(result.decision))


def test_the_scenarios_are_listed() -> None:
    told = run_command("simulate", "--json")

    names = json.loads(told.out)
    assert "camera_day" in names["days"]
    assert names["traces"] == ["chat", "code", "long"]


def test_a_trace_is_run_and_told_with_its_decisions() -> None:
    told = run_command("simulate", "chat", "--load", "0.6", "--alone")

    assert told.code == 0
    assert "1000 requests" in told.out
    assert "start q8" in told.out


def test_a_device_that_gets_warm_is_told_with_what_became_of_it() -> None:
    command = ("simulate", "chat", "--load", "1.6", "--heat", "65", "--alone")
    told, plain = run_command(*command), run_command(*command, "--json")

    figures = json.loads(plain.out)
    assert "°C, over the limit of 80 °C" in told.out or "would be reached in" in told.out
    assert f"hottest {figures['hottest_celsius']:.0f} °C" in told.out
    assert 79 < figures["hottest_celsius"] < 81
    assert any("pace" in move["point"] for move in figures["moves"])


def test_an_unknown_scenario_names_the_ones_there_are() -> None:
    told = run_command("simulate", "sunday")

    assert told.code == 2
    assert "camera_day" in told.err


def test_a_window_that_is_not_in_the_set_names_those_that_are() -> None:
    told = run_command("simulate", "code", "--window", "99")

    assert told.code == 2
    assert "code-0-rho0.3" in told.err


def test_a_recording_replays_with_identical_decisions(tmp_path: Path) -> None:
    record(tmp_path / "day.gz")

    told = run_command("replay", str(tmp_path / "day.gz"))

    assert told.code == 0
    assert "2 events, 1 decisions: all as recorded" in told.out


def test_a_decision_that_differs_is_told_and_fails(tmp_path: Path) -> None:
    record(tmp_path / "day.gz", honest=False)

    told = run_command("replay", str(tmp_path / "day.gz"))

    assert told.code == 1
    assert "recorded nothing, now start" in told.out
