"""Memory runs out under a real limit: whom the kernel takes, and who is still there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_group import GroupChild, memory_group, own_folder

from real_daemon import RealDaemon

MIB = 1 << 20
POLICY = """\
version: 1
name: until-the-end
description: Holds on until the kernel decides.
protect: [latency, accuracy]
sacrifice: memory
limits:
  memory: {headroom: 1MiB, leave: 2MiB}
"""

# It closes the limit behind itself, and is the second choice: after a worker, before the daemon.
EATER = """
import sys
open("/proc/self/oom_score_adj", "w").write("500")
for line in sys.stdin:
    usage, limit = line.split()
    size = int(open(usage).read()) + (16 << 20)
    open(limit, "w").write(str(size))
    kept = []
    while True:
        kept.append(bytearray(b"x" * (4 << 20)))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    with memory_group(4096 * MIB) as folder:
        yield folder


@pytest.fixture
def daemon(tmp_path: Path, group: Path) -> Iterator[RealDaemon]:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "until-the-end.yaml").write_text(POLICY)
    one = RealDaemon(
        tmp_path, POLICIES=str(tmp_path / "policies"), POLICY="until-the-end", TICK="1s"
    )
    (group / "cgroup.procs").write_text("0")  # children begin where we are
    try:
        one.start()
    finally:
        (group.parent / "cgroup.procs").write_text("0")
    yield one
    one.end()


def killed(group: Path, version: int) -> int:
    """How many processes of the group the kernel has killed for want of memory."""
    file = "memory.oom_control" if version == 1 else "memory.events"
    found = re.search(r"^oom_kill (\d+)", (group / file).read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


def test_the_kernel_takes_the_worker_and_the_daemon_serves_again(
    daemon: RealDaemon, group: Path
) -> None:
    version, _ = own_folder()
    names = {
        1: ("memory.usage_in_bytes", "memory.limit_in_bytes"),
        2: ("memory.current", "memory.max"),
    }
    usage, limit = (group / name for name in names[version])
    worker = daemon.status()["workers"][0]["pid"]
    eater = GroupChild(group, EATER)
    eater.ask(f"{usage} {limit}")
    eater.process.wait(30)
    kills = killed(group, version)
    eater.end()
    assert daemon.process is not None
    alive = daemon.process.poll() is None
    limit.write_text(str(4096 * MIB))
    until_s = time.monotonic() + 30
    while daemon.status()["state"] != "ready" and time.monotonic() < until_s:
        time.sleep(0.1)
    status = daemon.status()
    with daemon.client() as client:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4}
        answer = client.post("/v1/completions", json=body)

    assert alive
    assert kills >= 2
    assert not Path(f"/proc/{worker}").exists()
    assert status["restarts_total"] >= 1
    assert status["pid"] == daemon.process.pid
    assert answer.status_code == 200
