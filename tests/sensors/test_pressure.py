"""PSI where it is, where it is off, and as a trigger."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
from sensor_trees import PRESSURE, Ticker, Tree

from trimtab.domain.readings import Quality
from trimtab.sensors import SensorConfig
from trimtab.sensors.psi import PressureSensor, parse_pressure
from trimtab.sensors.psi_trigger import PsiTrigger, TriggerUnavailableError
from trimtab.sensors.source import Roots, explain

Start = Callable[[SensorConfig], Ticker]


def test_percentages_become_ratios_and_microseconds_seconds() -> None:
    some, full = parse_pressure(PRESSURE)

    assert some.averages == (0.125, 0.04, 0.01)
    assert (full.kind, full.total_s) == ("full", 1.0)


def test_the_kernel_of_5_2_to_5_12_has_no_full_line_for_the_cpu(tree: Tree, start: Start) -> None:
    tree.put("proc/pressure/cpu", "some avg10=0.50 avg60=0.00 avg300=0.00 total=5\n")

    readings = start(tree.config()).readings()

    assert readings["cpu.psi.some_avg10"].value == 0.005


def test_an_absent_pressure_file_is_no_failure_and_says_what_stands_in(
    tree: Tree, start: Start
) -> None:
    (tree.proc / "pressure/memory").unlink()

    reading = start(tree.config()).readings()["memory.psi.some_avg10"]

    assert (reading.value, reading.quality) == (None, Quality.ABSENT)
    assert "psi=1" in reading.reason
    assert "slope" in reading.reason


class SwitchedOffFile:
    """Opens, and answers each read as a kernel with PSI compiled in and switched off."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> bytes:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported", self.path)

    def close(self) -> None:
        pass


def test_a_pressure_file_that_opens_and_answers_eopnotsupp_means_that_psi_is_off(
    tree: Tree,
) -> None:
    # home-assistant/operating-system#4616, raspberrypi/linux#4683
    sensor = PressureSensor(Roots(tree.proc, tree.sys), SwitchedOffFile)

    readings = list(sensor.read(1.0))

    assert {reading.quality for reading in readings} == {Quality.ABSENT}
    assert "psi=1" in readings[0].reason
    assert explain(OSError(errno.EOPNOTSUPP, "no", "/x"))[1] == "/x: no (EOPNOTSUPP)"


def test_a_pressure_file_without_averages_is_refused() -> None:
    with pytest.raises(ValueError, match="avg60"):
        parse_pressure("some avg10=0.00 total=0\n")
    with pytest.raises(ValueError, match="empty"):
        parse_pressure("")


def test_the_share_since_the_last_tick_follows_from_the_total(tree: Tree, start: Start) -> None:
    ticker = start(tree.config())
    ticker.tick()

    tree.put("proc/pressure/memory", PRESSURE.replace("total=5000000", "total=5250000"))
    now = ticker.tick().value("memory.psi.some_now")
    later = ticker.tick().value("memory.psi.some_now")

    assert now == pytest.approx(0.25)
    assert later == 0.0


def test_our_own_groups_pressure_is_a_signal_of_its_own(tree: Tree, start: Start) -> None:
    tree.cgroup2("/app")
    tree.level2("app", limit="max", current=0, inactive=0)
    tree.put("sys/fs/cgroup/app/memory.pressure", PRESSURE.replace("12.50", "40.00"))

    readings = start(tree.config()).readings()

    assert readings["memory.psi.own.some_avg10"].value == 0.4
    assert readings["memory.psi.some_avg10"].value == 0.125


class RefusingKernel:
    """Takes a pipe for the pressure file, and only windows of two seconds."""

    def __init__(self, *, never: bool = False) -> None:
        self.never = never
        self.asked: list[str] = []
        self.closed = 0

    def open(self, path: str) -> int:
        return os.open("/proc/pressure/memory", os.O_RDONLY)

    def write(self, fd: int, text: bytes) -> None:
        self.asked.append(text.decode())
        if self.never or not text.endswith(b" 2000000\0"):
            raise OSError(errno.EINVAL, "Invalid argument")

    def close(self, fd: int) -> None:
        self.closed += 1
        os.close(fd)


def test_a_window_that_the_kernel_refuses_is_followed_by_the_next_longer_one() -> None:
    kernel = RefusingKernel()
    trigger = PsiTrigger(Roots(), stall_ratio=0.1, kernel=kernel)

    window_us = trigger.window_us
    trigger.close()

    assert window_us == 2_000_000
    assert kernel.asked[-1] == "some 200000 2000000\0"
    assert kernel.closed == 3


def test_without_any_window_there_is_no_trigger_and_nothing_left_open() -> None:
    kernel = RefusingKernel(never=True)

    with pytest.raises(TriggerUnavailableError, match="takes no trigger"):
        PsiTrigger(Roots(), kernel=kernel)
    assert kernel.closed == 3


def test_a_machine_without_psi_has_no_trigger(tree: Tree) -> None:
    (tree.proc / "pressure/memory").unlink()

    with pytest.raises(TriggerUnavailableError, match="No such file"):
        PsiTrigger(Roots(tree.proc, tree.sys))


def test_this_kernel_takes_a_trigger_and_it_does_not_fire_by_itself() -> None:
    trigger = PsiTrigger(Roots(), stall_ratio=0.9, kind="full")

    fired = trigger.wait(timeout_s=0.2)
    trigger.close()

    assert not fired
