"""Pages that come and go: swap traffic, faults that wait for a disk, kills by the kernel."""

from __future__ import annotations

import os
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.cgroups import stat_field
from trimtab.sensors.files import HeldFile
from trimtab.sensors.source import Roots
from trimtab.signals.estimators import Rate

_RATES: Final = (
    ("memory.swap.in_rate", b"pswpin", True),
    ("memory.swap.out_rate", b"pswpout", True),
    ("memory.major_faults", b"pgmajfault", False),
)


class PagingSensor:
    """Rates from `/proc/vmstat`.

    Args:
        roots: Where `/proc` is.
    """

    signals = (*(signal for signal, _, _ in _RATES), "memory.oom_kills")

    def __init__(self, roots: Roots) -> None:
        self._vmstat = HeldFile(f"{roots.proc}/vmstat")
        self._rates = {signal: Rate() for signal in self.signals}
        self._page_bytes = os.sysconf("SC_PAGESIZE")

    def read(self, at_s: float) -> list[Reading]:
        """The rates since the last tick, and the kills since boot."""
        text = self._vmstat.read()
        if b"pgmajfault " not in text:
            raise ValueError(f"{self._vmstat.path} has no pgmajfault")
        readings = []
        for signal, key, pages in _RATES:
            rate = self._rates[signal].add(at_s, stat_field(text, key))
            if rate is None:
                reason = "needs a second tick"
                readings.append(Reading(signal, None, at_s, Quality.ABSENT, reason))
            else:
                readings.append(Reading(signal, rate * (self._page_bytes if pages else 1), at_s))
        if b"\noom_kill " in text:  # since 4.13
            readings.append(Reading("memory.oom_kills", float(stat_field(text, b"oom_kill")), at_s))
        return readings

    def close(self) -> None:
        """Closes the file."""
        self._vmstat.close()
