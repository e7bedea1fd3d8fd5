"""A stop while a thread of the daemon sleeps in the kernel, over a disk that hangs for real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fake_systemd import FakeManager
from test_frozen_disk import Frozen
from test_frozen_disk import frozen as frozen  # a fixture

from real_daemon import RealDaemon
from trimtab.app import STOP_MARGIN_S

POLICY = (
    "version: 1\nname: own\nprotect: [latency, memory]\n"
    "limits: {memory: {headroom: 64MiB}}\nknobs: {kv_placement: [disk]}\n"
)


@contextmanager
def hanging(disk: Frozen, most_s: int = 45) -> Iterator[None]:
    """The disk hangs meanwhile, and in no case for longer: another process sees to that."""
    thaw = f"sleep {most_s}; fsfreeze -u {disk.point}"
    late = subprocess.Popen(["sh", "-c", thaw], start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        disk.freeze()
        yield
    finally:
        disk.thaw()
        os.killpg(late.pid, signal.SIGKILL)
        late.wait()


def states(pid: int) -> dict[int, str]:
    """How each of a process's threads is: ``D`` sleeps over a disk, ``Z`` has ended."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
            found[int(task.name)] = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return found


class Watched:
    """A daemon on a disk, and what it tells its service manager."""

    def __init__(self, folder: Path, disk: Path, state: Path, manager: FakeManager) -> None:
        policies = folder / "policies"
        policies.mkdir()
        (policies / "own.yaml").write_text(POLICY)
        places = {"POLICIES": str(policies), "CACHE": str(disk), "STATE": str(state)}
        self.daemon = RealDaemon(folder, POLICY="own", API_DRAIN="1s", **places)
        self.daemon.environ["NOTIFY_SOCKET"] = manager.address
        self.manager = manager
        self.told: list[dict[str, str]] = []

    def until(self, holds: Callable[[], bool], most_s: float) -> float:
        """Wait until something holds; how long that took."""
        begun_s = time.monotonic()
        while not holds():
            self.told += self.manager.heard()
            assert time.monotonic() < begun_s + most_s, self.daemon.log.read_text()
            time.sleep(0.02)
        self.told += self.manager.heard()
        return time.monotonic() - begun_s

    def talk(self) -> None:
        with self.daemon.client() as client:
            body = {"model": "tiny", "prompt": "the quick brown " * 8, "max_tokens": 8}
            client.post("/v1/completions", json=body).raise_for_status()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeManager]:
    (tmp_path / "manager").mkdir()
    one = FakeManager(tmp_path / "manager")
    yield one
    one.close()


@contextmanager
def started(one: Watched) -> Iterator[int]:
    """It serves; its process number."""
    one.daemon.start()
    process = one.daemon.process
    assert process is not None
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait(20)


def refused(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return True
    return False


def test_a_stop_waits_for_no_disk_that_hangs(
    tmp_path: Path, frozen: Frozen, manager: FakeManager
) -> None:
    watched = Watched(tmp_path, frozen.point, tmp_path / "state", manager)
    daemon = watched.daemon
    with started(watched) as pid, hanging(frozen):
        watched.talk()
        watched.until(lambda: "D" in states(pid).values(), 10)
        served = daemon.status()["state"]
        daemon.tell(signal.SIGTERM)
        took_s = watched.until(lambda: states(pid)[pid] == "Z", 25)
        left = states(pid)
        sockets = [daemon.sockets / f"{name}.sock" for name in ("inference", "control")]
        closed = all(refused(path) and not path.exists() for path in sockets)
        kept = [sum(os.fstat(fd).st_blocks for fd in fds) for fds in manager.passed().values()]
        frozen.thaw()
        status, said = daemon.end()

    assert served == "ready"
    assert took_s < STOP_MARGIN_S
    assert sorted(left.values()) == ["D", "Z"]  # all have ended but the one that sleeps
    assert closed
    assert any("STOPPING" in message for message in watched.told)
    assert len(kept) == 1
    assert kept[0] > 0  # the conversation is in memory, for the next controller
    assert status == 0
    assert "state_not_written" not in said


def test_a_stop_says_so_where_the_disk_that_hangs_has_the_state_too(
    tmp_path: Path, frozen: Frozen, manager: FakeManager
) -> None:
    watched = Watched(tmp_path, frozen.point / "cache", frozen.point / "state", manager)
    with started(watched) as pid, hanging(frozen):
        watched.talk()
        watched.until(lambda: "D" in states(pid).values(), 10)
        watched.daemon.tell(signal.SIGTERM)
        took_s = watched.until(lambda: states(pid)[pid] == "Z", 25)
        frozen.thaw()
        status, said = watched.daemon.end()

    assert took_s < STOP_MARGIN_S
    assert status == 0
    assert "state_not_written" in said
