"""The demo on the tiny model: the real daemon, sockets, chats and workers.

Its variants hold the same memory, so no squeeze can move it: here the acts move it by pins. All
else is what `trimtab demo` runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from trimtab.demo.plan import MIB, Plan
from trimtab.demo.show import Cast, Props, put_on
from trimtab.demo.stage import Stage
from trimtab.errors import WorkerError

TESTS = Path(__file__).parent.parent
PLAN = Plan(
    model="tiny",
    ladder=("fp32", "int8", "int4"),
    context=1024,
    available_bytes=4096 * MIB,
    headroom_bytes=64 * MIB,
    leave_bytes=96 * MIB,
    first_squeeze_bytes=8 * MIB,
    second_squeeze_bytes=16 * MIB,
)
CAST = Cast([TESTS], PLAN, "Tiny")


class Screen:
    """Counts how often it is drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def draw(self, stage: Stage) -> None:
        self.drawn += 1


async def by_pins(props: Props) -> None:
    """fp32, int4 while some memory is held, and fp32 again, until there is something to draw."""

    async def until(condition: Callable[[], bool], what: str) -> None:
        for _ in range(100):
            if condition():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{what}; {props.stage.status}")

    async def pinned(variant: str) -> None:
        await props.daemon.order("PUT", "/pin", {"knobs": {"variant": variant}})
        await until(lambda: props.stage.variant == variant, f"{variant} did not come")

    await pinned("fp32")
    await props.squeeze.hold(16 * MIB)
    await pinned("int4")
    await props.squeeze.hold(0)
    await pinned("fp32")
    await until(lambda: len(props.stage.samples) > 5, "nobody looks")  # all may go in a second


async def test_chats_go_on_whole_while_the_variant_steps_down_and_up() -> None:
    screen = Screen()
    result, stage = await put_on(CAST, screen, by_pins)

    assert result.problems == ()
    assert result.switches_down == 1
    assert result.switches_up == 1
    assert result.streams == len(stage.chats) >= 3
    assert result.streams_broken == 0
    assert result.tokens == sum(chat.tokens for chat in stage.chats) > 0
    assert result.squeeze_bytes == 16 * MIB
    assert [told.direction for told in stage.told][-2:] == ["down", "up"]
    assert screen.drawn >= len(stage.samples) > 5


async def test_a_daemon_that_dies_is_said_and_nothing_is_left() -> None:
    seen: list[int] = []

    async def kills(props: Props) -> None:
        seen.extend([props.daemon.pid, props.squeeze.pid or 0])
        seen.extend(child.pid for child in psutil.Process(props.daemon.pid).children())
        os.kill(props.daemon.pid, signal.SIGKILL)
        await asyncio.sleep(10.0)

    with pytest.raises(WorkerError, match="the daemon ended with killed by SIGKILL"):
        await put_on(CAST, Screen(), kills)

    assert len(seen) >= 3
    assert all_gone(seen)


SCRIPT = """
import asyncio, sys
sys.path[:0] = [sys.argv[1]]
from test_demo_show import CAST, Screen
from trimtab.demo.show import put_on

async def waits(props):
    await props.squeeze.hold(16 * 2**20)
    print(props.daemon.folder, flush=True)
    await asyncio.sleep(60)

asyncio.run(put_on(CAST, Screen(), waits))
"""


def interrupted(number: signal.Signals) -> tuple[Path, list[int]]:
    """Run the demo in a process, end it by a signal; its folder and the processes it had."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(number)
        process.communicate(timeout=30)
    return folder, children


def all_gone(pids: list[int], within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(psutil.pid_exists(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_ctrl_c_leaves_no_process_and_no_folder() -> None:
    folder, children = interrupted(signal.SIGINT)

    assert len(children) >= 3
    assert all_gone(children)
    assert folder.name.startswith("trimtab-demo-")
    assert not folder.exists()


def test_a_demo_that_is_killed_takes_its_processes_with_it() -> None:
    folder, children = interrupted(signal.SIGKILL)
    gone = all_gone(children)
    for path in (folder, *Path(tempfile.gettempdir()).glob(folder.name)):
        subprocess.run(["rm", "-rf", str(path)], check=True)

    assert len(children) >= 3
    assert gone


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    own: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith("TRIMTAB_")}
    return subprocess.run(
        [sys.executable, "-m", "trimtab", "demo", *arguments],
        env=own | environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_without_a_model_the_command_that_builds_one_is_named(tmp_path: Path) -> None:
    done = command(TRIMTAB_MODELS=str(tmp_path))

    assert done.returncode == 1
    assert "there is no model smollm2-135m" in done.stderr
    assert "trimtab models build smollm2-135m" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_can_show_nothing_is_refused_before_anything_starts() -> None:
    done = command("--model", "tiny", TRIMTAB_MODELS=str(TESTS))

    assert done.returncode == 1
    assert "can't show a step down under pressure" in done.stderr
    assert done.stdout == ""
