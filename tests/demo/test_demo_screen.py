"""What is shown: on a terminal of any usual size, without one, and as a plot."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from demo_stage import PLAN, played, sample
from rich.console import Console

from trimtab.demo import plot
from trimtab.demo.plain import PlainScreen
from trimtab.demo.plan import MIB
from trimtab.demo.result import judge
from trimtab.demo.screen import picture
from trimtab.demo.stage import Chat, ChatState, Stage


def shown(stage: Stage, width: int, height: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(picture(stage, width, height))
    return out.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (120, 40), (200, 60)])
@pytest.mark.parametrize("chats", [0, 1, 3])
def test_the_screen_fits_the_terminal(width: int, height: int, chats: int) -> None:
    stage = played()
    stage.chats += [Chat(9 + n, "Why? " * 30, 90, "long words " * 99) for n in range(chats)]

    assert len(shown(stage, width, height)) <= height


def test_an_empty_stage_can_be_shown() -> None:
    assert any("A Model" in line for line in shown(Stage(PLAN, "A Model"), 80, 24))


def test_the_screen_tells_variant_memory_speed_chats_and_decisions() -> None:
    text = "\n".join(shown(played(), 80, 24))

    for word in ("fp32", "int8", "7000 MiB available", "300 MiB above", "40 tokens/s"):
        assert word in text
    assert "1 running, 2 complete, 0 broken" in text
    assert "Stepped up from int8 to fp32" in text


def test_a_variant_that_is_being_loaded_and_held_chats_are_told() -> None:
    stage = played()
    stage.look(replace(sample(6.8, None), coming="int8", held=2))

    assert any("loading int8 2 chats held" in line for line in shown(stage, 80, 24))


def test_without_a_terminal_each_thing_is_told_once() -> None:
    lines: list[str] = []
    screen, stage = PlainScreen(lines.append), played()
    screen.draw(stage)
    screen.draw(stage)

    assert sum("Stepped down" in line for line in lines) == 1
    assert sum("chat 1 is complete: 40 tokens by fp32" in line for line in lines) == 1
    assert sum("chat 2 is complete: 60 tokens by fp32 then int8" in line for line in lines) == 1
    assert sum("40 tokens/s, 7000 MiB available" in line for line in lines) == 1


def test_a_squeeze_that_grows_is_not_told_step_by_step() -> None:
    lines: list[str] = []
    screen, stage = PlainScreen(lines.append), played()
    for held in (16, 32, 48):
        stage.line = f"Another process takes memory: it holds {held} MiB now."
        screen.draw(stage)

    assert sum("Another process" in line for line in lines) == 1


def test_the_plot_is_a_picture_of_some_size(tmp_path: Path) -> None:
    path = tmp_path / "below" / "demo.png"
    stage = played()
    plot.draw(stage, judge(stage, 7.0), path)
    head = path.read_bytes()[:24]

    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(head[16:20]) >= 1000
    assert int.from_bytes(head[20:24]) >= 800


def test_the_plot_of_a_demo_in_which_nothing_happened_can_be_drawn(tmp_path: Path) -> None:
    stage = Stage(PLAN, "A Model")
    plot.draw(stage, judge(stage, 1.0), tmp_path / "demo.png")

    assert (tmp_path / "demo.png").exists()


def test_spans_are_where_a_variant_served_without_a_break() -> None:
    course = ["a", "a", None, "a", "b", "b"]
    samples = [sample(float(at), variant) for at, variant in enumerate(course)]

    assert plot.spans(samples) == [("a", 0.0, 1.0), ("a", 3.0, 3.0), ("b", 4.0, 5.0)]


def test_a_demo_that_went_down_and_up_with_whole_chats_has_passed() -> None:
    stage = played()
    stage.chats[2].state = ChatState.DONE
    result = judge(stage, 7.0)

    assert result.passed
    assert (result.switches_down, result.switches_up) == (1, 1)
    assert (result.streams, result.streams_broken, result.streams_crossed) == (3, 0, 1)
    assert result.tokens == 133
    assert result.squeeze_bytes == 400 * MIB


def test_a_chat_that_never_ended_spoils_the_demo() -> None:
    result = judge(played(), 7.0)

    assert not result.passed
    assert result.problems == ("chat 3 broke: it never ended",)


def test_a_step_down_without_a_squeeze_is_no_step_under_pressure() -> None:
    stage = played()
    stage.samples = [replace(one, squeeze_bytes=0) for one in stage.samples]

    assert "the model did not step down under pressure" in judge(stage, 7.0).problems


def test_a_step_up_before_the_step_down_does_not_count() -> None:
    stage = Stage(PLAN, "A Model")
    for at, variant in enumerate(["int8", "fp32", "int8"]):
        stage.look(sample(float(at), variant, squeeze=at * 100))
    result = judge(stage, 7.0)

    assert result.switches_up == 0
    assert any("did not step up again" in problem for problem in result.problems)
