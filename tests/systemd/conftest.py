"""A service manager that listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_systemd import FakeManager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeManager]:
    fake = FakeManager(tmp_path)
    yield fake
    fake.close()
