"""`trimtab top`: what is on the screen, where the mark stands, and what keys do."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from api_fakes import STATUS, a_record, replace_policy
from trimtab.cli.signal_source import SignalRow
from trimtab.cli.top import Choices, chosen
from trimtab.cli.top_keys import Key, keys_in
from trimtab.cli.top_scene import (
    Level,
    Scene,
    gauges,
    merged,
    points_of,
    policy_of,
)
from trimtab.cli.top_triangle import Score, Where, triangle, where
from trimtab.cli.top_view import Past, View, picture, snapshot
from trimtab.domain.readings import Quality
from trimtab.policy.compiled import Policy
from trimtab.policy.effective import effective_values
from trimtab.policy.load import load_policy
from trimtab.policy.shelf import shipped_folder

MIB = 2**20
SMALL, LARGE = (80, 24), (200, 60)


def balanced() -> Policy:
    policy = load_policy("balanced", shipped_folder(), device=None).policy
    assert policy is not None
    return policy


def a_row(name: str, value: float | None, unit: str) -> SignalRow:
    quality = Quality.GOOD if value is not None else Quality.ABSENT
    return SignalRow(name, value, unit, quality, "" if value is not None else "not here", 0.1)


def rows(**values: float | None) -> tuple[SignalRow, ...]:
    """Signals, with underscores for dots in the area's name."""
    told = {"memory.available": 1536.0 * MIB, "memory.own.pss": 256.0 * MIB} | {
        name.replace("__", "."): value for name, value in values.items()
    }
    told.setdefault("throughput.tokens_per_s", 41.5)
    told.setdefault("latency.ttft_p95", 0.5)
    told.setdefault("latency.tpot_p95", 0.03)
    units = {"memory": "bytes", "latency": "s", "temperature": "celsius", "throughput": "tokens/s"}
    return tuple(a_row(name, value, units[name.split(".")[0]]) for name, value in told.items())


def some_points() -> tuple[Any, ...]:
    def one(
        variant: str, context: int, quality: float, reason: str, in_force: bool, passed: str = ""
    ) -> Any:
        return {
            "point": {"variant": variant, "context": context},
            "predicted": {"memory_bytes": 123 * MIB, "decode_tps": 41.5, "quality_ratio": quality},
            "in_force": in_force,
            "reason": reason,
            "passed_over": passed,
        }

    out = "it would leave 100 MiB, under the headroom of 512 MiB; it needs 600 MiB"
    return points_of(
        [
            one("fp32", 2048, 1.0, out, False),
            one("fp32", 1024, 1.0, out, False),
            one("int8", 2048, 0.996, "", True),
            one("int4", 2048, 0.7, "", False, "has to last 30 s (dwell), 12 s to go"),
        ]
    )


def a_scene(**changes: Any) -> Scene:
    scene = Scene(
        status=STATUS,
        signals=rows(),
        points=some_points(),
        decisions=tuple(a_record(number) for number in range(1, 9)),
        policy=balanced(),
        at_s=10.0,
    )
    return replace(scene, **changes)


def a_status(**fields: Any) -> Any:
    return msgspec.structs.replace(STATUS, **fields)


def screen(scene: Scene, size: tuple[int, int] = SMALL, **view: Any) -> str:
    """The screen as a terminal of this size shows it, without colour."""
    past = Past()
    past.add(scene)
    shown = picture(scene, past, View(*size, now_s=12.0, **view))
    console = Console(width=size[0], record=True, file=io.StringIO(), color_system=None)
    console.print(Text("\n").join(shown), no_wrap=True, overflow="crop", end="")
    return console.export_text()


@pytest.mark.parametrize("size", [SMALL, LARGE, (120, 40), (100, 30), (40, 10), (20, 4), (3, 1)])
def test_the_screen_is_exactly_as_large_as_the_terminal(size: tuple[int, int]) -> None:
    scene = a_scene(fault="trimtab isn't running at /run/trimtab/control.sock")
    shown = picture(scene, Past(), View(*size, now_s=12.0))

    assert len(shown) == size[1]
    assert {line.cell_len for line in shown} == {size[0]}


def test_a_small_terminal_shows_the_essentials() -> None:
    told = screen(a_scene())

    assert "ready  tiny" in told
    assert "point    int8, 2048 tokens" in told
    assert "balanced (abc123def456)  protects memory and latency, gives accuracy" in told
    assert "1 running, 0 queued, 0 held  41.5 tokens/s" in told
    assert "int8 ready, 117 MiB, 1 stream" in told
    assert "memory.available" in told
    assert "1536 MiB ≥512 MiB" in told
    assert "▶ int8" in told
    assert "× fp32" in told
    assert "it would leave 100 MiB, under" in told
    assert "has to last 30 s (dwell), 12 s" in told
    assert "Stepped down from int8 to int4" in told
    assert "memory*" in told
    assert told.count("●") == 1
    assert "q quit" in told


