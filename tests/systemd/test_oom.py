"""Memory runs out under a real limit: whom the kernel takes, who is still there, what goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def run_out(group: Path) -> int:
    """Fill the group up to a limit just above what it holds; how many the kernel has killed then.

    The limit goes again afterwards, so that there is room for another worker.
    """
    version, _ = own_folder()
    names = {
        1: ("memory.usage_in_bytes", "memory.limit_in_bytes"),
        2: ("memory.current", "memory.max"),
    }
    usage, limit = (group / name for name in names[version])
    eater = GroupChild(group, EATER)
    eater.ask(f"{usage} {limit}")
    eater.process.wait(30)
    kills = killed(group, version)
    eater.end()
    limit.write_text(str(4096 * MIB))
    return kills


def asked(**more: Any) -> dict[str, Any]:
    """A request whose answer is the same each time, and takes a while."""
    more = {"max_tokens": 1000, "temperature": 0, "trimtab": {"ignore_eos": True}} | more
    return {"model": "tiny", "prompt": "Hello"} | more


def test_a_stream_outlives_the_kernels_kill_of_its_worker(daemon: RealDaemon, group: Path) -> None:
    with daemon.client() as client:
        unbroken = client.post("/v1/completions", json=asked()).json()["choices"][0]
    daemon.slow_down()
    worker = daemon.status()["workers"][0]["pid"]
    with (
        daemon.client() as client,
        client.stream("POST", "/v1/completions", json=asked(stream=True)) as answer,
    ):
        events = (line[6:] for line in answer.iter_lines() if line.startswith("data: "))
        chunks = [json.loads(next(events))["choices"][0] for _ in range(20)]
        kills = run_out(group)
        then = daemon.status()
        *after, done = events
    chunks += [json.loads(event)["choices"][0] for event in after]
    status = daemon.status()
    assert daemon.process is not None

    assert kills >= 2  # the worker, then what had filled the group
    assert not Path(f"/proc/{worker}").exists()
    assert sum(then[name] for name in ("running", "waiting_turn", "queued", "held")) == 1
    assert status["restarts_total"] >= 1
    assert status["pid"] == then["pid"] == daemon.process.pid
    assert done == "[DONE]"
    assert "".join(chunk["text"] for chunk in chunks) == unbroken["text"]
    assert chunks[-1]["finish_reason"] == unbroken["finish_reason"] == "length"
