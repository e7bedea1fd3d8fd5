"""Real worker processes for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from worker_peer import WorkerProcess

settings.register_profile("worker", deadline=None)  # other work on the machine fails no test
settings.load_profile("worker")


@pytest.fixture
def new_worker() -> Iterator[Callable[[], WorkerProcess]]:
    """Starts worker processes, and ends them after the test."""
    started: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        started.append(WorkerProcess())
        return started[-1]

    yield start
    for worker in started:
        worker.close()


@pytest.fixture(scope="module", params=["generator", "kv"])
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    """A worker with the tiny model in fp32, for tests that leave it as it was."""
    process = WorkerProcess()
    try:
        assert process.load(decoder=request.param).decoder == request.param
        yield process
    finally:
        process.close()
