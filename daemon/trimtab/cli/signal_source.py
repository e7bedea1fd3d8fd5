"""Where `trimtab signals` and `trimtab record` get their readings: the daemon's, or the machine's.

A running daemon is asked, since only it knows latency and pushed signals. Without one, or when
another tree than /proc and /sys is named, the sensors are read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from trimtab.api.client import PREFIX, Client, connect
from trimtab.config.load import Loaded
from trimtab.config.origins import OriginKind
from trimtab.domain.clock import Clock
from trimtab.domain.readings import Quality
from trimtab.errors import NotRunningError
from trimtab.policy.compiled import Policy
from trimtab.policy.load import load_policy
from trimtab.policy.possible import signals_of
from trimtab.sensors import SensorSuite
from trimtab.sensors.configured import sensor_config

SETTLE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One signal as people see it.

    Attributes:
        name: Its name.
        value: In the unit.
        unit: Empty if nobody knows it.
        quality: Whether it can be trusted.
        reason: Why not, or how the value came about.
        age_s: Since when it is so.
        watched_by: Rules and limits that look at it.
    """

    name: str
    value: float | None
    unit: str
    quality: Quality
    reason: str
    age_s: float
    watched_by: tuple[str, ...] = ()


class SignalSource(Protocol):
    """Gives all signals of now."""

    @property
    def told_by(self) -> str:
        """Who tells: for people."""

    def rows(self) -> list[SignalRow]:
        """All signals, by name.

        Raises:
            TrimtabError: The daemon went away or refuses.
        """

    def close(self) -> None:
        """Lets go of what it holds."""


class DaemonSource:
    """The signals that a running daemon sees.

    Args:
        client: A connection to it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.told_by = "the daemon"

    def policy_name(self) -> str:
        """The policy in force."""
        return str(self._client.get(f"{PREFIX}/status")["policy"]["name"])

    def rows(self) -> list[SignalRow]:
        """All signals (see `SignalSource`)."""
        return msgspec.convert(self._client.get(f"{PREFIX}/signals")["signals"], list[SignalRow])

    def close(self) -> None:
        """Ends the connection."""
        self._client.__exit__(None, None, None)


class DirectSource:
    """The signals that this machine's sensors give, read here.

    Args:
        settings: The configuration.
        clock: Time.
    """

    def __init__(self, settings: Loaded, clock: Clock) -> None:
        self._suite = SensorSuite(sensor_config(settings.config))
        self._clock = clock
        self._first = True
        self.told_by = f"read directly, board profile {self._suite.board.name}"

    def rows(self) -> list[SignalRow]:
        """All signals; the first call waits for the slow sensors."""
        if self._first:
            self._suite.snapshot(self._clock.monotonic_s(), self._clock.wall_s())
            self._suite.settle(SETTLE_S)
            self._first = False
        now = self._clock.monotonic_s()
        snapshot = self._suite.snapshot(now, self._clock.wall_s())
        return [
            SignalRow(
                name,
                reading.value,
                str(self._suite.unit_of(name) or ""),
                reading.quality,
                reading.reason,
                max(0.0, now - reading.at_s),
            )
            for name, reading in sorted(snapshot.readings.items())
        ]

    def close(self) -> None:
        """Closes the sensors."""
        self._suite.close()


def open_source(settings: Loaded, clock: Clock, *, direct: bool) -> SignalSource:
    """The daemon if one runs, else this machine's sensors.

    Args:
        settings: The configuration.
        clock: Time.
        direct: True: don't ask the daemon.
    """
    roots = ("sensors.proc_root", "sensors.sys_root")
    told = any(settings.origins[root].kind is OriginKind.FLAG for root in roots)
    if not direct and not told:
        try:
            return DaemonSource(connect(settings))
        except NotRunningError:
            pass
    return DirectSource(settings, clock)


def watchers(settings: Loaded, source: SignalSource) -> dict[str, tuple[str, ...]]:
    """Which parts of the policy look at each signal; empty if the policy can't be read.

    Args:
        settings: The configuration; names the policy folder.
        source: The daemon knows which policy is in force.
    """
    name = source.policy_name() if isinstance(source, DaemonSource) else settings.config.policy
    result = load_policy(name, settings.config.policies, device=None)
    return watched_signals(result.policy) if result.policy is not None else {}


def watched_signals(policy: Policy) -> dict[str, tuple[str, ...]]:
    """Signal names with the limits, objectives and rules of a policy that look at them."""
    found: dict[str, list[str]] = {}

    def look(signal: str, who: str) -> None:
        names = found.setdefault(signal, [])
        if who not in names:
            names.append(who)

    if policy.memory is not None:
        look("memory.available", "memory limit")
    if policy.temperature is not None:
        look("temperature.max", "temperature limit")
    if policy.slo.ttft_p95_s is not None:
        look("latency.ttft_p95", "slo ttft_p95")
    if policy.slo.tpot_p95_s is not None:
        look("latency.tpot_p95", "slo tpot_p95")
    for rule in policy.rules:
        for condition in (*signals_of(rule.when), *signals_of(rule.leave)):
            look(condition.signal, rule.name)
    return {signal: tuple(names) for signal, names in found.items()}


def with_watchers(rows: list[SignalRow], watched: Mapping[str, tuple[str, ...]]) -> list[SignalRow]:
    """The rows with who looks at each."""
    return [replace(row, watched_by=watched.get(row.name, ())) for row in rows]
