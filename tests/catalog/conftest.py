"""Copies of the tiny model that a test may spoil, and a progress that remembers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

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
def run_models(tmp_path: Path) -> Callable[..., Finished]:
    """`trimtab models ...` as a real process, with a home of its own."""

    def run(*arguments: object, **environ: str) -> Finished:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), **environ}
        argv = [sys.executable, "-m", "trimtab", "models", *map(str, arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=50)
        return Finished(done.returncode, done.stdout, done.stderr)

    return run
