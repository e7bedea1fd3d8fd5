"""CPU shares, paging, power, disk, GPU: rates from counters, and the quirks of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sensor_trees import Ticker, Tree

from trimtab.domain.readings import Quality
from trimtab.sensors import SensorConfig
from trimtab.sensors.cpu import parse_process_ticks, parse_stat
from trimtab.sensors.disk import parse_life_time
from trimtab.sensors.gpu import nvml_readings
from trimtab.sensors.processes import parse_io, parse_rollup

Start = Callable[[SensorConfig], Ticker]
PAGE = os.sysconf("SC_PAGESIZE")


def stat(worked: int, idle: int, iowait: int = 0, steal: int = 0) -> str:
    return f"cpu  {worked} 0 0 {idle} {iowait} 0 0 {steal} 77 0\ncpu0 1 2 3\nintr 9\n"


def process(ticks: int, name: str = "x", started: int = 5) -> str:
    return f"1 ({name}) S {' '.join(['0'] * 10)} {ticks} 0 0 0 0 0 0 0 {started} 0 0\n"


def test_own_and_others_share_what_is_worked(tree: Tree, start: Start) -> None:
    tree.put("proc/stat", stat(1000, 1000))
    tree.put("proc/self/stat", process(10))
    tree.put("proc/77/stat", process(100, name="a) b (c"))
    ticker = start(tree.config())
    ticker.suite.watch_processes([77])
    first = ticker.tick().readings["cpu.busy"]

    tree.put("proc/stat", stat(1120, 1050, iowait=20, steal=10))
    tree.put("proc/self/stat", process(20))
    tree.put("proc/77/stat", process(130, name="a) b (c"))
    readings = ticker.tick().readings

    assert first.quality is Quality.ABSENT
    assert readings["cpu.busy"].value == 0.6
    assert readings["cpu.own"].value == 0.2
    assert readings["cpu.others"].value == pytest.approx(0.4)
    assert readings["cpu.iowait"].value == 0.1
    assert readings["cpu.steal"].value == 0.05


def test_a_pid_that_was_given_away_again_is_not_ours_from_its_beginning(
    tree: Tree, start: Start
) -> None:
    tree.put("proc/stat", stat(1000, 1000))
    tree.put("proc/77/stat", process(100, started=5))
    ticker = start(tree.config())
    ticker.suite.watch_processes([77])
    ticker.tick()

    tree.put("proc/stat", stat(1100, 1100))
    tree.put("proc/77/stat", process(5000, started=900))
    readings = ticker.tick().readings

    assert readings["cpu.own"].value == 0.0


def test_counters_that_run_backwards_give_no_negative_share(tree: Tree, start: Start) -> None:
    tree.put("proc/stat", stat(1000, 1000, iowait=50))
    ticker = start(tree.config())
    ticker.tick()

    tree.put("proc/stat", stat(1100, 1100, iowait=40))
    readings = ticker.tick().readings

    assert readings["cpu.iowait"].value == 0.0
    assert 0.0 <= (readings["cpu.busy"].value or 0.0) <= 1.0


def test_old_kernels_give_fewer_columns() -> None:
    assert parse_stat("cpu 10 0 0 90\n").total == 100
    with pytest.raises(ValueError, match="first line"):
        parse_stat("intr 1 2 3\n")
    with pytest.raises(ValueError, match="too short"):
        parse_process_ticks("1 (x) S 0 0")


def test_swap_traffic_is_in_bytes_a_second(tree: Tree, start: Start) -> None:
    tree.put("proc/vmstat", "pswpin 100\npswpout 10\npgmajfault 5\noom_kill 1\n")
    ticker = start(tree.config())
    ticker.tick()

    tree.put("proc/vmstat", "pswpin 150\npswpout 10\npgmajfault 25\noom_kill 2\n")
    readings = ticker.tick().readings

    assert readings["memory.swap.in_rate"].value == 50 * PAGE
    assert readings["memory.swap.out_rate"].value == 0.0
    assert readings["memory.major_faults"].value == 20.0
    assert readings["memory.oom_kills"].value == 2.0


def test_a_counter_that_was_reset_gives_no_rate_once(tree: Tree, start: Start) -> None:
    tree.put("proc/vmstat", "pswpin 100\npswpout 10\npgmajfault 5\n")
    ticker = start(tree.config())
    ticker.tick(2)

    tree.put("proc/vmstat", "pswpin 1\npswpout 10\npgmajfault 5\n")

    assert ticker.tick().readings["memory.swap.in_rate"].quality is Quality.ABSENT
    assert ticker.tick().readings["memory.swap.in_rate"].value == 0.0


def rapl(tree: Tree, microjoules: int) -> None:
    base = "sys/class/powercap/intel-rapl:0"
    tree.put(f"{base}/name", "package-0\n")
    tree.put(f"{base}/energy_uj", f"{microjoules}\n")
    tree.put(f"{base}/max_energy_range_uj", "100000000\n")


def test_energy_becomes_power_and_wraps_at_its_range(tree: Tree, start: Start) -> None:
    rapl(tree, 90_000_000)
    ticker = start(tree.config())
    ticker.tick(5)

    rapl(tree, 15_000_000)
    readings = ticker.tick(2).readings

    assert readings["power.package"].value == 5.0  # 25 J in 5 s


def test_mains_and_no_battery_is_told_by_the_supply(tree: Tree, start: Start) -> None:
    tree.put("sys/class/power_supply/ADP1/type", "Mains\n")
    tree.put("sys/class/power_supply/ADP1/online", "1\n")

    readings = start(tree.config()).readings()

    assert readings["power.mains"].value == 1.0
    assert readings["power.battery"].quality is Quality.ABSENT


def test_the_flash_tells_the_worse_of_its_two_kinds() -> None:
    assert parse_life_time("0x01 0x03\n") == pytest.approx(0.3)
    assert parse_life_time("0x0b 0x01\n") == 1.0
    assert parse_life_time("0x00 0x00\n") is None
    with pytest.raises(ValueError, match="invalid literal"):
        parse_life_time("worn out")


def test_free_space_is_that_of_the_state_directory(tree: Tree, start: Start) -> None:
    space = os.statvfs(tree.sys)

    free = start(tree.config(state_dir=tree.sys)).readings()["disk.free"]

    assert free.value == pytest.approx(space.f_bavail * space.f_frsize, rel=0.05)


def test_what_the_process_tree_holds_is_summed_by_kind() -> None:
    text = (
        "562e-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 9000 kB\nPss: 5000 kB\nPss_Anon: 3000 kB\n"
        "Pss_File: 500 kB\nPss_Shmem: 1500 kB\nSwap: 40 kB\nSwapPss: 20 kB\n"
    )

    parts = parse_rollup(text)

    assert parts == {
        "memory.own.pss": 5000 * 1024,
        "memory.own.anonymous": 3000 * 1024,
        "memory.own.shared": 1500 * 1024,
        "memory.own.swapped": 20 * 1024,
    }


def test_writes_that_were_taken_back_do_not_wear_the_flash() -> None:
    assert parse_io("rchar: 1\nwrite_bytes: 5000\ncancelled_write_bytes: 1000\n") == 4000
    with pytest.raises(ValueError, match="write_bytes"):
        parse_io("rchar: 1\n")


def io(tree: Tree, pid: str, written: int) -> None:
    tree.put(f"proc/{pid}/io", f"write_bytes: {written}\ncancelled_write_bytes: 0\n")
    tree.put(f"proc/{pid}/smaps_rollup", "Pss: 10 kB\n")


def test_writes_count_from_the_start_and_outlive_a_worker(tree: Tree, start: Start) -> None:
    io(tree, "self", 1000)
    io(tree, "77", 500)
    ticker = start(tree.config())
    ticker.suite.watch_processes([77])
    ticker.tick(10)
    io(tree, "self", 3000)
    io(tree, "77", 700)
    ticker.tick(10)

    (tree.proc / "77/io").unlink()
    readings = ticker.tick(12).readings

    assert readings["disk.own_written"].value == 2700.0


@dataclass
class FakeNvml:
    """The functions of pynvml that are used, for two devices."""

    NVML_TEMPERATURE_GPU = 0

    @dataclass
    class Numbers:
        gpu: int = 0
        free: int = 0

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Numbers:
        return self.Numbers(gpu=40 + device)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Numbers:
        return self.Numbers(free=1000 * (device + 1))

    def nvmlDeviceGetTemperature(self, device: int, kind: int) -> int:
        return 60 + device + kind


def test_the_busiest_hottest_and_roomiest_nvidia_gpu_counts() -> None:
    values = {reading.signal: reading.value for reading in nvml_readings(FakeNvml(), 1.0)}

    assert values == {"gpu.busy": 0.41, "gpu.memory.free": 2000.0, "gpu.temperature": 61.0}


def test_an_nvidia_driver_without_the_optional_package_says_what_to_install(
    tree: Tree, start: Start
) -> None:
    tree.put("proc/driver/nvidia/version", "NVRM version: 550\n")

    reading = start(tree.config()).readings()["gpu.busy"]

    assert reading.quality is Quality.ABSENT
    assert "trimtab[nvidia]" in reading.reason or "NVML" in reading.reason


def test_the_machine_itself_is_read_too(start: Start, tmp_path: Path) -> None:
    readings = start(SensorConfig(state_dir=tmp_path)).readings()

    assert (readings["memory.available"].value or 0) > 0
    assert (readings["memory.own.pss"].value or 0) > 1 << 20
    assert (readings["disk.free"].value or 0) > 0
