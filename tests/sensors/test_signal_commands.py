"""`trimtab signals` and `trimtab doctor` on trees of boards."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sensor_trees import Tree, grow_board

from trimtab.cli.root import root
from trimtab.cli.signal_source import SignalRow
from trimtab.cli.signal_table import History, note, select, value_text
from trimtab.cli.sparkline import sparkline
from trimtab.domain.events import Tick
from trimtab.domain.readings import Quality
from trimtab.telemetry.recording import read_recording


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, so that no configuration and no daemon of this machine is seen."""
    folder = tmp_path / "home"
    for name in ("CONFIG_HOME", "STATE_HOME", "DATA_HOME", "CACHE_HOME", "RUNTIME_DIR"):
        monkeypatch.setenv(f"XDG_{name}", str(folder / name.lower()))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("TRIMTAB_CONFIG", raising=False)
    return folder


def run(tree: Tree, *words: str) -> Result:
    return CliRunner().invoke(
        root, ["--proc-root", str(tree.proc), "--sys-root", str(tree.sys), *words]
    )


def told(tree: Tree, *words: str) -> dict[str, Any]:
    result = run(tree, "signals", "--json", *words)
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.output)["signals"]}


def test_signals_of_any_tree_as_json(tmp_path: Path) -> None:
    rows = told(grow_board("raspberry-pi-5", tmp_path))

    assert rows["temperature.max"]["value"] == 61.45
    assert rows["temperature.max"]["unit"] == "celsius"
    assert rows["memory.available"]["value"] == 4000000 * 1024
    assert rows["power.battery"] | {"age_s": 0} == {
        "name": "power.battery",
        "value": None,
        "unit": "ratio",
        "quality": "absent",
        "reason": "this machine doesn't have it",
        "age_s": 0,
        "watched_by": [],
    }


def test_signals_say_which_limits_and_rules_look_at_them(tree: Tree) -> None:
    rows = told(tree)

    assert "memory limit" in rows["memory.available"]["watched_by"]
    assert rows["memory.psi.some_avg10"]["watched_by"] != []


def test_an_area_or_a_pattern_selects_signals(tree: Tree) -> None:
    assert {name.split(".")[0] for name in told(tree, "temperature")} == {"temperature"}
    assert list(told(tree, "memory.psi.some_avg*")) == [
        "memory.psi.some_avg10", "memory.psi.some_avg300", "memory.psi.some_avg60",
    ]  # fmt: skip


def test_in_a_pipe_signals_are_printed_once_as_a_table(tmp_path: Path) -> None:
    result = run(grow_board("intel-nuc", tmp_path), "signals")

    lines = result.output.splitlines()
    assert lines[0].split()[:3] == ["signal", "value", "trend"]
    assert any(line.startswith("temperature.max") and "55 °C" in line for line in lines)
    assert "board profile x86-gateway" in lines[-1]


def test_an_unknown_board_is_one_line_with_the_way_out(tree: Tree) -> None:
    result = run(tree, "--set", "sensors.board=rk9999", "signals", "--json")

    assert result.exit_code != 0
    assert "no board profile 'rk9999'" in str(result.exception)


def test_the_reference_of_all_signals_is_markdown(tree: Tree) -> None:
    output = run(tree, "signals", "--markdown").output

    assert "| `memory.available` | bytes |" in output
    assert "| `custom.*` | declared |" in output


def test_the_documentation_holds_the_reference_as_it_is_made_now() -> None:
    from trimtab.signals.reference import BEGIN, signal_reference

    document = Path(__file__).parents[2] / "docs" / "signals.md"
    _, begin, rest = document.read_text().partition(BEGIN)

    assert begin + rest == signal_reference()


def test_doctor_ends_with_1_where_trimtab_cannot_work(tmp_path: Path, home: Path) -> None:
    bad = run(Tree(tmp_path / "empty"), "doctor", "--json")
    plain = run(Tree(tmp_path / "empty"), "doctor")

    assert (bad.exit_code, plain.exit_code) == (1, 1)
    assert json.loads(bad.output)["fit"] is False
    assert "✗ memory" in plain.output
    assert "can't do its job here yet" in plain.output


def test_doctor_on_a_sound_machine_with_a_model(tree: Tree, home: Path) -> None:
    model = home / "data_home" / "trimtab" / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "model.yaml").write_text("version: 1\n")

    result = run(tree, "doctor", "--json")

    found = json.loads(result.output)
    assert (result.exit_code, found["fit"]) == (0, True)
    assert {"check": "models", "level": "good", "says": "tiny", "todo": ""} in found["findings"]


