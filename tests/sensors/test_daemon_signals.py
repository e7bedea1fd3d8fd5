"""Signals, pushed values and recordings of a real daemon, through its socket."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from sensor_trees import Tree

from real_daemon import RealDaemon
from trimtab.cli.root import root
from trimtab.domain.decisions import Direction
from trimtab.domain.events import PinSet
from trimtab.telemetry.recording import read_recording, rerun

Trimtab = Callable[..., Any]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    running = RealDaemon(tmp_path_factory.mktemp("signals"), TICK="200ms").start()
    yield running
    running.end()


@pytest.fixture
def trimtab(daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> Trimtab:
    """Runs a command against the daemon and gives its JSON, or its fault."""
    for key, value in daemon.environ.items():
        if key.startswith("TRIMTAB_"):
            monkeypatch.setenv(key, value)

    def run(*words: str) -> Any:
        result = CliRunner().invoke(root, [*words, "--json"])
        return result.exception if result.exit_code else json.loads(result.stdout)

    return run


def signals(trimtab: Trimtab, *names: str) -> dict[str, Any]:
    told = trimtab("signals", *names)
    assert told["told_by"] == "the daemon"
    return {row["name"]: row for row in told["signals"]}


def call(daemon: RealDaemon, socket: str, method: str, path: str, body: Any) -> None:
    transport = httpx.HTTPTransport(uds=str(daemon.sockets / f"{socket}.sock"))
    with httpx.Client(transport=transport, base_url="http://t", timeout=30) as client:
        client.request(method, path, json=body).raise_for_status()


def ask(daemon: RealDaemon) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 20}
    call(daemon, "inference", "POST", "/v1/chat/completions", body)


def pin(daemon: RealDaemon) -> None:
    call(daemon, "control", "PUT", "/trimtab/v1/pin", {"knobs": {"variant": "int4"}, "for": "5m"})


def test_the_daemon_tells_latency_and_the_memory_of_its_worker(
    daemon: RealDaemon, trimtab: Trimtab
) -> None:
    ask(daemon)
    while signals(trimtab, "latency.ttft_p95")["latency.ttft_p95"]["quality"] != "good":
        pass  # until the next tick

    rows = signals(trimtab)

    assert 0 < rows["latency.ttft_p95"]["value"] < 30
    assert rows["memory.available"]["watched_by"] != []
    assert rows["requests.slo_met"]["value"] in {0.0, 1.0}
    assert rows["queue.depth"]["value"] == 0.0
    assert rows["kv.idle"]["value"] > 0  # the conversation is kept for its next turn


def test_a_pushed_value_is_seen_as_a_signal_in_its_unit(trimtab: Trimtab) -> None:
    pushed = trimtab("push", "room", "21.5", "--unit", "celsius", "--for", "1m", "--high", "60")
    while not (rows := signals(trimtab, "custom")):
        pass  # until the next tick

    assert (pushed["name"], pushed["quality"]) == ("custom.room", "good")
    assert (rows["custom.room"]["value"], rows["custom.room"]["unit"]) == (21.5, "celsius")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a b", "1", "--unit", "count", "--for", "1m"), "can't be a signal's name"),
        (("a", "1", "--unit", "count", "--for", "1x"), "unknown unit 'x'"),
        (("a", "1", "--unit", "count", "--for", "0s"), "above 0"),
    ],
)
def test_a_push_that_makes_no_sense_is_refused_in_words(
    trimtab: Trimtab, words: tuple[str, ...], message: str
) -> None:
    assert message in str(trimtab("push", *words))


def test_a_recording_of_the_daemon_runs_again_with_the_same_decisions(
    daemon: RealDaemon, trimtab: Trimtab, tmp_path: Path
) -> None:
    file = tmp_path / "day.gz"
    pinning = threading.Timer(0.6, pin, [daemon])
    pinning.start()
    told = trimtab("record", str(file), "--for", "4s")
    pinning.join()

    recording = read_recording(file)
    again = rerun(recording)

    assert told["events"] == again.events > 5
    assert any(isinstance(entry.event, PinSet) for entry in recording.entries)
    assert [one.target.variant for one in again.decisions] == ["int4"]
    assert again.differences == ()


def heat(tree: Tree, millidegrees: int) -> None:
    tree.zone(0, "cpu-thermal", millidegrees, critical=110000)


def heat_until_it_acts(daemon: RealDaemon, tree: Tree) -> None:
    heat(tree, 95000)
    until_s = time.monotonic() + 40
    while daemon.status()["last_decision"]["trigger"]["signal"] != "temperature.max":
        assert time.monotonic() < until_s
        time.sleep(0.1)
    daemon.end()


def test_a_hot_zone_makes_the_daemon_step_down_and_a_recording_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path / "machine")
    heat(tree, 45000)
    hot = RealDaemon(tmp_path / "daemon", TICK="200ms", SENSORS_SYS_ROOT=str(tree.sys)).start()
    for key, value in hot.environ.items():
        if key.startswith("TRIMTAB_"):
            monkeypatch.setenv(key, value)
    warming = threading.Timer(0.5, heat_until_it_acts, [hot, tree])
    warming.start()

    result = CliRunner().invoke(root, ["record", str(tmp_path / "hot.gz"), "--for", "60s"])
    warming.join()
    decisions = rerun(read_recording(tmp_path / "hot.gz")).decisions

    assert result.exit_code == 1
    assert "the recording ends early" in result.stderr
    assert decisions[0].trigger.signal == "temperature.max"
    assert decisions[0].trigger.value == 95.0
    assert decisions[0].direction is Direction.DOWN


def test_a_recording_never_holds_what_was_said(
    daemon: RealDaemon, trimtab: Trimtab, tmp_path: Path
) -> None:
    asking = threading.Timer(0.3, ask, [daemon])
    asking.start()
    trimtab("record", str(tmp_path / "quiet.gz"), "--for", "2s")
    asking.join()

    assert b"Hello" not in gzip.decompress((tmp_path / "quiet.gz").read_bytes())
