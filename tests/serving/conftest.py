"""A KV disk in the test's own folder, and a pool that may use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.serving.disk import KvDisk
from trimtab.serving.pool import Pool

MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> KvDisk:
    made = KvDisk(tmp_path / "kv", Path("/proc/self/mounts").read_text())
    made.configure(64 * MIB, 64 * MIB)
    return made


@pytest.fixture
def pool(disk: KvDisk) -> Iterator[Pool]:
    made = Pool(disk)
    yield made
    made.close()
