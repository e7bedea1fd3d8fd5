"""Every example of docs/signals.md does what the text says."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML
from sensor_trees import Tree

from trimtab.cli.root import root
from trimtab.config.schema import SensorsConfig
from trimtab.sensors.board import parse_board, shipped_boards

TEXT = (Path(__file__).parents[2] / "docs" / "signals.md").read_text()


def blocks() -> list[str]:
    """The indented examples."""
    found, lines = [], []
    for line in [*TEXT.splitlines(), ""]:
        if line.startswith("    "):
            lines.append(line[4:])
        elif line or not lines:
            found += ["\n".join(lines)] if lines else []
            lines = []
        else:
            lines.append("")
    return [block.strip("\n") for block in found]


COMMANDS = [
    line.partition("#")[0].strip()
    for block in blocks()
    for line in block.splitlines()
    if line.startswith("trimtab ")
]
NEEDS_A_DAEMON = {"push"}  # tests/sensors/test_daemon_signals.py runs it against one


def example(begins: str) -> str:
    return next(block for block in blocks() if block.startswith(begins))


def test_the_profile_of_ones_own_is_one() -> None:
    board = parse_board(YAML(typ="safe", pure=True).load(example("name: my-gateway")), "docs")

    assert board.unified_memory
    assert board.zones.used("soc0")
    assert board.trips[0].celsius == 80.0


def test_the_number_from_a_file_is_configured_so() -> None:
    sensors: Any = tomllib.loads(example("[sensors.custom.room]"))["sensors"]

    room = SensorsConfig.model_validate(sensors).custom["room"]

    assert (room.unit, room.scale, room.low, room.high) == ("celsius", 0.001, -20, 60)


def test_every_shipped_profile_is_named() -> None:
    assert all(f"`{name}`" in TEXT for name in shipped_boards())


def test_the_text_has_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(
    command: str, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("TRIMTAB_SOCKETS_FOLDER", str(tmp_path / "none"))
    words = shlex.split(command.replace("--for 10m", "--for 100ms"))[1:]
    roots = ["--proc-root", str(tree.proc), "--sys-root", str(tree.sys)]

    result = CliRunner().invoke(root, [*roots, *words])

    if words[0] in NEEDS_A_DAEMON:
        assert "isn't running" in str(result.exception)
    else:
        assert result.exit_code in {0, 1}, result.output
        assert result.output
