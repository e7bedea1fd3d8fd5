"""`trimtab bench`: real daemons in their quick form, and the arithmetic around them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_fakes import a_model
from trimtab.bench.footprint import look
from trimtab.bench.live_load import Sent, Slo, Speed, slo_for, workload
from trimtab.bench.live_run import KV_BYTES, Ground, limit_for
from trimtab.bench.machine import machine, parse_fields, versions
from trimtab.bench.overhead import split_cores
from trimtab.bench.paired import in_turn, middle, spread
from trimtab.bench.registry import BENCHMARKS, Target
from trimtab.errors import WorkerError

TESTS = Path(__file__).parent.parent


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
    return subprocess.run(
        [sys.executable, "-m", "trimtab", "bench", *arguments],
        env=own | {"TRIMTAB_MODELS": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def quick(name: str) -> dict[str, Any]:
    done = command(name, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert {"machine", "versions", "runs"} <= set(result)
    return result


@pytest.mark.timeout(180)
def test_overhead_has_its_fields_and_figures_above_nought() -> None:
    result = quick("overhead")

    assert result["tps_ratio_int4"] > 0
    assert result["tps_ratio_int8"] > 0
    assert isinstance(result["ttft_added_ms_p50"], float)
    assert result["by_variant"]["int4"]["tps_bare"] > result["by_variant"]["int4"]["tps_served"] > 0
    assert result["runs"]["pairs"] == 1


@pytest.mark.timeout(180)
def test_footprint_has_its_fields_and_a_plausible_process() -> None:
    result = quick("footprint")

    assert 20 < result["rss_mb"] < 200
    assert 0 <= result["idle_cpu_percent"] < 100
    assert 0 < result["wakeups_per_s"] < 1000


def test_all_benchmarks_are_listed_with_what_they_measure() -> None:
    listed = command().stdout

    assert all(f"{name} " in listed for name in BENCHMARKS)


def test_an_unknown_benchmark_is_answered_with_those_there_are() -> None:
    done = command("speed")

    assert done.returncode == 2
    assert "there is no benchmark speed" in done.stderr
    assert "overhead" in done.stderr


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_can_be_loaded_and_has_targets(name: str) -> None:
    assert callable(BENCHMARKS[name].load())
    assert BENCHMARKS[name].targets


async def test_pairs_run_in_turn_so_that_neither_is_always_first() -> None:
    order: list[str] = []

    async def run(name: str) -> str:
        order.append(name)
        return name

    measured = await in_turn(lambda _: run("a"), lambda _: run("b"), 3)

    assert order == ["a", "b", "b", "a", "a", "b"]
    assert measured == [("a", "b")] * 3


def test_a_median_comes_with_its_spread() -> None:
    assert middle([3.0, 1.0, 2.00004]) == 2.0
    assert spread([3.0, 1.0, 2.0]) == [1.0, 3.0]


@pytest.mark.parametrize(
    ("target", "value", "reached"),
    [
        (Target("x", at_least=0.97), 0.97, True),
        (Target("x", at_least=0.97), 0.96, False),
        (Target("x", at_most=5), 5.1, False),
        (Target("x", at_least=0.95, at_most=1.05), 1.0, True),
        (Target("x", at_least=1), True, True),
        (Target("x", at_most=5), None, None),
    ],
)
def test_a_target_says_whether_it_is_reached(
    target: Target, value: object, reached: bool | None
) -> None:
    assert target.reached({"x": value}) is reached


def test_the_engine_gets_a_core_of_its_own_where_there_are_two() -> None:
    assert split_cores({2, 5, 7}) == (frozenset({2}), frozenset({5, 7}))
    assert split_cores({0}) == (frozenset(), frozenset())


def test_a_look_at_this_process_sees_it_work() -> None:
    before = look(os.getpid())
    sum(range(2_000_000))
    after = look(os.getpid())

    assert after.cpu_s > before.cpu_s
    assert after.rss_bytes > 10 * 2**20


def test_a_look_at_a_process_that_is_gone_says_so() -> None:
    with pytest.raises(WorkerError, match="is gone"):
        look(2**22 + 1)


def test_a_figure_comes_with_its_machine_and_versions() -> None:
    facts = machine()

    assert facts["cores"] >= 1
    assert facts["memory_mib"] > 100
    assert facts["cpu"]
    assert {"trimtab", "python", "onnxruntime"} <= set(versions())


def test_fields_of_proc_are_read_as_they_stand_first() -> None:
    text = "model name\t: A\nMemTotal:  12 kB\nmodel name\t: B\n\nno colon\n"

    assert parse_fields(text) == {"model name": "A", "MemTotal": "12 kB"}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_live_serves_the_controller_and_fixed_variants_through_the_same_requests() -> None:
    result = quick("live")
    subjects = result["by_subject"]

    assert set(subjects) == {"trimtab", "fp32", "int4"}
    assert {"score_ratio_best_static", "score_ratio_best_quality"} <= set(result)
    assert result["violations_controller"] == subjects["trimtab"]["missed"]
    assert result["violations_best_quality"] == subjects["fp32"]["missed"]
    assert result["runs"]["requests"] == 20
    assert 0 < subjects["trimtab"]["score"] <= 1
    assert subjects["int4"]["in_force"] == {"int4": 1.0}


def test_an_answer_counts_if_its_first_and_last_token_were_in_time() -> None:
    slo = Slo(ttft_s=1.0, tpot_s=0.1)
    good = Sent(first_s=0.9, last_s=2.9, tokens=20, complete=True)

    assert slo.met(good)
    assert not slo.met(replace(good, first_s=1.1))
    assert not slo.met(replace(good, last_s=3.1))
    assert not slo.met(replace(good, complete=False))
    assert not slo.met(Sent(refused="shed"))


def test_the_load_of_the_live_benchmark_follows_from_the_machines_speed() -> None:
    fast, slow = Speed(600, 60, 1.3), Speed(300, 30, 1.3)
    light, heavy = workload(slow, 100, 0.3), workload(slow, 100, 0.9)
    work_s = (heavy.prompt / 300 + heavy.output / 30).sum()

    assert len(light) < len(heavy) < len(workload(fast, 100, 0.9))
    assert 80 < work_s < 95
    assert float(heavy.arrival_s[-1]) == pytest.approx(100)
    assert slo_for(heavy, fast).ttft_s < slo_for(heavy, slow).ttft_s


def test_what_is_squeezed_leaves_room_for_the_variants_that_are_meant() -> None:
    mib = 1024 * 1024
    needs = {"fp32": 700 * mib, "int8": 230 * mib, "int4": 180 * mib}
    load = workload(Speed(300, 30, 1.3), 100, 0.5)
    limit = limit_for(needs, 8000 * mib)
    ground = Ground(a_model(), needs, limit, Speed(300, 30, 1.3), load, Slo(1, 1), 100)

    def left(share: float) -> list[str]:
        room = ground.room_bytes(share) - limit - KV_BYTES
        return [name for name, held in needs.items() if held <= room]

    assert left(0.1) == left(0.5) == left(0.9) == ["fp32", "int8", "int4"]
    assert left(0.2) == ["int8", "int4"]
    assert left(0.75) == ["int4"]
    assert ground.room_bytes(0.1) < 8000 * mib  # something is held all the time


def test_decision_is_timed_over_ticks_that_really_move_the_variant() -> None:
    result = BENCHMARKS["decision"].load()(True)

    assert result["points"] == 512
    assert result["switches"] >= 4
    assert 0 < result["p50_ms"] <= result["p99_ms"]
