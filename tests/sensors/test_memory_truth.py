"""The memory cases from the field: whose limit counts, and what counts as use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sensor_trees import GIB, MIB, Ticker, Tree

from trimtab.domain.readings import Quality
from trimtab.sensors import SensorConfig
from trimtab.sensors.meminfo import parse_meminfo

Start = Callable[[SensorConfig], Ticker]
AVAILABLE = 4000000 * 1024


def test_page_cache_in_a_group_does_not_count_as_used(tree: Tree, start: Start) -> None:
    tree.cgroup2("/app.slice/trimtab.service")
    tree.level2("app.slice/trimtab.service", limit=GIB, current=900 * MIB, inactive=700 * MIB)

    readings = start(tree.config()).readings()

    assert readings["memory.available"].value == GIB - 200 * MIB
    assert readings["memory.working_set"].value == 200 * MIB


@pytest.mark.parametrize("limit", ["max", 1 << 62, 9223372036854771712, 9223372036854710272])
def test_without_a_finite_limit_memavailable_alone_counts(
    tree: Tree, start: Start, limit: object
) -> None:
    tree.cgroup2("/app")
    tree.level2("app", limit=limit, current=7 * GIB, inactive=0)

    readings = start(tree.config()).readings()

    assert readings["memory.available"].value == AVAILABLE
    assert readings["memory.limit"].quality is Quality.ABSENT


def test_memfree_is_never_taken_for_available_memory(tree: Tree, start: Start) -> None:
    readings = start(tree.config()).readings()

    assert readings["memory.available"].value == AVAILABLE  # MemFree is 300000 kB


def test_the_machine_counts_when_it_has_less_than_the_group_leaves(
    tree: Tree, start: Start
) -> None:
    tree.cgroup2("/app")
    tree.level2("app", limit=16 * GIB, current=GIB, inactive=0)

    available = start(tree.config()).readings()["memory.available"]

    assert available.value == AVAILABLE
    assert available.reason.startswith("smallest of 2: MemAvailable")


@pytest.mark.parametrize("tight", ["", "a", "a/b", "a/b/c"])
def test_the_limit_of_every_level_up_to_the_root_counts(
    tree: Tree, start: Start, tight: str
) -> None:
    tree.cgroup2("/a/b/c")
    for level in ("", "a", "a/b", "a/b/c"):
        tree.level2(level, limit="max", current=GIB, inactive=0)
    tree.level2(tight, limit=2 * GIB, current=GIB + 64 * MIB, inactive=64 * MIB)

    available = start(tree.config()).readings()["memory.available"]

    assert available.value == GIB
    assert f"/{tight}: memory.max 2048 MiB" in available.reason


@pytest.mark.parametrize("tight", ["", "a", "a/b"])
def test_version_1_limits_count_at_every_level_too(tree: Tree, start: Start, tight: str) -> None:
    tree.cgroup1("/a/b")
    for level in ("", "a", "a/b"):
        tree.level1(level, limit=9223372036854771712, usage=GIB, inactive=0)
    tree.level1(tight, limit=2 * GIB, usage=GIB + 64 * MIB, inactive=64 * MIB)

    available = start(tree.config()).readings()["memory.available"]

    assert available.value == GIB
    assert "memory.limit_in_bytes" in available.reason


def test_a_version_1_parent_that_does_not_charge_its_children_does_not_bound_them(
    tree: Tree, start: Start
) -> None:
    tree.cgroup1("/a/b")
    tree.level1("", limit=9223372036854771712, usage=0, inactive=0)
    tree.level1("a", limit=64 * MIB, usage=0, inactive=0, hierarchy=0)
    tree.level1("a/b", limit=GIB, usage=0, inactive=0)

    readings = start(tree.config()).readings()

    assert readings["memory.available"].value == GIB


def test_memory_high_limits_what_is_available_but_not_the_distance_to_the_oom_killer(
    tree: Tree, start: Start
) -> None:
    tree.cgroup2("/app")
    tree.level2("app", limit=2 * GIB, current=512 * MIB, inactive=0, high=GIB, dirty=100 * MIB)

    readings = start(tree.config()).readings()

    assert readings["memory.available"].value == 512 * MIB
    assert readings["memory.headroom"].value == 2 * GIB - 612 * MIB
    assert readings["memory.headroom"].reason == (
        "/app: limit 2048 MiB − working set 512 MiB − unwritten file pages 100 MiB = 1436 MiB"
    )


def test_a_container_sees_its_own_limit_although_its_path_names_the_host(
    tree: Tree, start: Start
) -> None:
    # Docker with version 1 and no cgroup namespace: the mount's root is the container's group
    tree.cgroup1("/docker/4ab1", mount_root="/docker/4ab1")
    tree.level1("", limit=512 * MIB, usage=128 * MIB, inactive=0)

    readings = start(tree.config()).readings()

    assert readings["memory.available"].value == 384 * MIB
    assert readings["memory.total"].value == 8000000 * 1024


@pytest.mark.parametrize("path", ["/../../system.slice/x", "/not/visible/here", "/"])
def test_a_path_from_another_namespace_means_the_group_that_is_mounted(
    tree: Tree, start: Start, path: str
) -> None:
    tree.cgroup2(path)
    tree.level2("", limit=512 * MIB, current=128 * MIB, inactive=0)

    readings = start(tree.config()).readings()

    assert readings["memory.available"].value == 384 * MIB


def test_the_groups_of_workers_bound_memory_as_well_as_our_own(tree: Tree, start: Start) -> None:
    tree.cgroup2("/svc/controller")
    tree.level2("svc", limit=4 * GIB, current=GIB, inactive=0)
    tree.level2("svc/controller", limit="max", current=40 * MIB, inactive=0)
    tree.level2("svc/worker", limit=GIB, current=768 * MIB, inactive=0)
    tree.put("proc/4711/cgroup", "0::/svc/worker\n")
    ticker = start(tree.config())
    alone = ticker.readings()["memory.available"].value

    ticker.suite.watch_processes([4711, 99999])

    assert alone == 3 * GIB
    assert ticker.suite.memory_available(1.0).value == 256 * MIB
    assert ticker.readings()["memory.available"].value == 256 * MIB


def test_moving_to_another_group_is_noticed_at_the_next_tick(tree: Tree, start: Start) -> None:
    tree.cgroup2("/a")
    tree.level2("a", limit=2 * GIB, current=0, inactive=0)
    tree.level2("b", limit=GIB, current=0, inactive=0)
    ticker = start(tree.config())
    before = ticker.readings()["memory.available"].value

    tree.put("proc/self/cgroup", "0::/b\n")

    assert before == 2 * GIB
    assert ticker.tick().readings["memory.available"].value == GIB


def test_a_limit_that_changes_is_noticed_at_the_next_tick(tree: Tree, start: Start) -> None:
    tree.cgroup2("/a")
    tree.level2("a", limit="max", current=0, inactive=0)
    ticker = start(tree.config())
    before = ticker.readings()["memory.available"].value

    tree.put("sys/fs/cgroup/a/memory.max", f"{GIB}\n")
    ticker.tick()

    assert before == AVAILABLE
    assert ticker.suite.memory_available(2.0).value == GIB


def test_a_group_that_vanishes_between_two_ticks_leaves_the_others(
    tree: Tree, start: Start
) -> None:
    tree.cgroup2("/svc")
    tree.level2("svc", limit=2 * GIB, current=0, inactive=0)
    tree.level2("worker", limit=GIB, current=0, inactive=0)
    tree.put("proc/4711/cgroup", "0::/worker\n")
    ticker = start(tree.config())
    ticker.suite.watch_processes([4711])
    before = ticker.readings()["memory.available"].value

    for file in (tree.sys / "fs/cgroup/worker").iterdir():
        file.unlink()
    (tree.sys / "fs/cgroup/worker").rmdir()
    (tree.proc / "4711/cgroup").unlink()
    after = ticker.tick(2).readings["memory.available"]

    assert before == GIB
    assert (after.value, after.quality) == (2 * GIB, Quality.GOOD)


def test_a_limit_that_cannot_be_understood_makes_the_sum_suspect(tree: Tree, start: Start) -> None:
    tree.cgroup2("/a")
    tree.level2("a", limit=GIB, current=0, inactive=0)
    ticker = start(tree.config())
    ticker.readings()

    tree.put("sys/fs/cgroup/a/memory.current", "garbage\n")
    available = ticker.tick(2).readings["memory.available"]

    assert available.quality is Quality.SUSPECT
    assert "garbage" in available.reason


@pytest.mark.parametrize("file", ["memory.max", "memory.current", "memory.stat"])
@pytest.mark.parametrize("content", ["garbage\n", "inactive_file x\n", "-5\n"])
def test_the_fast_path_doubts_what_the_snapshot_doubts(
    tree: Tree, start: Start, file: str, content: str
) -> None:
    tree.cgroup2("/a")
    tree.level2("a", limit=GIB, current=0, inactive=0)
    ticker = start(tree.config())
    tree.put(f"sys/fs/cgroup/a/{file}", content)

    looks = [ticker.tick().readings["memory.available"].quality for _ in range(4)]
    fast = ticker.suite.memory_available(9.0).quality

    assert len({*looks, fast}) == 1, (looks, fast)
    if content == "garbage\n" and file != "memory.stat":
        assert fast is Quality.SUSPECT


def test_a_limit_that_cannot_be_read_costs_no_search_at_every_poll(
    tree: Tree, start: Start
) -> None:
    tree.cgroup2("/a")
    tree.level2("a", limit=GIB, current=0, inactive=0)
    ticker = start(tree.config())
    ticker.tick()
    tree.put("sys/fs/cgroup/a/memory.current", "garbage\n")
    (tree.proc / "self/mountinfo").unlink()  # a search would find nothing any more

    polls = [ticker.suite.memory_available(float(at_s)) for at_s in range(3)]

    assert [poll.quality for poll in polls] == [Quality.SUSPECT] * 3


def test_a_kernel_without_memavailable_gets_an_estimate_that_says_so(
    tree: Tree, start: Start
) -> None:
    text = (tree.proc / "meminfo").read_text()
    tree.put("proc/meminfo", text.replace("MemAvailable:    4000000 kB\n", ""))
    ticker = start(tree.config())

    available = ticker.readings()["memory.available"]

    assert available.value == (300000 + 3800000 // 2 + 60000 // 2) * 1024
    assert "kernel has none" in available.reason
    assert ticker.suite.memory_available(1.0).value == available.value


def test_more_available_than_there_is_is_suspect(tree: Tree, start: Start) -> None:
    tree.put("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 2000 kB\n")

    assert start(tree.config()).readings()["memory.available"].quality is Quality.SUSPECT


@pytest.mark.parametrize("text", ["", "MemTotal: 0 kB\nMemFree: 1 kB", "\0\0\0", "MemTotal: x kB"])
def test_a_meminfo_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"MemTotal|invalid literal"):
        parse_meminfo(text.encode())


def test_the_fast_path_agrees_with_the_snapshot(tree: Tree, start: Start) -> None:
    tree.cgroup2("/a/b")
    tree.level2("a", limit=3 * GIB, current=GIB, inactive=100 * MIB)
    tree.level2("a/b", limit=2 * GIB, current=GIB, inactive=300 * MIB)
    ticker = start(tree.config())

    snapshot = ticker.tick()

    assert ticker.suite.memory_available(1.0).value == snapshot.value("memory.available")


def test_the_fast_path_answers_although_meminfo_is_gone(tree: Tree, start: Start) -> None:
    ticker = start(tree.config())
    (tree.proc / "meminfo").unlink()

    reading = ticker.suite.memory_available(5.0)

    assert (reading.value, reading.quality) == (None, Quality.ABSENT)
