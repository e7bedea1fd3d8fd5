"""What only a machine with memory limits and a thermal zone can show; `make test-systemd-vm`.

Runs inside systemd-box's emulated machine, ten times slower than a real one: hence the patience.
The tiny model serves for heat and for the OOM killer. MemoryHigh= needs variants that differ in
size: the real model, where it was brought.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import in_box
from in_box import BOX, DROP_INS, MODELS, ask, command, main_pid, ready, shown, status, until

TRIMTAB = ("/opt/trimtab/bin/python3", "-m", "trimtab")
REAL = Path("/srv/trimtab-vm-models")
GROUP = Path("/sys/fs/cgroup/trimtab.slice/trimtab.service")
POLICY = """\
version: 1
name: vm
description: Quick steps, for a machine that is slow.
protect: [memory, latency]
sacrifice: accuracy
limits:
  memory: {headroom: 96MiB, leave: 192MiB}
  temperature: {enter: 80C, leave: 72C}
knobs:
  context: {min: 256, max: 2048}
  pace: {min: 40%}
stability: {dwell: 5s, cooldown: 2s, switches_per_hour: 60}
handover: {down: kv, up: kv, hold_max: 120s}
"""
CONFIGURATION = """\
policy = "vm"
model = "tiny"
models = ["/var/lib/trimtab/models", "/srv/trimtab-vm-models"]
"""
MIB = 1 << 20


def heat(celsius: int) -> None:
    command("python3", str(BOX / "set-temp.py"), str(celsius))


def point() -> str:
    return str(shown("StatusText"))


def said_why() -> str:
    return command(*TRIMTAB, "why", check=False).stdout


def limit(name: str, size: str) -> None:
    print(f"     {name}={size}", flush=True)
    command("systemctl", "set-property", "--runtime", "trimtab.service", f"{name}={size}")


def number(file: str) -> int:
    return int((GROUP / file).read_text())


def working_set() -> int:
    """What the kernel can't drop first, as the daemon reckons it."""
    found = re.search(r"^inactive_file (\d+)", (GROUP / "memory.stat").read_text(), re.MULTILINE)
    assert found is not None
    return number("memory.current") - int(found.group(1))


