"""The kernel's hint makes the daemon look at once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from trimtab.runtime.pressure import PressureHint, watch_pressure
from trimtab.sensors.source import Roots


class PipeTrigger:
    """A trigger that a test fires."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK)
        self.closed = False

    def fire(self) -> None:
        os.write(self._write, b"!")

    def fileno(self) -> int:
        return self._read

    def fired(self) -> bool:
        return bool(os.read(self._read, 100))

    def close(self) -> None:
        self.closed = True
        os.close(self._read)
        os.close(self._write)


async def test_a_trigger_that_fires_makes_one_look_each_time() -> None:
    looks: list[int] = []
    trigger = PipeTrigger()
    hint = PressureHint(trigger, lambda: looks.append(1))
    await asyncio.sleep(0)
    before = len(looks)

    for _ in range(2):
        trigger.fire()
        await asyncio.sleep(0.01)
    hint.close()

    assert (before, len(looks)) == (0, 2)
    assert trigger.closed


async def test_the_kernel_of_this_machine_gives_a_hint_that_can_be_taken_off() -> None:
    hint = watch_pressure(Roots(), lambda: None)

    assert hint is not None
    hint.close()


async def test_a_tree_for_tests_has_no_triggers(tmp_path: Path) -> None:
    assert watch_pressure(Roots(tmp_path, tmp_path), lambda: None) is None
