"""The whole daemon as its users start it, with the tiny model: a process, sockets, files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

TINY = Path(__file__).parent / "tiny"


class RealDaemon:
    """``trimtab run`` in a folder of its own.

    Args:
        folder: Everything that it writes is below.
        models: Folder of models; by default one with the tiny model.
        settings: More variables of its environment, without the prefix.
    """

    def __init__(self, folder: Path, models: Path | None = None, **settings: str) -> None:
        self.folder = folder
        self.sockets = folder / "run"
        if models is None:
            models = folder / "models"
            models.mkdir(parents=True, exist_ok=True)
            if not (models / "tiny").exists():
                (models / "tiny").symlink_to(TINY)
        own = {
            "MODELS": str(models),
            "STATE": str(folder / "state"),
            "CACHE": str(folder / "cache"),
            "SOCKETS_FOLDER": str(self.sockets),
            "LOG_FORMAT": "json",
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TRIMTAB_")}
        self.environ = kept | {f"TRIMTAB_{key}": value for key, value in (own | settings).items()}
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "stderr.log"
        self.argv = [sys.executable, "-m", "trimtab", "run"]
        self.pass_fds: tuple[int, ...] = ()

    def start(self, ready: Sequence[str] = ("ready",), timeout_s: float = 30) -> RealDaemon:
        """Start it and wait until its state is one of these.

        It logs into a file: a pipe that nobody reads would be full some day, and hold it up.
        """
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.argv,
                env=self.environ,
                pass_fds=self.pass_fds,
                stderr=log,
                stdout=subprocess.DEVNULL,
            )
        until_s = time.monotonic() + timeout_s
        try:
            while not self._is_in(ready):
                assert self.process.poll() is None, "it has ended"
                assert time.monotonic() < until_s, "it isn't ready in time"
                time.sleep(0.05)
        except BaseException as error:
            _, said = self.end(signal.SIGKILL)
            raise AssertionError(f"the daemon doesn't start: {error}\n{said}") from error
        return self

    def _is_in(self, states: Sequence[str]) -> bool:
        """Whether it answers, and is in one of these states; asked with care for stale sockets."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.sockets / "control.sock"))
            except OSError:
                return False
        return self.status()["state"] in states

    def client(self, name: str = "inference") -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.sockets / f"{name}.sock"))
        return httpx.Client(transport=transport, base_url="http://trimtab", timeout=30)

    def status(self) -> dict[str, Any]:
        with self.client("control") as client:
            answer: dict[str, Any] = client.get("/trimtab/v1/status").json()
        return answer

    def pin(self, **knobs: str | float) -> None:
        """Fix knobs."""
        with self.client("control") as client:
            client.put("/trimtab/v1/pin", json={"knobs": knobs}).raise_for_status()

    def slow_down(self) -> None:
        """Let the engine run a tenth of the time, and wait until it does."""
        self.pin(pace=0.1)
        until_s = time.monotonic() + 10
        while self.status()["point"]["pace_ratio"] != 0.1:
            assert time.monotonic() < until_s, self.status()
            time.sleep(0.02)

    def unpin(self) -> None:
        """Take the pin off."""
        with self.client("control") as client:
            client.delete("/trimtab/v1/pin").raise_for_status()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the command line against this daemon."""
        return subprocess.run(
            [sys.executable, "-m", "trimtab", *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=50,
        )

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and wait for the end: exit status and what it said."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(30)
        return self.process.returncode, self.log.read_text(errors="replace")
