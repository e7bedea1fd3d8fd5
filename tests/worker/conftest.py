"""Real worker processes for tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from worker_peer import WorkerProcess

from trimtab.domain.kv import KvShape
from trimtab.worker.kv_cache import new_segment

TINY_KV = KvShape(layers=2, kv_heads=2, position_bytes=64)

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


@pytest.fixture
def segments() -> Iterator[Callable[[], int]]:
    """Makes segments of the tiny model that the test owns, as the controller would."""
    made: list[int] = []

    def make() -> int:
        made.append(new_segment(TINY_KV.segment_bytes(2048)))
        return made[-1]

    yield make
    for descriptor in made:
        os.close(descriptor)


@pytest.fixture(scope="module", params=["generator", "kv"])
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    """A worker with the tiny model in fp32, for tests that leave it as it was."""
    process = WorkerProcess()
    try:
        assert process.load(decoder=request.param).decoder == request.param
        yield process
    finally:
        process.close()
