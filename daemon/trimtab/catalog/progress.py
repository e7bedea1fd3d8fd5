"""How long work tells a person where it is; the command line decides how that looks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Receives steps and remarks."""

    def step(self, title: str) -> AbstractContextManager[Callable[[str], None]]:
        """A step that takes a while; the function that it gives takes a few words of detail."""

    def say(self, text: str) -> None:
        """A line that stays."""
