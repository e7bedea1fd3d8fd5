"""The controller's groups, its memory and its score, on made trees and in a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.runtime.control_group import PROTECTED_BYTES, WORKERS_VARIABLE, separate
from trimtab.runtime.residence import avoid_oom_killer

UNIT = "trimtab.slice/trimtab.service"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`/proc` and `/sys` of a process in trimtab.service, which systemd has delegated."""
    monkeypatch.setenv(WORKERS_VARIABLE, "")
    own = tmp_path / "proc/self"
    own.mkdir(parents=True)
    (own / "mountinfo").write_text("30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
    (own / "cgroup").write_text(f"0::/{UNIT}\n")
    group = tmp_path / "sys/fs/cgroup" / UNIT
    group.mkdir(parents=True)
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    os.setxattr(group, "user.delegate", b"1")
    return tmp_path


def separated(tree: Path) -> str:
    return separate(tree / "proc", tree / "sys")


def test_the_controller_gets_a_leaf_and_the_workers_another(tree: Path) -> None:
    reason = separated(tree)
    group = tree / "sys/fs/cgroup" / UNIT

    assert reason == ""
    assert (group / "controller/cgroup.procs").read_text() == "0"
    assert (group / "controller/memory.low").read_text() == str(PROTECTED_BYTES)
    assert (group / "cgroup.subtree_control").read_text() == "+memory"
    assert os.environ[WORKERS_VARIABLE] == str(group / "workers")


def test_without_a_memory_controller_there_are_groups_all_the_same(tree: Path) -> None:
    group = tree / "sys/fs/cgroup" / UNIT
    (group / "cgroup.controllers").write_text("\n")
    reason = separated(tree)

    assert reason == ""
    assert (group / "workers").is_dir()
    assert not (group / "cgroup.subtree_control").exists()


def test_a_group_that_is_not_delegated_is_left_alone(tree: Path) -> None:
    group = tree / "sys/fs/cgroup" / UNIT
    os.removexattr(group, "user.delegate")
    reason = separated(tree)

    assert "isn't delegated" in reason
    assert not (group / "controller").exists()


def test_in_its_own_leaf_already_it_stays(tree: Path) -> None:
    separated(tree)
    (tree / "proc/self/cgroup").write_text(f"0::/{UNIT}/controller\n")

    assert "isn't delegated" in separated(tree)


def test_a_machine_without_version_2_says_so(tree: Path) -> None:
    (tree / "proc/self/mountinfo").write_text("")

    assert separated(tree) == "there is no control group of version 2"


@pytest.mark.parametrize(
    ("before", "after"), [("0", "-1000"), ("-1000", "-1000"), ("200", "-1000")]
)
def test_the_score_is_only_ever_lowered(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/oom_score_adj").write_text(before)
    reason = avoid_oom_killer(tmp_path)

    assert reason == ""
    assert (tmp_path / "self/oom_score_adj").read_text() == after


LOCK = """
import resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
from trimtab.runtime.residence import lock_memory
print(lock_memory())
kept = bytearray(32 << 20)  # would fail if the limit counted
"""


def test_under_a_limit_nothing_is_locked() -> None:
    done = subprocess.run([sys.executable, "-c", LOCK], capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "locked memory is limited to 65536 bytes (LimitMEMLOCK=)\n"