def test_without_a_daemon_the_signals_of_this_machine_are_recorded(
    tree: Tree, tmp_path: Path
) -> None:
    file = tmp_path / "signals.gz"

    result = run(tree, "--set", "tick=50ms", "record", str(file), "--for", "300ms")
    recording = read_recording(file)

    assert result.exit_code == 0, result.output
    assert "trimtab isn't running" in result.stderr
    assert "events and 0 decisions" in result.stdout
    assert len(recording.entries) >= 2
    tick = recording.entries[-1].event
    assert isinstance(tick, Tick)
    assert tick.snapshot.value("memory.available") == 4000000 * 1024


def test_a_recording_is_not_written_over_and_a_time_must_be_one(tree: Tree, tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("mine")

    taken = run(tree, "record", str(file), "--for", "100ms")
    wrong = run(tree, "record", str(tmp_path / "new"), "--for", "soon")

    assert "File exists" in str(taken.exception)
    assert wrong.exit_code == 2
    assert not (tmp_path / "new").exists()


def test_on_a_terminal_signals_are_live_until_ctrl_c(tree: Tree) -> None:
    ours, theirs = pty.openpty()
    words = ["--proc-root", str(tree.proc), "--sys-root", str(tree.sys), "signals"]
    command = [sys.executable, "-m", "trimtab", *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = b""
    while screen.count(b"memory.available ") < 2:  # two looks
        screen += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    try:
        while more := os.read(ours, 65536):
            screen += more
    except OSError:
        pass  # the terminal is closed
    os.close(ours)

    assert process.wait(10) == 0
    assert b"Traceback" not in screen
    assert b"memory limit" in screen


def row(name: str, value: float | None = 1.0, **more: Any) -> SignalRow:
    return SignalRow(
        name, value, more.get("unit", "count"), more.get("quality", Quality.GOOD),
        more.get("reason", ""), 0.0, more.get("watched_by", ()),
    )  # fmt: skip


def test_what_rules_look_at_comes_first_then_what_is_broken_then_the_well_known() -> None:
    rows = [
        row("cpu.psi.some_avg300"),
        row("zeta"),
        row("memory.available"),
        row("alpha", None, quality=Quality.FAILED),
        row("omega", watched_by=("a rule",)),
        row("beta", None, quality=Quality.ABSENT),
    ]

    names = [shown.name for shown in select(rows, (), everything=False)]

    assert names == ["omega", "alpha", "memory.available", "zeta", "cpu.psi.some_avg300"]


def test_an_absent_signal_is_shown_if_a_rule_looks_at_it_or_it_was_named() -> None:
    absent = row("temperature.max", None, quality=Quality.ABSENT, watched_by=("heat",))
    named = row("gpu.busy", None, quality=Quality.ABSENT)

    assert select([absent], (), everything=False) == [absent]
    assert select([named], (), everything=False) == []
    assert select([named], ("gpu",), everything=False) == [named]


def test_a_value_that_cannot_be_trusted_is_a_gap_in_the_trend() -> None:
    history = History()
    for value in (1.0, None, 2.0):
        history.add([row("a", value, quality=Quality.GOOD if value else Quality.FAILED)])

    assert history.of("a") == [1.0, None, 2.0]
    assert sparkline(history.of("a"), 5) == "  ▁ █"


def test_noise_on_a_large_value_is_no_cliff() -> None:
    assert sparkline([1000.0, 999.0, 1000.0], 3) == "███"
    assert sparkline([0.0, 0.5, 1.0], 3, low=0.0, high=1.0, plain=True) == "_+@"
    assert sparkline([0.0, 0.0], 2) == "▁▁"
    assert sparkline([], 4) == "    "


def test_the_note_says_what_is_wrong_before_who_looks() -> None:
    broken = row("a", None, quality=Quality.FAILED, reason="EIO", watched_by=("heat",))

    assert note(broken).plain == "EIO; heat"
    assert note(row("a", reason="min", watched_by=("heat",))).plain == "heat"
    assert note(row("a", reason="min")).plain == "min"
    assert value_text(broken) == "failed"
    assert value_text(row("a", 0.25, unit="ratio")) == "25 %"
