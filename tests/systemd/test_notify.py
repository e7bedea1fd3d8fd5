"""What systemd is told, as it hears it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fake_systemd import FakeManager

from real_daemon import RealDaemon
from trimtab.runtime.notify import Notifier, notifier


def test_outside_of_systemd_nothing_is_said() -> None:
    quiet = notifier({}, 7)
    quiet.ready("ready")
    quiet.alive(1.0)
    quiet.store("kv-1", [0])

    assert not quiet.heard


def test_ready_comes_with_the_status(manager: FakeManager) -> None:
    manager.notifier().ready("ready: fp32")

    assert manager.heard() == [{"READY": "1", "STATUS": "ready: fp32"}]


def test_a_status_is_told_once_and_on_one_line(manager: FakeManager) -> None:
    told = manager.notifier()
    told.status("parked:\n no room")
    told.status("parked:\n no room")
    told.status("ready")

    assert [message["STATUS"] for message in manager.heard()] == ["parked: no room", "ready"]


def test_the_watchdog_hears_of_ticks_four_times_in_its_period(manager: FakeManager) -> None:
    told = manager.notifier(watchdog_s=4.0)
    for tick in range(40):
        told.alive(tick / 10)

    assert manager.heard() == [{"WATCHDOG": "1"}] * 4


def test_without_a_watchdog_ticks_are_not_told(manager: FakeManager) -> None:
    manager.notifier().alive(1.0)

    assert manager.heard() == []


def test_a_reload_ends_with_ready_and_only_if_it_had_begun(manager: FakeManager) -> None:
    told = manager.notifier()
    told.reloaded()
    told.reloading(12.5)
    told.reloaded()
    told.reloaded()

    assert manager.heard() == [
        {"RELOADING": "1", "MONOTONIC_USEC": "12500000"},
        {"READY": "1"},
    ]


def test_stopping_asks_for_the_time_that_draining_takes(manager: FakeManager) -> None:
    manager.notifier().stopping(25.0)

    (message,) = manager.heard()
    assert message["STOPPING"] == "1"
    assert message["EXTEND_TIMEOUT_USEC"] == "25000000"


def test_a_manager_that_is_gone_hurts_nobody(tmp_path: Path) -> None:
    told = Notifier(str(tmp_path / "nobody"))
    told.ready("ready")
    told.status("other")
    told.close()

    assert not (tmp_path / "nobody").exists()


def test_what_is_meant_for_another_process_is_not_ours(manager: FakeManager) -> None:
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "9"}
    told = notifier(environ, 7)
    told.alive(1.0)
    told.close()

    assert manager.heard() == []


def test_children_do_not_inherit_the_socket() -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "7", "HOME": "/"}
    notifier(environ, 7).close()

    assert environ == {"HOME": "/"}


@pytest.fixture
def told_daemon(tmp_path: Path, manager: FakeManager) -> RealDaemon:
    daemon = RealDaemon(tmp_path)
    daemon.environ |= {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "800000"}
    return daemon


def test_a_real_daemon_tells_its_life(told_daemon: RealDaemon, manager: FakeManager) -> None:
    told_daemon.start()
    point = told_daemon.status()["point"]
    told_daemon.tell(signal.SIGHUP)
    with told_daemon.client() as client:
        body = {"model": "tiny", "prompt": "A river is long and wide. " * 4, "max_tokens": 8}
        client.post("/v1/completions", json=body).raise_for_status()
    status, said = told_daemon.end()
    messages = manager.heard()

    assert status == 0, said
    keys = [key for message in messages for key in message if key != "STATUS"]
    assert keys[0] == "READY"
    assert {"RELOADING", "WATCHDOG", "FDSTORE", "STOPPING"} <= set(keys)
    texts = [message["STATUS"] for message in messages if "STATUS" in message]
    assert any(text.startswith(f"ready: {point['variant']}, ") for text in texts), texts
    assert texts[-1].startswith("draining")
    assert os.fstat(manager.kept["kv-1"][0]).st_blocks > 0