def killed() -> int:
    found = re.search(r"^oom_kill (\d+)", (GROUP / "memory.events").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


def complete(**more: Any) -> str:
    body = {"model": status()["model"], "prompt": "A", "max_tokens": 2} | more
    code, answer = ask("POST", "/v1/completions", body)
    assert code == 200, answer
    return str(answer["choices"][0]["text"])


def the_service_starts_in_a_machine_with_limits() -> None:
    heat(40)
    command(*TRIMTAB, "install-service", "--no-start")
    shutil.copytree(BOX / "tiny", MODELS / "tiny")
    Path("/etc/trimtab/policies/vm.yaml").write_text(POLICY)
    Path("/etc/trimtab/trimtab.toml").write_text(CONFIGURATION)
    DROP_INS.mkdir(parents=True)
    (DROP_INS / "slow.conf").write_text("[Service]\nWatchdogSec=120\nTimeoutStartSec=400\n")
    command("systemctl", "daemon-reload")
    command("systemctl", "start", "trimtab.service")
    until(ready, "ready")
    print(f"     {point()}", flush=True)


def the_controller_is_protected() -> None:
    controller = Path(f"/proc/{main_pid()}")
    worker = Path(f"/proc/{status()['workers'][0]['pid']}")
    locked = re.search(r"VmLck:\s+(\d+) kB", (controller / "status").read_text())
    assert locked is not None
    print(f"     locked {int(locked.group(1)) >> 10} MiB", flush=True)

    assert (controller / "oom_score_adj").read_text().strip() == "-1000"
    assert (worker / "oom_score_adj").read_text().strip() == "1000"
    assert int(locked.group(1)) > 0
    assert number("controller/memory.low") == 96 * MIB
    assert number("controller/memory.current") > 0
    assert number("workers/memory.current") > 0


def eighty_eight_degrees_lead_to_a_step_down_and_cooling_to_one_up() -> None:
    before = status()["point"]
    heat(88)
    until(lambda: status()["point"] != before, "a step down")
    hot = status()["point"]
    print(f"     at 88 C: {point()}\n{said_why()}", flush=True)
    heat(50)
    until(lambda: status()["point"] == before, "the step back up", 600)
    print(f"     at 50 C: {point()}\n{said_why()}", flush=True)

    assert hot["pace_ratio"] < before["pace_ratio"] or hot["threads"] < before["threads"]


def at_memory_max_the_worker_is_killed_and_its_stream_goes_on() -> None:
    asked = {"max_tokens": 1500, "temperature": 0, "trimtab": {"ignore_eos": True}}
    unbroken = complete(**asked)
    controller, kills = main_pid(), killed()
    worker = status()["workers"][0]["pid"]
    sizes = {
        name: number(f"{name}memory.current") >> 20 for name in ("controller/", "workers/", "")
    }
    print(f"     MiB held: {sizes}", flush=True)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(complete, **asked)
        until(lambda: status()["running"] == 1, "a running stream")
        squeeze(kills)
        done = answer.done()
        until(lambda: not Path(f"/proc/{worker}").exists(), "the worker's end")
        print(f"     killed at {number('memory.max') >> 20} MiB; {point()}", flush=True)
        alive = main_pid() == controller and shown("ActiveState") == "active"
        (GROUP / "memory.max").write_text("max")
        text = answer.result(600)

    assert not done
    assert alive
    assert text == unbroken
    assert main_pid() == controller
    assert shown("NRestarts") == "0"


def squeeze(kills: int) -> None:
    """Lower memory.max until the kernel kills: faster than the daemon could step down by itself."""
    size = number("memory.current")
    while killed() == kills:
        size -= 2 * MIB
        assert size > 0
        (GROUP / "memory.max").write_text(str(size))


def at_memory_high_the_daemon_steps_down_by_itself() -> None:
    assert REAL.is_dir(), "the real model was not brought"
    text = CONFIGURATION.replace('"tiny"', '"smollm2-135m"')
    Path("/etc/trimtab/trimtab.toml").write_text(text)
    command("systemctl", "restart", "trimtab")
    until(ready, "ready with the real model", 900)
    before = status()["point"]["variant"]
    print(f"     {point()}, in all {number('memory.current') >> 20} MiB", flush=True)
    kills = killed()
    limit("MemoryHigh", str(working_set() + 40 * MIB))
    until(lambda: status()["point"]["variant"] != before and ready(), "a step down", 900)
    print(f"     {point()}, in all {number('memory.current') >> 20} MiB\n{said_why()}", flush=True)
    complete()

    assert killed() == kills
    limit("MemoryHigh", "infinity")


def oom_lines() -> str:
    """What the kernel's OOM killer looked at."""
    said = command("dmesg", check=False).stdout.splitlines()
    wanted = re.compile(r"oom|Killed process|Memory cgroup|\[ *\d+\] +\d+ +\d+ ")
    return "\n".join([line for line in said if wanted.search(line)][-40:])


STEPS: list[Callable[[], None]] = [
    the_service_starts_in_a_machine_with_limits,
    the_controller_is_protected,
    eighty_eight_degrees_lead_to_a_step_down_and_cooling_to_one_up,
    at_memory_max_the_worker_is_killed_and_its_stream_goes_on,
    at_memory_high_the_daemon_steps_down_by_itself,
]


def main() -> int:
    in_box.PATIENCE_S = 400.0
    in_box.POLL_S = 2.0  # each look is work for an emulated processor
    failed = 0
    for step in STEPS:
        name = step.__name__.replace("_", " ")
        began_s = time.monotonic()
        try:
            step()
        except Exception:
            failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
            said = subprocess.run(
                ["journalctl", "-u", "trimtab", "-n", "40", "--no-pager", "-o", "cat"],
                capture_output=True,
                text=True,
                check=False,
            )
            print(said.stdout, oom_lines(), flush=True)
        else:
            print(f"ok   {name} ({time.monotonic() - began_s:.0f} s)", flush=True)
    print(f"{len(STEPS) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
