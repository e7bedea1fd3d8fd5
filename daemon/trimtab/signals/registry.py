"""Every signal that rules and people can see, with unit, source and meaning.

Adding a signal is one entry in the module of its area, one sensor that yields it, and a run of
``trimtab signals --markdown`` for the reference in docs/signals.md.
"""

from __future__ import annotations

from typing import Final

from trimtab.domain.readings import Unit
from trimtab.signals.device_signals import DISK, GPU, LOAD, POWER, THERMAL
from trimtab.signals.memory_signals import MEMORY
from trimtab.signals.service_signals import KV, LATENCY
from trimtab.signals.spec import SignalSpec

_SPECS: Final = (*MEMORY, *THERMAL, *LOAD, *POWER, *DISK, *GPU, *LATENCY, *KV)

SIGNALS: Final[dict[str, SignalSpec]] = {spec.name: spec for spec in _SPECS}

# Families whose members depend on the machine or its owner: a zone's type, a pushed signal's name.
# name prefix -> unit of the members
DYNAMIC_PREFIXES: Final[dict[str, Unit | None]] = {
    "temperature.zone.": Unit.CELSIUS,
    "temperature.hwmon.": Unit.CELSIUS,
    "latency.variant.": Unit.SECONDS,
    "custom.": None,
}


def unit_of(signal: str) -> Unit | None:
    """The unit of a signal; None for one that is unknown or whose owner declares it."""
    spec = SIGNALS.get(signal)
    if spec is not None:
        return spec.unit
    for prefix, unit in DYNAMIC_PREFIXES.items():
        if signal.startswith(prefix):
            return unit
    return None


__all__ = ["DYNAMIC_PREFIXES", "SIGNALS", "SignalSpec", "unit_of"]
