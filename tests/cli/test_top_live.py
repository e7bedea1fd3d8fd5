"""`trimtab top` against a served API: in a pipe, and on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from cli_gateway import ServedGateway, Told

from api_fakes import a_record
from trimtab.cli.top_feed import Feed
from trimtab.config.load import load_config
from trimtab.runtime.clock import SystemClock

Run = Callable[..., Told]
PATIENCE_S = 40.0


def until(there: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < end_s, "it doesn't happen"
        time.sleep(0.02)


def test_a_pipe_gets_one_snapshot(trimtab: Run) -> None:
    told = trimtab("top")

    assert told.code == 0
    assert "trimtab top  ready  tiny" in told.out
    assert "needs 90 MiB more memory" in told.out
    assert "\x1b" not in told.out


def test_as_json_it_is_one_object_with_the_place_on_the_triangle(trimtab: Run) -> None:
    told = json.loads(trimtab("top", "--json").out)

    assert told["status"]["point"]["variant"] == "int8"
    assert told["triangle"]["accuracy"]["ratio"] == 0.99
    assert {"signals", "points", "decisions"} <= told.keys()


def test_without_a_daemon_a_pipe_gets_the_way_out(
    trimtab: Run, gateway: ServedGateway, tmp_path: Path
) -> None:
    told = trimtab("--sockets", str(tmp_path / "nowhere"), "top")

    assert told.code == 3
    assert "isn't running" in told.err


def test_the_feed_follows_the_daemon_and_tells_when_it_is_gone(gateway: ServedGateway) -> None:
    folder = str(gateway.config.sockets.folder)
    settings = load_config(environ={"TRIMTAB_SOCKETS_FOLDER": folder})
    feed = Feed(settings, SystemClock(), lambda: None)
    feed.start()
    until(lambda: feed.scene.status is not None)
    gateway.soon(lambda: gateway.control.live.put_nowait(a_record(9)))
    until(lambda: any(record["id"] == 9 for record in feed.scene.decisions))
    gateway.control.now = msgspec.structs.replace(gateway.control.now, running=3)
    until(lambda: feed.scene.status is not None and feed.scene.status.running == 3)
    seen_s = feed.scene.at_s
    until(lambda: feed.scene.at_s > seen_s)  # and now it pauses for a second
    for path in (gateway.control_socket, gateway.inference_socket):
        path.rename(path.with_suffix(".away"))
    stop(gateway)
    until(lambda: feed.scene.fault != "")
    last = feed.scene
    feed.stop()

    assert "isn't running" in last.fault or "broke" in last.fault
    assert last.status is not None
    assert [record["id"] for record in last.decisions] == [1, 2, 3, 9]


def stop(gateway: ServedGateway) -> None:
    """Stop serving now."""
    import asyncio

    asyncio.run_coroutine_threadsafe(gateway.service.stop(0.1), gateway.loop).result(20)


class Terminal:
    """A pseudo-terminal with `trimtab top` in it."""

    def __init__(self, process: subprocess.Popen[bytes], end: int, own: int) -> None:
        self.process = process
        self.said = b""
        self._end = end
        self._own = own

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def mode(self) -> list[Any]:
        return termios.tcgetattr(self._own)

    def until(self, pattern: bytes) -> None:
        """Read on until this was said, after what was said before."""
        begun = len(self.said)
        until(lambda: self._read() and re.search(pattern, self.said[begun:]) is not None)

    def ended(self) -> int:
        until(lambda: self._read() and self.process.poll() is not None)
        return self.process.returncode

    def _read(self) -> bool:
        while select.select([self._end], [], [], 0.02)[0]:
            self.said += os.read(self._end, 65536)
        return True


@contextmanager
def on_a_terminal(gateway: ServedGateway, **environ: str) -> Iterator[Terminal]:
    end, own = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLUMNS"}}
    kept.pop("LINES", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "--sockets", str(gateway.config.sockets.folder), "top"],
        stdin=own,
        stdout=own,
        stderr=own,
        env=kept | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | environ,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        yield Terminal(process, end, own)
    finally:
        process.kill()
        process.wait(10)
        os.close(end)
        os.close(own)


def test_on_a_terminal_keys_resizing_and_the_end_work(gateway: ServedGateway) -> None:
    with on_a_terminal(gateway) as terminal:
        before = terminal.mode()
        terminal.until(rb"Stepped down")
        terminal.press(b"j")
        terminal.until(rb"1 newer decision above")
        terminal.press(b"p")
        terminal.until(rb"PAUSED")
        terminal.resize(130, 40)
        terminal.until("╭─ ".encode())
        terminal.press(b"q")
        code = terminal.ended()
        after = terminal.mode()

    assert code == 0
    assert after == before
    assert b"\x1b[?1049l" in terminal.said
    assert re.search(rb"\x1b\[[0-9;]*3[1-6]m", terminal.said)


def test_without_colour_and_without_a_cursor_it_does_what_the_terminal_can(
    gateway: ServedGateway,
) -> None:
    with on_a_terminal(gateway, NO_COLOR="1") as terminal:
        terminal.until(rb"Stepped down")
        terminal.process.terminate()
        code = terminal.ended()
    with on_a_terminal(gateway, TERM="dumb") as dumb:
        dumb.ended()

    assert code == 128 + 15
    assert b"\x1b[?1049l" in terminal.said
    assert not re.search(rb"\x1b\[[0-9;]*3[1-7]m", terminal.said)
    assert b"\x1b" not in dumb.said
    assert b"Stepped down" in dumb.said
