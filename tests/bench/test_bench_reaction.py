"""`trimtab bench reaction`: a limit crossed for real, and the arithmetic around it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
from test_bench_command import quick

from trimtab.bench import reaction
from trimtab.bench.crossing import Order, cross, held_by, memfds
from trimtab.bench.reaction import Squeezed, summary
from trimtab.errors import TrimtabError

MIB = 1024 * 1024


def memfd(size_bytes: int) -> int:
    descriptor = os.memfd_create("kv")
    os.write(descriptor, b"x" * size_bytes)
    return descriptor


@dataclass
class Filling:
    """Takes nothing, and gives a memfd back at the third chunk."""

    descriptor: int
    held_bytes: int = 0
    closed: list[int] = field(default_factory=list)

    def more(self) -> None:
        self.held_bytes += MIB
        if self.held_bytes == 3 * MIB:
            os.close(self.descriptor)


def test_what_a_process_holds_in_memfds_is_read_from_the_kernel() -> None:
    descriptor = memfd(3 * MIB)
    files = memfds(os.getpid())
    before = held_by(files)
    os.close(descriptor)

    assert before - held_by(files) == 3 * MIB


def order(limit_bytes: int, within_s: float = 0.05) -> Order:
    return Order(
        limit_bytes=limit_bytes,
        beyond_bytes=4 * MIB,
        most_bytes=8 * MIB,
        pid=os.getpid(),
        freed_bytes=2 * MIB,
        within_s=within_s,
    )


def test_a_crossing_tells_when_the_limit_fell_and_when_memory_came_back() -> None:
    crossing = cross(Filling(memfd(2 * MIB)), order(10**15))

    assert crossing.crossed_s is not None
    assert crossing.freed_s is not None
    assert crossing.crossed_s < crossing.freed_s
    assert crossing.held_bytes == 3 * MIB


def test_a_limit_that_is_not_reached_ends_at_the_bound() -> None:
    filling = Filling(memfd(2 * MIB))
    crossing = cross(filling, order(1))

    assert crossing.crossed_s is None
    assert crossing.held_bytes == 8 * MIB


def test_memory_that_does_not_come_back_is_waited_for_no_longer_than_told() -> None:
    descriptor = memfd(MIB)  # less than what counts
    crossing = cross(Filling(descriptor), order(10**15, within_s=0.02))

    assert crossing.crossed_s is not None
    assert crossing.freed_s is None


def test_figures_are_by_the_clock_of_the_crossing_and_without_earlyoom_its_are_null() -> None:
    alone = summary([Squeezed(0.010, None, 100 * MIB), Squeezed(0.020, None, 300 * MIB)], 0)
    beside = summary([Squeezed(0.010, 0.050, 100 * MIB), Squeezed(0.020, 0.070, 300 * MIB)], 1)

    assert alone["p50_ms"] == 15
    assert alone["p99_ms"] == 20
    assert alone["earlyoom_p50_ms"] is None
    assert alone["speedup_p50"] is None
    assert beside["speedup_p50"] == 4
    assert beside["oom_kills"] == 1


def test_without_earlyoom_the_full_run_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(TrimtabError, match="isn't installed") as raised:
        reaction.run(quick=False)

    assert "apt install earlyoom" in raised.value.hint


@pytest.mark.timeout(120)
def test_a_quick_run_squeezes_a_real_daemon_and_has_its_fields() -> None:
    result = quick("reaction")

    assert result["squeezes"] == 2
    assert 0 < result["p50_ms"] <= result["p99_ms"] < 2000
    assert result["oom_kills"] == 0
    assert {"earlyoom_p50_ms", "speedup_p50", "earlyoom"} <= set(result)
