"""Which board this is, its cores, and its temperatures."""

from __future__ import annotations

import os

import psutil

from trimtab.domain.readings import Quality
from trimtab.sensors.board import GENERIC
from trimtab.sensors.checkup.finding import Finding, Level, Machine


def board(machine: Machine) -> Finding:
    """The profile that was taken, and by what."""
    profile, name = machine.board, machine.identity.model
    if profile.name != GENERIC:
        who = f"{name}: " if name else ""
        return Finding("board", Level.GOOD, f"{who}profile {profile.name}")
    told = f"{name} has no profile of its own" if name else "nothing says which board this is"
    return Finding(
        "board",
        Level.NOTE,
        f"{told}; the generic profile takes every plausible thermal zone",
        "Name one with sensors.board in the configuration, or write one: docs/signals.md.",
    )


def cores(machine: Machine) -> Finding:
    """How many cores there are, and whether others take them."""
    logical = len(os.sched_getaffinity(0))
    physical = psutil.cpu_count(logical=False) or logical
    told = f"{logical} cores may be used" + (
        f" ({physical} physical)" if physical != logical else ""
    )
    stolen = machine.value("cpu.steal") or 0.0
    others = machine.value("cpu.others") or 0.0
    if stolen > 0.05:
        return Finding(
            "cores",
            Level.WARNING,
            f"{told}; the hypervisor takes {stolen:.0%} of their time",
            "Engine threads wait for the slowest: leave a core free with knobs.threads.",
        )
    if others > 0.5:
        return Finding("cores", Level.NOTE, f"{told}; other programs take {others:.0%} of them now")
    return Finding("cores", Level.GOOD, told)


def temperature(machine: Machine) -> Finding:
    """Whether heat can be seen at all, and by which zone."""
    reading = machine.reading("temperature.max")
    if reading is None or reading.quality is Quality.ABSENT:
        return Finding(
            "heat",
            Level.NOTE,
            "there is no thermal zone and no temperature in hwmon: rules on heat never fire",
            "On a board that has sensors, load their driver: `modprobe coretemp` or `k10temp`.",
        )
    if reading.value is None or reading.quality is not Quality.GOOD:
        return Finding(
            "heat",
            Level.WARNING,
            f"the temperature is {reading.quality}: {reading.reason}",
            "Choose other zones in a board profile: `trimtab signals temperature` lists them.",
        )
    headroom = machine.value("temperature.headroom")
    told = f"{reading.value:.0f} °C ({reading.reason})"
    if headroom is None:
        return Finding("heat", Level.NOTE, f"{told}; no trip point is known")
    level = Level.GOOD if headroom > 10 else Level.WARNING
    told += f", {headroom:.0f} °C below the first trip point"
    return Finding("heat", level, told, "" if level is Level.GOOD else "Cool it, or lower pace.")


def throttling(machine: Machine) -> Finding:
    """Whether the board is being slowed down, and whether that could be seen."""
    reading = machine.reading("cpu.throttled")
    if reading is None or reading.value is None:
        return Finding("throttling", Level.NOTE, "nothing here would tell if the cores slow down")
    if machine.value("power.undervoltage"):
        return Finding(
            "throttling",
            Level.WARNING,
            "the supply's voltage is too low, and the firmware slows the cores down",
            "Use a stronger power supply and a shorter cable.",
        )
    if reading.value:
        return Finding("throttling", Level.WARNING, f"slowed down now: {reading.reason}")
    return Finding("throttling", Level.GOOD, "not slowed down")


def hanging(machine: Machine) -> Finding:
    """Sensors that don't answer."""
    if not machine.hung:
        return Finding("sensors", Level.GOOD, "all sensors answer in time")
    return Finding(
        "sensors",
        Level.WARNING,
        f"{len(machine.hung)} files don't answer, first {machine.hung[0]}",
        "They are left out. A driver is stuck; the kernel's log may tell: `dmesg`.",
    )
