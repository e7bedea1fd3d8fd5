"""Where `trimtab top` gets its scenes: asked for in the background, so that keys never wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from trimtab.api.client import PREFIX, Client, connect
from trimtab.cli.top_scene import Scene, merged, points_of, policy_of, rows_of
from trimtab.config.load import Loaded
from trimtab.domain.clock import Clock
from trimtab.errors import TrimtabError
from trimtab.policy.compiled import Policy
from trimtab.serving.control import PolicyView, StatusView

PERIOD_S: Final = 1.0
POINTS_EVERY: Final = 2  # looks; they change slowly and cost the daemon most
DECISIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Answers:
    """What the daemon said, as it came, for programs."""

    status: dict[str, Any]
    signals: list[dict[str, Any]]
    points: list[dict[str, Any]]
    decisions: list[dict[str, Any]]


def ask(client: Client) -> Answers:
    """Everything, once."""
    return Answers(
        status=client.get(f"{PREFIX}/status"),
        signals=client.get(f"{PREFIX}/signals")["signals"],
        points=client.get(f"{PREFIX}/points")["points"],
        decisions=client.get(f"{PREFIX}/decisions", limit=DECISIONS)["decisions"],
    )


def scene_of(answers: Answers, policy: Policy | None, at_s: float) -> Scene:
    """Answers as values.

    Raises:
        TrimtabError: The daemon is of another version, whose answers mean something else.
    """
    with _Understood():
        return Scene(
            status=msgspec.convert(answers.status, StatusView),
            signals=rows_of(answers.signals),
            points=points_of(answers.points),
            decisions=tuple(answers.decisions),
            policy=policy,
            at_s=at_s,
        )


def policy_in_force(client: Client, view: PolicyView) -> Policy | None:
    """The policy's values as the daemon tells them; None if they are of another one by now."""
    told = client.get(f"{PREFIX}/policy/values")
    policy = policy_of(told["values"]) if told["revision"] == view.revision else None
    return None if policy is None else replace(policy, revision=view.revision)


class Feed:
    """Keeps a scene up to date, and goes on trying while the daemon is away.

    Args:
        settings: The configuration; names the sockets.
        clock: Time.
        nudge: Called from another thread when there is something new.
    """

    def __init__(self, settings: Loaded, clock: Clock, nudge: Callable[[], None]) -> None:
        self._settings = settings
        self._clock = clock
        self._nudge = nudge
        self._lock = threading.Lock()
        self._scene = Scene()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._again, args=(work,), daemon=True, name=work.__name__)
            for work in (self._look, self._follow)
        ]

    @property
    def scene(self) -> Scene:
        """The newest."""
        with self._lock:
            return self._scene

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask no more; a question that is under way ends with the process."""
        self._ending.set()

    def _again(self, work: Callable[[], None]) -> None:
        """Work until the end: what breaks is shown, and tried again."""
        while not self._ending.is_set():
            try:
                work()
            except TrimtabError as error:
                self._failed(work, error.message, error.hint)
            except Exception as error:  # a thread that ends would leave a screen that looks alive
                self._failed(work, f"this is a fault of `trimtab top`: {error!r}", "")
            self._ending.wait(PERIOD_S)

    def _failed(self, work: Callable[[], None], fault: str, hint: str) -> None:
        """Tell it once: the thread that looks meets whatever the other one does."""
        if work == self._look:
            self._change(fault=fault, hint=hint)

    def _look(self) -> None:
        """Ask for the state every second, over one connection."""
        with connect(self._settings) as client:
            first = client.get(f"{PREFIX}/decisions", limit=DECISIONS)["decisions"]
            self._change(decisions=tuple(first))
            looks = 0
            while not self._ending.is_set():
                client.check()
                status = client.get(f"{PREFIX}/status")
                changes: dict[str, Any] = {"at_s": self._clock.monotonic_s(), "fault": ""}
                signals = client.get(f"{PREFIX}/signals")["signals"]
                with _Understood():
                    changes["status"] = view = msgspec.convert(status, StatusView)
                    changes["signals"] = rows_of(signals)
                    if looks % POINTS_EVERY == 0:
                        changes["points"] = points_of(client.get(f"{PREFIX}/points")["points"])
                known = self.scene.policy
                if known is None or known.revision != view.policy.revision:
                    changes["policy"] = policy_in_force(client, view.policy)
                self._change(**changes)
                self._decided(view.last_decision)
                looks += 1
                self._ending.wait(PERIOD_S)

    def _follow(self) -> None:
        """Take in each decision when it is made, and again when its outcome is known."""
        with connect(self._settings) as client:
            for record in client.events("GET", f"{PREFIX}/decisions/stream"):
                self._decided(record)

    def _decided(self, record: Mapping[str, Any] | None) -> None:
        if record is None:
            return
        with self._lock:
            decisions = merged(self._scene.decisions, (record,), DECISIONS)
            new = decisions != self._scene.decisions
            self._scene = replace(self._scene, decisions=decisions)
        if new:
            self._nudge()

    def _change(self, **changes: Any) -> None:
        with self._lock:
            self._scene = replace(self._scene, **changes)
        self._nudge()


class _Understood:
    """Turns an answer of another shape into an error that says so."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, msgspec.ValidationError):
            raise TrimtabError(
                f"this daemon's answers are of another version: {error}",
                hint="Use the `trimtab` command that came with it.",
                code="other_version",
            ) from error