def test_a_large_terminal_uses_the_room() -> None:
    told = screen(a_scene(), LARGE)

    assert "latency  0.75  ttft p95 500 ms of 2 s" in told
    assert "memory   0.80  1024 MiB over headroom, 256 MiB ours" in told
    assert "accuracy 1.00  int8 keeps 0.996 of the best" in told
    assert "would leave 100 MiB, under the headroom of 512 MiB" in told
    assert "slo ttft_p95" in told
    assert "tokens/s, at most 41.5 in the last 1 s" in told
    assert told.count("Stepped down from int8 to int4") == 8
    assert "╭─ decisions ─" in told


def test_the_triangle_can_be_taken_away() -> None:
    told = screen(a_scene(), triangle=False), screen(a_scene(), LARGE, triangle=False)

    assert all("●" not in text and "╱" not in text for text in told)
    assert all("memory.available" in text for text in told)


def test_a_stale_policy_is_a_warning_that_stays_on_the_screen() -> None:
    policy = replace_policy(STATUS.policy, stale=True, error="1 error\n  balanced.yaml:3: no YAML")
    told = screen(a_scene(status=a_status(policy=policy)))

    assert "STALE, the last good one holds: 1 error balanced.yaml:3: no YAML" in told


def test_a_daemon_that_is_gone_is_told_with_the_age_of_the_rest() -> None:
    told = screen(a_scene(fault="trimtab isn't running at /x/control.sock"))
    first = screen(Scene(fault="trimtab isn't running at /x/control.sock", hint="Start it."))

    assert "not answering" in told
    assert "! trimtab isn't running at /x/control.sock. Trying again; this was 2 s ago" in told
    assert "point    int8" in told
    assert "No daemon has answered yet." in first
    assert "Start it." in first


def test_a_step_under_way_a_pin_and_a_pause_are_told() -> None:
    target = msgspec.structs.replace(STATUS.point, variant="int4")
    status = a_status(
        target=target, pinned={"variant": "int4"}, pin_expires_in_s=540.0, paused=True
    )
    told = screen(a_scene(status=status), (140, 24))

    assert "int8, 2048 tokens → int4, 2048 tokens" in told
    assert "pinned: variant=int4 for 9 min" in told
    assert "steps are paused" in told


def test_more_workers_than_fit_are_counted() -> None:
    workers = [replace_worker(name) for name in ("int8", "int4", "fp32")]
    told = screen(a_scene(status=a_status(workers=workers)))

    assert "1 thread, pid 77; 2 more" in told


def replace_worker(name: str) -> Any:
    return msgspec.structs.replace(STATUS.workers[0], variant=name, decoder="", load_s=None)


def test_a_failed_step_is_told_with_its_reason() -> None:
    outcome = {"kind": "failed", "took_s": 1.5, "reason": "the worker died"}
    told = screen(a_scene(decisions=(a_record(1, outcome=outcome),)))

    assert "It failed: the worker died" in " ".join(told.split())


def test_decisions_scroll_towards_older_ones() -> None:
    scene = a_scene(decisions=tuple(a_record(n, wall_s=1_764_000_000.0 + 60 * n) for n in (1, 2)))
    told, scrolled = screen(scene), screen(scene, scroll=1)

    assert told.count("Stepped down") == 2
    assert scrolled.count("Stepped down") == 1
    assert "1 newer decision above" in scrolled


def test_a_signal_beyond_its_limit_is_marked_without_colour() -> None:
    told = screen(a_scene(signals=rows(memory__available=480.0 * MIB)))

    assert "! " in next(line for line in told.splitlines() if "memory.available" in line)


@pytest.mark.parametrize(
    ("available_mib", "level"), [(2000, Level.GOOD), (700, Level.NEAR), (500, Level.OVER)]
)
def test_a_gauge_knows_the_band_between_enter_and_leave(available_mib: int, level: Level) -> None:
    found = gauges(a_scene(signals=rows(memory__available=float(available_mib * MIB))))

    assert {one.row.name: one.level for one in found}["memory.available"] is level


def test_a_terminal_without_unicode_or_colour_is_served() -> None:
    past = Past()
    shown = picture(a_scene(), past, View(*SMALL, now_s=12.0, ascii_only=True))
    file = io.StringIO()
    Console(file=file, force_terminal=True, no_color=True, width=80).print(Text("\n").join(shown))

    assert file.getvalue().isascii()
    assert "\x1b[3" not in file.getvalue()


def test_control_characters_of_others_dont_reach_the_terminal() -> None:
    policy = replace_policy(STATUS.policy, stale=True, error="a\x1b[2Jb")
    shown = picture(a_scene(status=a_status(policy=policy)), Past(), View(*SMALL, now_s=12.0))

    assert not any("\x1b" in line.plain for line in shown)


def test_a_pipe_gets_every_part_in_plain_lines() -> None:
    past = Past()
    told = "\n".join(line.plain for line in snapshot(a_scene(), past))

    assert "accuracy 1.00" in told
    assert "memory.available" in told
    assert "▶ int8" in told
    assert "Stepped down from int8 to int4" in told
    assert all(line == line.rstrip() for line in told.splitlines())


