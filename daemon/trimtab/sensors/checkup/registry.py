"""All checks. Adding one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trimtab.sensors.checkup import board_checks, disk_checks, memory_checks, process_checks
from trimtab.sensors.checkup.finding import Finding, Level, Machine

CHECKS: Final[dict[str, Callable[[Machine], Finding]]] = {
    "board": board_checks.board,
    "cores": board_checks.cores,
    "memory": memory_checks.memory,
    "limits": memory_checks.limits,
    "pressure": memory_checks.pressure,
    "swap": memory_checks.swap,
    "heat": board_checks.temperature,
    "throttling": board_checks.throttling,
    "sensors": board_checks.hanging,
    "kv": process_checks.kv_memory,
    "locked": process_checks.locked_memory,
    "oom": process_checks.oom_protection,
    "files": process_checks.descriptors,
    "disk": disk_checks.disk,
    "models": disk_checks.models,
}


def examine(machine: Machine) -> list[Finding]:
    """Runs all checks; one that fails itself is a finding too."""
    findings = []
    for name, check in CHECKS.items():
        try:
            findings.append(check(machine))
        except Exception as error:  # the supervising loop: one bad check must not hide the others
            findings.append(Finding(name, Level.WARNING, f"the check itself failed: {error}"))
    return findings
