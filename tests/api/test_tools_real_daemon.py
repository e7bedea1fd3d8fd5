"""Structured answers and tools the whole way: official clients, sockets, a real worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import jsonschema
import ollama
import openai
import pytest
from pydantic import BaseModel, Field

from real_daemon import RealDaemon
from tool_models import tiny_with_tools
from trimtab.domain.tools import ToolFormat

MESSAGES: Any = [{"role": "user", "content": "Tell me a story."}]


class Item(BaseModel):
    """Part of an order, to have a reference in the schema."""

    name: str = Field(max_length=12)
    pieces: int


class Order(BaseModel):
    """What a client wants parsed."""

    kind: Literal["buy", "sell"]
    item: Item
    paid: bool


ARGUMENTS: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": ARGUMENTS}}


@pytest.fixture(scope="module", params=[ToolFormat.HERMES, ToolFormat.MISTRAL])
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    tiny_with_tools(folder / "models", request.param)
    running = RealDaemon(folder, models=folder / "models").start()
    yield running
    running.end()


def test_the_official_client_parses_an_answer_into_a_class(client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="tiny", messages=MESSAGES, response_format=Order, seed=seed
        )
        assert isinstance(answer.choices[0].message.parsed, Order)
        assert answer.choices[0].finish_reason == "stop"


def test_json_mode_gives_an_object_or_says_that_it_was_cut_off(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=300,
    )
    text = answer.choices[0].message.content or ""

    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    else:
        assert answer.choices[0].finish_reason == "length"


def test_a_tool_that_must_be_called_is_called_and_answered_for(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=1,
    )
    message: Any = asked.choices[0].message
    call = message.tool_calls[0]
    answered = client.chat.completions.create(
        model="tiny",
        messages=[
            *MESSAGES,
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ],
        tools=[WEATHER],
        tool_choice="none",
        max_tokens=10,
    )

    jsonschema.validate(json.loads(call.function.arguments), ARGUMENTS)
    assert asked.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    assert answered.choices[0].message.tool_calls is None


def test_a_named_tool_is_called_in_a_stream(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    stream = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        tools=[WEATHER],
        tool_choice=named,
        stream=True,
        seed=2,
    )
    choices = [choice for chunk in stream for choice in chunk.choices]
    pieces = [
        call.function.arguments or ""
        for choice in choices
        for call in choice.delta.tool_calls or []
        if call.function
    ]

    jsonschema.validate(json.loads("".join(pieces)), ARGUMENTS)
    assert choices[-1].finish_reason == "tool_calls"
    assert len(pieces) > 3


def test_where_the_model_may_call_it_may_also_talk(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=[WEATHER], temperature=0, max_tokens=20
    )

    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_the_official_client_is_told_which_schema_is_at_fault(client: openai.OpenAI) -> None:
    bad: Any = {"name": "x", "schema": {"type": "array", "uniqueItems": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": bad},
        )

    assert caught.value.param == "response_format.json_schema.schema"
    assert caught.value.code == "schema_unsupported"
    assert "uniqueItems" in caught.value.message


def test_ollamas_client_gets_what_it_asked_for(daemon: RealDaemon) -> None:
    with httpx.HTTPTransport(uds=str(daemon.sockets / "inference.sock")) as transport:
        client = ollama.Client(host="http://trimtab", transport=transport)
        schema = Order.model_json_schema()
        answer = client.chat("tiny", MESSAGES, format=schema, options={"seed": 3})

    Order.model_validate_json(answer.message.content or "")
