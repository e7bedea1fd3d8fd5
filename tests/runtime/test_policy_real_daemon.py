"""A policy that changes under a real daemon with real streams, on the tiny model."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from real_daemon import RealDaemon

POLICY = (
    "version: 1\nname: own\ndescription: Number {number}.\nprotect: [latency, memory]\n"
    "limits: {{memory: {{headroom: 64MiB}}}}\nknobs: {{context: {{max: {context}}}}}\n"
)
BAD = "version: 1\nname: own\nprotect: [latency, memory, accuracy]\n# {number}\n"
TOKENS = 1200


def _write(daemon: RealDaemon, text: str) -> None:
    path = daemon.folder / "policies" / "own.yaml"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _until(daemon: RealDaemon, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    until_s = time.monotonic() + 15
    while not holds(status := daemon.status()):
        assert time.monotonic() < until_s, status["policy"]
        time.sleep(0.02)
    return status


def _number(number: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: status["policy"]["description"] == f"Number {number}."


def _stale(status: dict[str, Any]) -> bool:
    return bool(status["policy"]["stale"])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RealDaemon]:
    (tmp_path / "policies").mkdir()
    made = RealDaemon(tmp_path, POLICIES=str(tmp_path / "policies"), POLICY="own")
    _write(made, POLICY.format(number=0, context=2048))
    made.start()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.end(signal.SIGTERM)


def _generate(daemon: RealDaemon) -> str:
    """A greedy answer, streamed to its end."""
    body = {
        "model": "tiny",
        "prompt": "the quick brown",
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "trimtab": {"ignore_eos": True},
    }
    text, ended = "", False
    with daemon.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event
                text += "".join(choice["text"] for choice in event["choices"])
    assert ended
    return text


def test_reloads_good_and_bad_leave_streams_and_the_loaded_worker_alone(
    daemon: RealDaemon,
) -> None:
    undisturbed = _generate(daemon)
    before = daemon.status()["workers"][0]["pid"]
    daemon.slow_down()
    answers: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            answers.append(_generate(daemon))

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()

    for number in range(1, 7):
        _write(daemon, BAD.format(number=number))
        stale = _until(daemon, _stale)
        assert stale["policy"]["description"] == f"Number {number - 1}."
        _write(daemon, POLICY.format(number=number, context=2048 - number))
        _until(daemon, _number(number))
    over.set()
    daemon.unpin()
    for client in clients:
        client.join(30)

    assert len(answers) >= 2
    assert set(answers) == {undisturbed}
    status = daemon.status()
    assert status["workers"][0]["pid"] == before
    assert status["switches_total"] == 0
    assert not status["policy"]["stale"]


def test_a_signal_and_the_command_line_look_again_and_a_bad_file_is_told(
    daemon: RealDaemon,
) -> None:
    _write(daemon, BAD.format(number=1))
    refused = daemon.command("policy", "reload")
    _write(daemon, POLICY.format(number=2, context=1024))
    daemon.tell(signal.SIGHUP)
    status = _until(daemon, _number(2))
    used = daemon.command("policy", "use", "night")
    metrics = daemon.command("status", "--json")

    assert refused.returncode != 0
    assert "own.yaml:3:1: error: protect: all three corners can't be protected" in refused.stderr
    assert status["point"]["context"] <= 2048
    assert used.stdout.startswith("In force: night")
    assert json.loads(metrics.stdout)["policy"]["name"] == "night"


def test_a_restart_with_a_bad_file_begins_with_the_last_good_policy(daemon: RealDaemon) -> None:
    daemon.end(signal.SIGTERM)
    _write(daemon, BAD.format(number=1))

    daemon.start()
    status = daemon.status()

    assert status["policy"]["description"] == "Number 0."
    assert status["policy"]["stale"] is True
    assert "own.yaml:3:1" in status["policy"]["error"]
