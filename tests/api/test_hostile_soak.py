"""A whole daemon under clients that mean no good, for longer: others are served, it stays flat."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_clients import chat_request, nuisances
from odd_requests import fuzz

from real_daemon import RealDaemon

pytestmark = pytest.mark.slow

MIB = 2**20
CHAT: Any = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "max_tokens": 12,
    "stream": True,
    "trimtab": {"ignore_eos": True},
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RealDaemon]:
    running = RealDaemon(
        tmp_path,
        API_RATE="0",
        API_MAX_USER_CONNECTIONS="256",
        API_READ_DEADLINE="2s",
        API_WRITE_DEADLINE="2s",
        API_IDLE="2s",
    ).start()
    yield running
    status, said = running.end()
    assert status == 0
    assert "Traceback" not in said
    assert '"level": "error"' not in said


def rss_bytes(daemon: RealDaemon) -> int:
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def descriptors(daemon: RealDaemon) -> int:
    """Open ones, less the KV of idle conversations, which is a cache with a bound of its own."""
    assert daemon.process is not None
    links = list(Path(f"/proc/{daemon.process.pid}/fd").iterdir())
    return sum(not str(link.readlink()).startswith("/memfd:") for link in links)


async def settled(daemon: RealDaemon, before: int) -> int:
    """How many descriptors are open once connections are gone, or after some seconds."""
    for _ in range(100):
        if descriptors(daemon) <= before:
            break
        await asyncio.sleep(0.1)
    return descriptors(daemon)


@pytest.mark.timeout(500)
async def test_10000_malformed_requests_leave_the_daemon_as_it_was(daemon: RealDaemon) -> None:
    sockets = [daemon.sockets / "inference.sock", daemon.sockets / "control.sock"]
    await fuzz(sockets, 2_000)  # what serving needs has been imported, and the cache is full
    daemon.unpin()
    await asyncio.sleep(3)
    before = rss_bytes(daemon), descriptors(daemon)

    statuses = await fuzz(sockets, 10_000)
    daemon.unpin()
    await asyncio.sleep(3)

    assert not [status for status in statuses if status >= 500]
    assert statuses[200] > 200
    assert statuses[400] > 1_000
    assert rss_bytes(daemon) - before[0] < 4 * MIB
    assert await settled(daemon, before[1]) <= before[1]
    assert daemon.status()["restarts_total"] == 0
    assert daemon.status()["state"] == "ready"


async def well_behaved(path: Path) -> bool:
    """Asks, and asks again after the time that it is told while the queue is full."""
    while True:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(chat_request(CHAT))
        answer = await reader.read()
        writer.close()
        if not answer.startswith((b"HTTP/1.1 429 ", b"HTTP/1.1 503 ")):
            return answer.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in answer
        told = re.search(rb"retry-after: (\d+)", answer)
        await asyncio.sleep(int(told[1]) if told else 0.2)


async def crowd(path: Path) -> list[bool]:
    """200 clients at once; which of the well-behaved half were served."""
    others = nuisances(path, chat_request(CHAT | {"max_tokens": 500}), 100)
    served = await asyncio.gather(*(well_behaved(path) for _ in range(100)))
    await asyncio.gather(*others, return_exceptions=True)
    return served


@pytest.mark.timeout(300)
async def test_200_clients_of_which_half_are_a_nuisance(daemon: RealDaemon) -> None:
    path = daemon.sockets / "inference.sock"
    for _ in range(2):  # it grows by what such a crowd needs at once, and no further
        await crowd(path)
    await asyncio.sleep(3)
    before = rss_bytes(daemon), descriptors(daemon)

    served = [await crowd(path) for _ in range(2)]
    await asyncio.sleep(3)

    assert all(all(one) for one in served)
    assert rss_bytes(daemon) - before[0] < 4 * MIB
    assert await settled(daemon, before[1]) <= before[1]
    assert daemon.status()["running"] == daemon.status()["queued"] == 0
    assert daemon.status()["restarts_total"] == 0