def test_pressure_moves_the_mark_away_from_memory() -> None:
    free, tight = (
        where(a_scene(signals=rows(memory__available=float(amount * MIB))))
        for amount in (2000, 560)
    )
    assert free is not None
    assert tight is not None

    assert tight.weights()[1] < free.weights()[1]
    assert _column(tight) < _column(free)


def test_a_smaller_variant_moves_the_mark_away_from_accuracy() -> None:
    point = msgspec.structs.replace(STATUS.point, variant="int4")
    good, small = where(a_scene()), where(a_scene(status=a_status(point=point)))
    assert good is not None
    assert small is not None

    assert small.accuracy.ratio == 0.7
    assert _row(small) > _row(good)


def test_latency_is_held_against_the_objective_that_is_worse() -> None:
    here = where(a_scene(signals=rows(latency__ttft_p95=0.2, latency__tpot_p95=0.12)))
    assert here is not None

    assert here.latency.ratio == pytest.approx(0.2)
    assert here.latency.told == "tpot p95 120 ms of 150 ms"


def test_without_requests_the_expected_latency_stands_in() -> None:
    here = where(a_scene(signals=rows(latency__ttft_p95=None, latency__tpot_p95=None)))
    assert here is not None

    assert here.latency.told == "tpot expected 24 ms of 150 ms"


def test_limits_that_arent_known_are_no_score() -> None:
    here = where(a_scene(policy=None))
    assert here is not None

    assert (here.memory.ratio, here.latency.ratio) == (None, None)
    assert "its limits can't be read here" in screen(a_scene(policy=None))


def test_parked_stands_in_the_corner_of_memory() -> None:
    point = msgspec.structs.replace(STATUS.point, variant=None)
    here = where(a_scene(status=a_status(point=point, state="parked")))
    assert here is not None

    assert here.weights() == (0.0, 1.0, 0.0)


@settings(deadline=None)
@given(st.tuples(*[st.none() | st.floats(0, 1)] * 3), st.integers(7, 60), st.integers(5, 40))
def test_the_mark_is_always_inside_the_triangle(
    ratios: tuple[float | None, ...], width: int, height: int
) -> None:
    here = Where(*(Score(ratio, "") for ratio in ratios))
    drawn = triangle(here, [], None, width, height)
    lines = [line.plain for line in drawn if "●" in line.plain]

    assert len(lines) == (1 if drawn else 0)
    assert all(line.index("╱") < line.index("●") < line.index("╲") for line in lines)


def _grid(here: Where) -> tuple[int, int]:
    drawn = [line.plain for line in triangle(here, [], None, 60, 24)]
    row = next(at for at, line in enumerate(drawn) if "●" in line)
    return row, drawn[row].index("●")


def _row(here: Where) -> int:
    return _grid(here)[0]


def _column(here: Where) -> int:
    return _grid(here)[1]


def test_a_policy_told_over_the_socket_has_the_limits_of_its_file() -> None:
    result = load_policy("balanced", shipped_folder(), device=None)
    assert result.document is not None
    values = effective_values(result.require(), result.document)
    told = policy_of([{"path": list(one.path), "text": one.text} for one in values])

    assert told is not None
    assert told == replace(result.require(), revision=told.revision)


def test_an_outcome_takes_the_place_of_its_decision() -> None:
    known = (a_record(1), a_record(2))
    outcome = a_record(2, outcome={"kind": "done", "took_s": 1.0})

    assert merged(known, (outcome,), 100) == (known[0], outcome)
    assert merged(known, (a_record(3),), 2) == (known[1], a_record(3))


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", [Key.QUIT]),
        (b"jk", [Key.OLDER, Key.NEWER]),
        (b"\x1b[B\x1bOA", [Key.OLDER, Key.NEWER]),
        (b"\x1b[1;5qp", [Key.PAUSE]),
        (b"\x1b", []),
        (b"xyz\xff", []),
        (b"\x1b[6~t", [Key.PAGE_OLDER, Key.TRIANGLE]),
    ],
)
def test_keys_are_told_from_sequences(typed: bytes, keys: list[Key]) -> None:
    assert keys_in(typed) == keys


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_no_bytes_confuse_the_keyboard(typed: bytes) -> None:
    assert all(isinstance(key, Key) for key in keys_in(typed))


def test_scrolling_stays_among_the_decisions() -> None:
    scene = a_scene()
    at = Choices()
    for _ in range(20):
        at = chosen(at, Key.OLDER, scene)
    oldest = at.scroll
    newest = chosen(chosen(at, Key.NEWEST, scene), Key.NEWER, scene).scroll

    assert (oldest, newest) == (7, 0)


def test_a_paused_view_keeps_its_scene_until_it_goes_on() -> None:
    scene = a_scene()
    paused = chosen(Choices(), Key.PAUSE, scene)
    on = chosen(paused, Key.PAUSE, scene)

    assert paused.frozen is scene
    assert on.frozen is None
    assert "PAUSED" in screen(scene, paused=True)
