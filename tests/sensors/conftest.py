"""Fixtures of the sensor tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sensor_trees import Ticker, Tree

from trimtab.sensors import SensorConfig, SensorSuite


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A plain machine without limits and zones."""
    return Tree(tmp_path).machine()


@pytest.fixture
def start() -> Iterator[Callable[[SensorConfig], Ticker]]:
    """Starts suites and closes them after the test."""
    suites = []

    def begin(config: SensorConfig, **more: object) -> Ticker:
        suite = SensorSuite(config, **more)  # type: ignore[arg-type]
        suites.append(suite)
        return Ticker(suite)

    yield begin
    for suite in suites:
        suite.close()
