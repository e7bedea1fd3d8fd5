"""What `trimtab doctor` finds, on machines that lack things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sensor_trees import GIB, Ticker, Tree, grow_board

from trimtab.domain.readings import Quality, Reading, Snapshot
from trimtab.sensors import SensorConfig
from trimtab.sensors.board import Identity, find_board, identify
from trimtab.sensors.checkup import CHECKS, Finding, Level, Machine, examine
from trimtab.sensors.checkup.disk_checks import file_system
from trimtab.sensors.source import Roots

Start = Callable[[SensorConfig], Ticker]


@pytest.fixture
def look(start: Start) -> Callable[..., dict[str, Finding]]:
    """Examines a tree."""

    def examine_tree(tree: Tree, **more: object) -> dict[str, Finding]:
        ticker = start(tree.config(state_dir=more.pop("state_dir", tree.sys)))
        ticker.readings()
        machine = Machine(
            ticker.tick(),
            ticker.suite.board,
            identify(ticker.suite.config.roots),
            ticker.suite.config.roots,
            ticker.suite.config.state_dir or tree.sys,
            hung=ticker.suite.hung,
            **more,  # type: ignore[arg-type]
        )
        return {finding.check: finding for finding in examine(machine)}

    return examine_tree


def test_every_check_says_something_about_any_machine(
    look: Callable[..., dict[str, Finding]], tmp_path: Path
) -> None:
    findings = look(Tree(tmp_path / "empty"))

    assert list(findings) == list(CHECKS)
    assert all(finding.says for finding in findings.values())
    assert not any("check itself failed" in finding.says for finding in findings.values())


def test_a_machine_whose_memory_cannot_be_read_is_unfit(
    look: Callable[..., dict[str, Finding]], tmp_path: Path
) -> None:
    finding = look(Tree(tmp_path / "empty"))["memory"]

    assert finding.level is Level.BAD
    assert "/proc" in finding.todo


def test_a_kernel_without_psi_is_told_which_switch_to_set(
    look: Callable[..., dict[str, Finding]], tree: Tree
) -> None:
    (tree.proc / "pressure/memory").unlink()

    finding = look(tree)["pressure"]

    assert finding.level is Level.WARNING
    assert "psi=1" in finding.todo


def test_a_limit_is_told_with_the_group_that_has_it(
    look: Callable[..., dict[str, Finding]], tree: Tree
) -> None:
    tree.cgroup2("/app")
    tree.level2("app", limit=2 * GIB, current=GIB, inactive=0)

    assert look(tree)["limits"].says.startswith("/app: memory.max limits us to")


def test_a_hot_pi_on_a_weak_supply_is_told_what_to_do(
    look: Callable[..., dict[str, Finding]], tmp_path: Path
) -> None:
    findings = look(grow_board("raspberry-pi-4-hot", tmp_path))

    assert findings["board"].says == "Raspberry Pi 4 Model B Rev 1.4: profile raspberry-pi-4"
    assert findings["heat"].level is Level.WARNING
    assert "power supply" in findings["throttling"].todo


def test_swap_that_is_worked_from_is_a_warning(
    look: Callable[..., dict[str, Finding]], tmp_path: Path
) -> None:
    finding = look(grow_board("zram-gateway", tmp_path))["swap"]

    assert "of zram" in finding.says


def test_a_state_directory_in_memory_or_on_a_network_is_found_out(tmp_path: Path) -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(Path("/dev/shm")) == "tmpfs"
    assert file_system(tmp_path / "not" / "there" / "yet") == file_system(tmp_path)


def test_a_state_directory_on_tmpfs_is_a_warning(
    look: Callable[..., dict[str, Finding]], tree: Tree
) -> None:
    finding = look(tree, state_dir=Path("/dev/shm"))["disk"]

    assert finding.level is Level.WARNING
    assert "stays in memory" in finding.says


def test_without_a_model_the_way_to_one_is_told(
    look: Callable[..., dict[str, Finding]], tree: Tree, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    missing = look(tree, model_dirs=(models,))["models"]
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "model.yaml").write_text("version: 1\n")

    found = look(tree, model_dirs=(models,))["models"]

    assert missing.level is Level.BAD
    assert "trimtab models build" in missing.todo
    assert (found.level, found.says) == (Level.GOOD, "tiny")


def test_this_machine_gives_back_punched_memory(
    look: Callable[..., dict[str, Finding]], tree: Tree
) -> None:
    assert look(tree)["kv"].level is Level.GOOD


def machine(tmp_path: Path, **values: float | Reading) -> Machine:
    """A machine whose readings are these; dots in names are written as two underscores."""
    readings = {}
    for key, value in values.items():
        signal = key.replace("__", ".")
        given = isinstance(value, Reading)
        readings[signal] = value if given else Reading(signal, float(value), 0.0)  # type: ignore[arg-type]
    return Machine(
        Snapshot(0.0, readings), find_board("generic", Roots()), Identity(), Roots(), tmp_path
    )


def told(signal: str, quality: Quality, value: float | None = None) -> Reading:
    return Reading(signal, value, 0.0, quality, "the reason")


@pytest.mark.parametrize(
    ("check", "values", "level", "says"),
    [
        ("cores", {"cpu__steal": 0.2}, Level.WARNING, "hypervisor takes 20%"),
        ("cores", {"cpu__others": 0.8}, Level.NOTE, "other programs take 80%"),
        ("heat", {"temperature__max": 50.0}, Level.NOTE, "no trip point is known"),
        (
            "heat",
            {"temperature__max": 80.0, "temperature__headroom": 5.0},
            Level.WARNING,
            "80 °C (), 5 °C below",
        ),
        (
            "heat",
            {"temperature__max": told("temperature.max", Quality.FAILED)},
            Level.WARNING,
            "the temperature is failed: the reason",
        ),
        ("throttling", {"cpu__throttled": 0.0}, Level.GOOD, "not slowed down"),
        ("throttling", {"cpu__throttled": 1.0}, Level.WARNING, "slowed down now"),
        (
            "memory",
            {
                "memory__total": 4e9,
                "memory__available": told("memory.available", Quality.SUSPECT, 1e9),
            },
            Level.WARNING,
            "available memory is suspect: the reason",
        ),
        (
            "memory",
            {"memory__total": 4e9, "memory__available": 5e8},
            Level.WARNING,
            "477 MiB of it available",
        ),
        ("limits", {"memory__limit": 2e9}, Level.GOOD, "limits us to"),
        ("swap", {"memory__swap__total": 1e9}, Level.GOOD, "of swap"),
        (
            "swap",
            {"memory__swap__total": 1e9, "memory__swap__in_rate": 2e6},
            Level.WARNING,
            "come back from it now",
        ),
        ("disk", {"disk__free": 1e9}, Level.WARNING, "954 MiB free"),
        ("disk", {"disk__free": 9e9, "disk__wear": 0.9}, Level.WARNING, "90% of the flash's life"),
        ("disk", {"disk__free": 9e9, "disk__wear": 0.1}, Level.GOOD, "free"),
    ],
)
def test_each_state_of_a_machine_is_told_in_words(
    tmp_path: Path, check: str, values: dict[str, float | Reading], level: Level, says: str
) -> None:
    finding = CHECKS[check](machine(tmp_path, **values))

    assert finding.level is level
    assert says in finding.says
    assert level is not Level.BAD or finding.todo


def test_hanging_sensors_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    hung = replace(machine(tmp_path), hung=("/sys/class/thermal/thermal_zone1/temp", "/b"))

    finding = CHECKS["sensors"](hung)

    assert finding.says.startswith("2 files don't answer, first /sys/class/thermal")


def test_a_check_that_fails_itself_hides_no_other(tmp_path: Path) -> None:
    broken = replace(machine(tmp_path), state_dir=None)  # type: ignore[arg-type]

    findings = {finding.check: finding for finding in examine(broken)}

    assert findings["disk"].says.startswith("the check itself failed")
    assert findings["kv"].level is Level.GOOD
