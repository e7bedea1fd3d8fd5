"""State files: whole or not at all, with a version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from trimtab.errors import StateError
from trimtab.telemetry.state import read_state, write_atomically, write_state


@dataclass(frozen=True)
class Point:
    variant: str
    context: int


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_state(tmp_path / "point.json", Point("int8", 2048), 1)

    assert read_state(tmp_path / "point.json", Point, 1) == Point("int8", 2048)
    assert (tmp_path / "point.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["point.json"]


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path / "point.json", Point, 1) is None


def test_older_versions_are_brought_up_to_date_step_by_step(tmp_path: Path) -> None:
    write_state(tmp_path / "point.json", {"name": "int8"}, 1)
    migrations = {
        1: lambda data: {"variant": data["name"]},
        2: lambda data: data | {"context": 1024},
    }

    assert read_state(tmp_path / "point.json", Point, 3, migrations) == Point("int8", 1024)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"version": 1}', '{"version": 1, "data": {"variant": 3}}', '{"version": 0, '
     '"data": {}}', '{"version": 9, "data": {}}'],
)  # fmt: skip
def test_damage_is_named_with_the_way_out(tmp_path: Path, content: str) -> None:
    file = tmp_path / "point.json"
    file.write_text(content)

    with pytest.raises(StateError) as caught:
        read_state(file, Point, 1)

    assert str(file) in caught.value.message
    assert "Move" in caught.value.hint


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "point.json"
    write_atomically(file, b"old")
    (tmp_path / "folder").mkdir()

    with pytest.raises(StateError):
        write_atomically(tmp_path / "folder", b"new")

    assert file.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "point.json"]
