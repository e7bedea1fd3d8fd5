"""Calls of tools, found in an answer however its text comes in."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.api.tool_reader import Call, ToolReader, ToolTalk, put_together
from trimtab.domain.tools import SHAPES, ToolFormat

NAMES = ("weather", "weather_tomorrow", "clock")
TRICKY = {"city": 'a "quoted" {brace} \\ back', "list": [{"x": "]}"}, []], "n": -1.5}


def written(tool_format: ToolFormat, *calls: tuple[str, dict[str, object]]) -> str:
    """Calls as a model of that format writes them."""
    shape = SHAPES[tool_format]
    texts = [shape.head(name) + json.dumps(arguments) + shape.tail for name, arguments in calls]
    return shape.first + (shape.between or "").join(texts) + shape.last


def read(tool_format: ToolFormat, *pieces: str) -> tuple[str, list[Call]]:
    numbers = itertools.count(1)
    reader = ToolReader(ToolTalk(tool_format, NAMES), lambda: f"call_{next(numbers)}")
    calls: list[Call] = []
    text = "".join(put_together(reader.feed(piece), calls) for piece in pieces)
    return text + reader.rest(), calls


@pytest.mark.parametrize("tool_format", ToolFormat)
def test_a_call_is_found(tool_format: ToolFormat) -> None:
    text, calls = read(tool_format, written(tool_format, ("weather", TRICKY)))

    assert text == ""
    assert calls == [Call("call_1", "weather", json.dumps(TRICKY), whole=True)]


@pytest.mark.parametrize("tool_format", [f for f in ToolFormat if SHAPES[f].between is not None])
@given(data=st.data())
def test_text_and_calls_are_the_same_however_the_answer_is_cut(
    tool_format: ToolFormat, data: st.DataObject
) -> None:
    before = data.draw(st.sampled_from(["", "I'll look.\n", "a < b, [x] and {y}", "<tool_", "["]))
    answer = before + written(tool_format, ("weather_tomorrow", TRICKY), ("clock", {}))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    edges = [0, *cuts, len(answer)]
    text, calls = read(tool_format, *(answer[a:b] for a, b in itertools.pairwise(edges)))

    assert text == before
    assert [(call.name, call.whole) for call in calls] == [
        ("weather_tomorrow", True),
        ("clock", True),
    ]
    assert json.loads(calls[0].arguments) == TRICKY


@pytest.mark.parametrize("tool_format", ToolFormat)
@pytest.mark.parametrize(
    "answer",
    [
        "Nothing to call here.",
        'A dictionary: {"name": "weather"} and so on',
        "half a mark: <tool_ca",
        '{"name": "unknown", "arguments": {}}',
        "",
    ],
)
def test_text_without_calls_is_text(tool_format: ToolFormat, answer: str) -> None:
    whole, no_calls = read(tool_format, answer)
    letter_by_letter, _ = read(tool_format, *answer)

    assert whole == letter_by_letter == answer
    assert no_calls == []


def test_llamas_calls_begin_the_answer_with_its_tag_or_without() -> None:
    call = written(ToolFormat.LLAMA, ("clock", {}))
    _, tagged = read(ToolFormat.LLAMA, "<|python_tag|>" + call)
    late, none = read(ToolFormat.LLAMA, "So: " + call)

    assert [found.name for found in tagged] == ["clock"]
    assert late == "So: " + call
    assert none == []


@pytest.mark.parametrize("tool_format", ToolFormat)
def test_a_call_that_is_cut_off_has_what_came_of_its_arguments(tool_format: ToolFormat) -> None:
    answer = written(tool_format, ("weather", {"city": "Paris"}))
    text, calls = read(tool_format, answer[: answer.index("Paris") + 3])

    assert text == ""
    assert calls == [Call("call_1", "weather", '{"city": "Par', whole=False)]


@pytest.mark.parametrize("tool_format", [f for f in ToolFormat if SHAPES[f].trigger])
def test_a_call_that_is_cut_off_in_its_head_is_no_text(tool_format: ToolFormat) -> None:
    answer = written(tool_format, ("weather", {}), ("clock", {}))
    first = answer.index("weather")
    second = answer.index("clock")

    assert read(tool_format, "Well. " + answer[: first + 2]) == ("Well. ", [])
    text, calls = read(tool_format, answer[: second + 2])
    assert text == ""
    assert [call.name for call in calls] == ["weather"]


@pytest.mark.parametrize("tool_format", [ToolFormat.MISTRAL, ToolFormat.MISTRAL_ARGS])
def test_ids_have_the_length_that_the_template_wants(tool_format: ToolFormat) -> None:
    reader = ToolReader(ToolTalk(tool_format, NAMES))
    calls: list[Call] = []
    put_together(reader.feed(written(tool_format, ("clock", {}), ("clock", {}))), calls)

    assert [len(call.id) for call in calls] == [9, 9]
    assert calls[0].id.isalnum()
    assert calls[0].id != calls[1].id
