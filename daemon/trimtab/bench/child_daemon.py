"""A real daemon in a folder of its own: started as a child process, told apart from any other.

Benchmarks and the demo use it. Nothing of the user's configuration reaches it: it has its own
configuration file, and variables that begin with TRIMTAB_ are taken out of its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from trimtab.api.client import PREFIX
from trimtab.bench.leash import leashed
from trimtab.errors import WorkerError
from trimtab.runtime.process_memory import anonymous_bytes
from trimtab.workers.process import ChildProcess, describe_exit

BASE_URL: Final = "http://trimtab"
READY_POLL_S: Final = 0.05
END_GRACE_S: Final = 15.0
_CALL_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What the daemon is to be.

    Attributes:
        models: Folders that hold models.
        model: The model that it serves.
        policy: Text of the policy in force.
        tick_s: Time between two looks at the sensors.
        threads: Engine threads; None leaves it to the daemon.
        settings: More keys of the configuration, dotted.
    """

    models: Sequence[Path]
    model: str
    policy: str
    tick_s: float = 1.0
    threads: int | None = None
    settings: Mapping[str, str | int | float] = field(default_factory=dict)


class ChildDaemon:
    """``trimtab run`` as a child process, in a folder that the caller makes and removes.

    Args:
        folder: Everything that it writes is below. Its path must be short: sockets are in it.
        setup: What it is to be.
    """

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder = folder
        self.setup = setup
        self._process: ChildProcess | None = None
        self._status: int | None = None

    @property
    def inference(self) -> Path:
        """The inference socket."""
        return self.folder / "run" / "inference.sock"

    @property
    def control(self) -> Path:
        """The control socket."""
        return self.folder / "run" / "control.sock"

    @property
    def pid(self) -> int:
        """The controller's process number."""
        if self._process is None:
            raise WorkerError("the daemon has not been started")
        return self._process.pid

    @property
    def ended(self) -> str:
        """How it ended, in words, with what it said last; empty while it lives."""
        if self._process is None or self._status is None:
            return ""
        tail = self._process.stderr_tail
        return describe_exit(self._status) + (f":\n{tail}" if tail else "")

    async def start(self, timeout_s: float) -> None:
        """Start it and wait until tokens can flow.

        Raises:
            WorkerError: It ends, or isn't ready within ``timeout_s``.
        """
        self._write_files()
        argv = leashed([sys.executable, "-m", "trimtab", "run"], os.getpid())
        self._process = ChildProcess(argv, (), self._on_exit, _ignore, env=self._environment())
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_ready()
        except TimeoutError as error:
            tail = self._process.stderr_tail
            raise WorkerError(f"the daemon isn't ready after {timeout_s:.0f} s\n{tail}") from error

    async def stop(self) -> None:
        """SIGTERM, a deadline, SIGKILL; its workers go with it. Harmless if it has ended."""
        if self._process is not None and self._process.alive:
            await self._process.end(END_GRACE_S)

    def client(self, timeout_s: float | None = _CALL_TIMEOUT_S) -> httpx.AsyncClient:
        """An HTTP client on its inference socket; status can be read there too."""
        return _client(self.inference, timeout_s)

    async def order(self, method: str, path: str, body: Any = None) -> Any:
        """Call the control API.

        Raises:
            WorkerError: It refuses, or is gone.
        """
        async with _client(self.control, _CALL_TIMEOUT_S) as client:
            try:
                answer = await client.request(method, f"{PREFIX}{path}", json=body)
            except httpx.HTTPError as error:
                raise WorkerError(f"the daemon doesn't answer: {error!r} {self.ended}") from error
        if answer.is_error:
            raise WorkerError(f"the daemon refused {method} {path}: {answer.text}")
        return msgspec.json.decode(answer.content)

    async def worker_bytes(self) -> int:
        """What its only worker holds and nobody else could have: that comes back with its end.

        Raises:
            WorkerError: The worker is gone.
        """
        (held,) = await self._held()
        if held is None:
            raise WorkerError("the kernel doesn't tell what the worker holds")
        return held

    async def workers_bytes(self) -> int:
        """The same of all its workers together; one that ends holds nothing any more."""
        return sum(held or 0 for held in await self._held())

    async def _held(self) -> list[int | None]:
        workers = (await self.order("GET", "/status"))["workers"]
        pids = [int(worker["pid"]) for worker in workers if worker["pid"]]
        return [anonymous_bytes(pid, Path("/proc")) for pid in pids]

    async def _until_ready(self) -> None:
        async with _client(self.inference, _CALL_TIMEOUT_S) as client:
            while True:
                if self.ended:
                    raise WorkerError(f"the daemon ended with {self.ended}")
                try:
                    if (await client.get("/readyz")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass  # its sockets aren't there yet
                await asyncio.sleep(READY_POLL_S)

    def _on_exit(self, status: int) -> None:
        self._status = status

    def _write_files(self) -> None:
        policies = self.folder / "policies"
        policies.mkdir(parents=True, exist_ok=True)
        (policies / "own.yaml").write_text(self.setup.policy, encoding="utf-8")
        lines = [f"{key} = {_toml(value)}" for key, value in self._settings().items()]
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def _config(self) -> Path:
        return self.folder / "trimtab.toml"

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "model": self.setup.model,
            "models": [str(path.absolute()) for path in self.setup.models],
            "policies": str(self.folder / "policies"),
            "policy": "own",
            "state": str(self.folder / "state"),
            "cache": str(self.folder / "cache"),
            "tick": f"{self.setup.tick_s:g}s",
            "sockets.folder": str(self.folder / "run"),
            "log.format": "json",
            "log.level": "warning",
            "api.drain": "1s",
        }
        if self.setup.threads is not None:
            settings["engine.threads"] = self.setup.threads
        return settings | dict(self.setup.settings)

    def _environment(self) -> dict[str, str]:
        told_by_others = ("TRIMTAB_", "NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_")
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(told_by_others)
        }
        return own | {"TRIMTAB_CONFIG": str(self._config)}


def _client(socket: Path, timeout_s: float | None) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    return httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=timeout_s)


def _toml(value: Any) -> str:
    """A value as TOML; its strings, numbers and lists of strings are written as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _ignore(line: str) -> None:
    """What the daemon logs is kept by the process, for the case that it ends."""
