"""Copies of the tiny model that a test may spoil, and a progress that remembers."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli import main

TINY = Path(__file__).parent.parent / "tiny"


@dataclass
class RecordingProgress:
    """Keeps the titles of steps, those that failed, and what was said."""

    steps: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        self.steps.append(title)
        try:
            yield lambda _: None
        except BaseException:
            self.failed.append(title)
            raise

    def say(self, text: str) -> None:
        self.said.append(text)


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def progress() -> RecordingProgress:
    return RecordingProgress()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A models folder with the tiny model in it."""
    folder = tmp_path / "models"
    shutil.copytree(TINY, folder / "tiny")
    return folder


@pytest.fixture
def run_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Finished]:
    """`trimtab models ...` as the console script runs it, with a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("TRIMTAB_MODELS", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, **environ: str) -> Finished:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["trimtab", "models", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return Finished(int(end.value.code or 0), out, err)

    return run
