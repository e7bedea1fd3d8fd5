"""Memory: how much there is, who limits it, and how pressure will be seen."""

from __future__ import annotations

from trimtab.domain.readings import Quality
from trimtab.sensors.checkup.finding import Finding, Level, Machine
from trimtab.sensors.psi_trigger import PsiTrigger, TriggerUnavailableError
from trimtab.telemetry.words import size

_SMALL_BYTES = 1 << 30


def memory(machine: Machine) -> Finding:
    """What could be given to a model now, with the arithmetic."""
    total, available = machine.value("memory.total"), machine.reading("memory.available")
    if total is None or available is None or available.value is None:
        reason = available.reason if available is not None else "not read"
        return Finding(
            "memory",
            Level.BAD,
            f"available memory can't be read: {reason}",
            "trimtab steers by it; mount /proc into the container.",
        )
    if available.quality is not Quality.GOOD:
        return Finding(
            "memory", Level.WARNING, f"available memory is {available.quality}: {available.reason}"
        )
    told = f"{size(total)}, {size(available.value)} of it available"
    if available.value < _SMALL_BYTES:
        return Finding(
            "memory",
            Level.WARNING,
            f"{told} ({available.reason})",
            "Little for a model: see what others take, or a variant in int4.",
        )
    return Finding("memory", Level.GOOD, told)


def limits(machine: Machine) -> Finding:
    """Whether a control group bounds the daemon, which a supervisor may have set."""
    limit, use = machine.reading("memory.limit"), machine.value("memory.working_set")
    if limit is None or limit.value is None:
        return Finding("limits", Level.GOOD, "no control group limits our memory")
    told = f"{limit.reason} limits us to {size(limit.value)}"
    if use is not None:
        told += f", {size(use)} of it in use"
    return Finding("limits", Level.GOOD, told)


def pressure(machine: Machine) -> Finding:
    """Whether stalls can be seen, and whether the kernel would wake us."""
    reading = machine.reading("memory.psi.some_avg10")
    if reading is None or reading.value is None:
        return Finding(
            "pressure",
            Level.WARNING,
            f"memory stalls can't be seen: {reading.reason if reading else 'not read'}",
            "Add psi=1 to the kernel's command line; rules on memory.psi.* don't fire without.",
        )
    if not machine.roots.real:
        return Finding("pressure", Level.GOOD, "PSI is on")
    try:
        trigger = PsiTrigger(machine.roots)
    except TriggerUnavailableError as error:
        return Finding(
            "pressure", Level.NOTE, f"PSI is on, without triggers ({error}); polling does as well"
        )
    window_s = trigger.window_us / 1e6
    trigger.close()
    return Finding("pressure", Level.GOOD, f"PSI is on, triggers with windows of {window_s:g} s")


def swap(machine: Machine) -> Finding:
    """Swap hides pressure until everything stalls."""
    total = machine.value("memory.swap.total") or 0.0
    rate = machine.value("memory.swap.in_rate") or 0.0
    if not total:
        return Finding("swap", Level.GOOD, "no swap: pressure shows at once")
    zram = machine.value("memory.zram.used")
    kind = "zram" if zram else "swap"
    told = f"{size(total)} of {kind}, {size(machine.value('memory.swap.free') or 0.0)} free"
    if rate > 0:
        return Finding(
            "swap",
            Level.WARNING,
            f"{told}; {size(rate)}/s come back from it now",
            "The machine works on more than it has. A rule on memory.swap.in_rate sees it early.",
        )
    return Finding("swap", Level.GOOD, told)
