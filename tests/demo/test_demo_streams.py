"""When a chat counts as whole, and when as broken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trimtab.demo.chats import PROMPTS, StreamReader
from trimtab.demo.stage import Chat


def piece(text: str, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return json.dumps({"choices": [choice], **more})


def end(reason: str) -> str:
    choice = {"index": 0, "delta": {}, "finish_reason": reason}
    return json.dumps({"choices": [choice], "trimtab": {"variants": ["fp32", "int8"]}})


def usage(tokens: int) -> str:
    return json.dumps({"choices": [], "usage": {"completion_tokens": tokens}})


def read(*events: str) -> tuple[Chat, str]:
    chat = Chat(1, "?", max_tokens=3)
    reader = StreamReader(chat)
    for event in events:
        reader.take(event)
    return chat, chat.problem or reader.what_is_missing()


def test_an_answer_with_all_its_tokens_and_its_end_is_whole() -> None:
    chat, problem = read(piece("a"), piece("é"), piece(""), end("length"), usage(3), "[DONE]")

    assert problem == ""
    assert chat.text == "aé"
    assert chat.tokens == 3
    assert chat.variants == ("fp32", "int8")


def test_an_answer_that_the_model_ended_itself_is_whole() -> None:
    assert read(piece("a"), end("stop"), usage(2), "[DONE]")[1] == ""


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ((piece("a"), end("length"), usage(3)), "without its terminal event"),
        ((piece("a"), end("length"), usage(2), "[DONE]"), "2 tokens came instead of 3"),
        ((piece("a"), end("length"), "[DONE]"), "how many tokens"),
        ((piece("a"), usage(1), "[DONE]"), "no good reason"),
        ((piece("a"), end("length"), usage(3), "[DONE]", piece("b")), "after the end"),
        ((piece("a"), json.dumps({"error": {"message": "held too long"}})), "held too long"),
    ],
)
def test_anything_missing_breaks_it(events: tuple[str, ...], problem: str) -> None:
    assert problem in read(*events)[1]


def test_some_prompts_have_characters_of_several_bytes() -> None:
    assert sum(not prompt.isascii() for prompt, _ in PROMPTS) >= 2
